"""What names of other languages are called here, for those who write them out of habit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sexpgpu.errors import nearest

FOREIGN: Mapping[str, str] = {
    # Lisps
    "define": "def or defun", "defparameter": "defhyper", "defvar": "def", "defn": "defun", "define-syntax": "defmacro",
    "lambda": "fn", "letrec": "let*", "progn": "begin", "do": "repeat", "loop": "repeat", "for": "repeat", "dotimes": "repeat",
    "when": "(if C E)", "unless": "(if C nil E)", "case": "cond", "not": "logical-not", "null": "(= X nil)",
    "car": "(nth X 0)", "first": "(nth X 0)", "list-ref": "nth", "elt": "nth", "reduce": "fold", "foldl": "fold",
    "mapcar": "map", "string-append": "str", "concatenate": "append", "quotient": "//", "modulo": "mod", "remainder": "mod",
    "expt": "pow", "truncate": "cast", "load": "include", "require": "include", "import": "include",
    # Python, NumPy and PyTorch
    "==": "=", "%": "mod", "**": "pow", "^": "pow", "@": "matmul", "&&": "and", "!": "logical-not", "~": "logical-not",
    "len": "length", "True": "true", "False": "false", "None": "nil", "null?": "(= X nil)", "float32": "f32",
    "bfloat16": "bf16", "int32": "i32", "int64": "i64", "uint8": "u8", "astype": "cast", "ndim": "rank",
    "amax": "max", "amin": "min", "power": "pow", "absolute": "abs", "cat": "concat",
    "hstack": "concat", "vstack": "concat", "view": "reshape", "unsqueeze": "expand-dims",
    "expand": "broadcast-to", "swapaxes": "permute", "mm": "matmul", "bmm": "matmul", "clamp": "clip", "masked-fill": "where",
    "topk": "top-k", "randn": "random-normal", "rand": "random-uniform", "detach": "stop-gradient",
    "embedding": "embed", "layer-norm": "layernorm", "rms-norm": "rmsnorm", "batch-norm": "batchnorm", "group-norm": "groupnorm",
    "mse-loss": "mse", "huber-loss": "huber", "nll-loss": "cross-entropy", "bce": "binary-cross-entropy", "swish": "silu",
    "kl-div": "kl-divergence",
}  # fmt: skip


def suggestions(name: str, known: Sequence[str]) -> list[str]:
    """The note that names what is meant: another language's word for it, or the nearest known name."""
    close = FOREIGN.get(name) or nearest(name, known)
    return [f"did you mean {close}?"] if close else []
