"""Why an operator of OpInfo has no row."""

from __future__ import annotations

import re

ABSENT = "language.md lists no such operation"
# The first pattern that a whole name matches, without its variant.
REASONS: tuple[tuple[str, str], ...] = (
    (r"linalg\..*|cholesky.*|lu.*|qr|svd.*|geqrf|ormqr|pinverse|logdet|matrix_exp|triangular_solve|pca_lowrank|cov|corrcoef|cdist",
     "language.md has no decompositions or solvers"),
    (r"fft\..*|stft|istft|signal\..*", "language.md has no Fourier transforms or windows"),
    (r"special\..*|i0|lgamma|digamma|polygamma|igamma.*|mvlgamma|erfinv|erfc|sinc", "language.md has no such special function"),
    (r"complex|polar|view_as_(real|complex)|real|imag|conj.*|resolve_.*|angle|H|mH|isreal|cdouble|cfloat|chalf",
     "the language has no complex numbers"),
    (r"bernoulli|cauchy|exponential|geometric|log_normal|normal|uniform|rand.*|multinomial|.*dropout.*"
     r"|nn\.functional\.(rrelu|fractional_.*)",
     "draws: other random numbers than PyTorch's"),
    (r"(new_)?empty.*|to_sparse|sparse\..*|as_strided.*|resize.*|.*_copy|.*_scatter|put|index_(put|fill|copy)|masked_scatter"
     r"|fill|zero_|item|jiterator.*|contiguous|clone|to|bfloat16|bool|byte|char|double|float|half|int|long|short",
     "is about memory, sparse layouts or dtypes: the language has values"),
    (r"bitwise_.*|__r(and|or|xor)__|gcd|lcm", "takes no float32"),
    (r"unique.*|nonzero.*|masked_select|argwhere|bincount|hist.*|combinations|unravel_index",
     "gives a shape that depends on the data: shapes are static"),
    (r"torch\..*|native_.*|_.*|nn\.functional\.linear_cross_entropy", "is an internal of PyTorch"),
    (r"masked\..*", "is a composition with `where`; language.md lists none of its own"),
)  # fmt: skip


def reason_for(name: str) -> str:
    plain = name.partition("|")[0]
    return next((reason for pattern, reason in REASONS if re.fullmatch(pattern, plain)), ABSENT)
