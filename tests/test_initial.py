"""Initial values of parameters: their laws, and their bits."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray
from on_cpu import engine

import sexpgpu
from sexpgpu.api import load
from sexpgpu.initial import BLOCK, INITIALIZERS, LEAST_NATIVE, Initializer, centred, fans, fixed_sum, initial_value
from sexpgpu.quantile import SPAN_OF_TWO_DEVIATIONS, natural_logarithm, normal_quantile
from sexpgpu.randomness import key_of, words_of
from sexpgpu.train import model

# Half a unit in the last place of a float32, and what the float64 formula may add to it.
ROUNDING = 2.0**-24 * (1 + 1e-6)


def value(kind: str, *arguments: float, shape: tuple[int, ...] = (200, 300), seed: int = 1) -> NDArray[np.float64]:
    found = initial_value(Initializer(kind, arguments), shape, seed, "gpt.wte")
    assert found.dtype == np.float32 and found.shape == shape
    return found.astype(np.float64)


def probabilities(count: int, seed: int = 1) -> list[float]:
    """The documented law, in Python's own numbers: p = (w + 1/2) / 2^32 of each word."""
    words = words_of(key_of(seed, "gpt.wte", purpose="initial"), count)
    return [(int(word) + 0.5) / 2.0**32 for word in words]


def test_the_logarithm_is_correct_to_two_units_in_the_last_place() -> None:
    x = np.concatenate([np.logspace(-300, 300, 4001), np.linspace(0.5, 2.0, 4001), [math.sqrt(0.5)]])
    expected = np.array([math.log(v) for v in x])
    assert np.all(np.abs(natural_logarithm(x) - expected) <= 4.5e-16 * np.abs(expected))


def test_the_quantile_agrees_with_the_standard_librarys() -> None:
    p = np.concatenate([np.linspace(1e-6, 1 - 1e-6, 5001), 0.5 - np.logspace(-9, -0.5, 500), [2.0**-33, 1 - 2.0**-33]])
    q = p - 0.5
    expected = np.array([NormalDist().inv_cdf(v + 0.5) for v in q])
    assert np.max(np.abs(normal_quantile(q) - expected) / np.maximum(1e-300, np.abs(expected))) < 1e-12


def test_the_quantile_is_odd_bit_for_bit() -> None:
    q = centred(key_of(0, "odd"), 0, 4096)
    assert np.array_equal(normal_quantile(q), -normal_quantile(-q))


def test_the_span_of_two_deviations_is_the_error_function_of_root_two() -> None:
    assert math.isclose(SPAN_OF_TWO_DEVIATIONS, math.erf(math.sqrt(2)), rel_tol=1e-15)


def test_normal_values_are_the_quantiles_of_their_words() -> None:
    expected = [0.02 * NormalDist().inv_cdf(p) for p in probabilities(60_000)]
    assert np.all(np.abs(value("normal", 0.02).ravel() - expected) <= ROUNDING * np.abs(expected))


def test_normal_values_have_the_moments_and_quantiles_of_their_law() -> None:
    drawn = value("normal", 2.0).ravel() / 2.0
    n = drawn.size
    # Five standard errors of each estimate.
    assert abs(drawn.mean()) < 5 / math.sqrt(n)
    assert abs(drawn.std() - 1) < 5 / math.sqrt(2 * n)
    for p in (0.001, 0.05, 0.5, 0.9, 0.999):
        share = np.mean(drawn < NormalDist().inv_cdf(p))
        assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / n)


def test_truncated_normal_values_stay_within_two_deviations_and_follow_the_cut_law() -> None:
    drawn = value("trunc-normal", 0.5).ravel()
    assert np.max(np.abs(drawn)) <= 1.0
    low = NormalDist().cdf(-2)
    expected = [0.5 * NormalDist().inv_cdf(low + p * (1 - 2 * low)) for p in probabilities(1000)]
    assert np.allclose(drawn[:1000], expected, rtol=1e-6, atol=1e-9)


def test_uniform_values_are_their_words_between_the_bounds() -> None:
    drawn = value("uniform", -0.25, 0.75).ravel()
    expected = np.array([-0.25 + p for p in probabilities(drawn.size)])
    assert np.all(np.abs(drawn - expected) <= 2.0**-25)
    assert drawn.min() >= -0.25 and drawn.max() <= 0.75


def test_constants_are_constant() -> None:
    assert np.all(value("zeros") == 0) and np.all(value("ones") == 1) and np.all(value("constant", -2.5) == -2.5)
    assert initial_value(Initializer("ones"), (), 0, "scale").shape == ()


@pytest.mark.parametrize(
    ("shape", "convolution", "fan_in", "fan_out"),
    [((12, 7), False, 12, 7), ((2, 3, 5), False, 6, 5), ((8, 4, 3, 3), True, 36, 72), ((9,), False, 1, 9)],
)
def test_fans_follow_the_layout_of_the_weight(
    shape: tuple[int, ...], convolution: bool, fan_in: int, fan_out: int
) -> None:
    assert (fans(shape, convolution).fan_in, fans(shape, convolution).fan_out) == (fan_in, fan_out)


def test_kaiming_is_a_normal_law_of_deviation_root_two_over_fan_in() -> None:
    assert np.array_equal(value("kaiming"), value("normal", math.sqrt(2 / 200)))
    window = initial_value(Initializer("kaiming", convolution=True), (8, 4, 3, 3), 0, "w")
    assert np.array_equal(window, initial_value(Initializer("normal", (math.sqrt(2 / 36),)), (8, 4, 3, 3), 0, "w"))


def test_xavier_is_a_uniform_law_within_root_six_over_both_fans() -> None:
    bound = math.sqrt(6 / 500)
    drawn = value("xavier")
    assert np.max(np.abs(drawn)) <= bound * (1 + 1e-7)
    assert abs(drawn.std() - bound / math.sqrt(3)) < 0.01 * bound


@pytest.mark.parametrize("shape", [(64, 64), (40, 90), (90, 40), (3, 4, 10), (1, 1), (5,)])
def test_orthogonal_values_have_orthonormal_rows_or_columns(shape: tuple[int, ...]) -> None:
    matrix = value("orthogonal", shape=shape).reshape(-1, shape[-1])
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    assert np.max(np.abs(gram - np.eye(len(gram)))) < 1e-6


def test_an_orthogonal_convolution_has_orthonormal_filters() -> None:
    filters = initial_value(Initializer("orthogonal", convolution=True), (8, 4, 3, 3), 0, "w").reshape(8, 36)
    filters = filters.astype(np.float64)
    assert np.max(np.abs(filters @ filters.T - np.eye(8))) < 1e-6


def test_orthogonal_values_are_those_of_the_qr_decomposition_with_a_positive_diagonal() -> None:
    gaussian = value("normal", 1.0, shape=(30, 30))
    q, r = np.linalg.qr(gaussian.T)
    expected = (q * np.sign(np.diag(r))).T
    assert np.allclose(value("orthogonal", shape=(30, 30)), expected, atol=1e-6)


def test_a_fixed_sum_adds_every_term_once() -> None:
    for width in range(1, 40):
        terms = np.float64(2) ** np.arange(width)[None]
        assert fixed_sum(terms)[0] == 2.0**width - 1


def test_seed_and_name_change_every_value_and_a_longer_parameter_begins_alike() -> None:
    initializer = Initializer("normal", (1.0,))
    here = initial_value(initializer, (1000,), 0, "a")
    assert not np.any(here == initial_value(initializer, (1000,), 1, "a"))
    assert not np.any(here == initial_value(initializer, (1000,), 0, "b"))
    assert np.array_equal(here, initial_value(initializer, (70_001,), 0, "a")[:1000])


def test_threads_do_not_change_a_bit() -> None:
    alone, shared = (initial_value(Initializer("normal", (1.0,)), (3, 70_001), 0, "a", threads) for threads in (1, 3))
    assert alone.tobytes() == shared.tobytes()


PINNED = {
    ("normal", (0.02,)): "bc4cfbea bbfc0865 3cb6cd5d bc7ddeed bcd7e236 bd1eb859",
    ("trunc-normal", (0.02,)): "bc4271d9 bbf00649 3caa838e bc6feef4 bcc6f8c6 bd0872c9",
    ("uniform", (-1.0, 1.0)): "beefd1cc be9950de 3f3c476d bf0fbf60 bf4ff810 bf72834c",
    ("xavier", ()): "bf035ac4 bea7f2fb 3f4e3fd4 bf1d77b2 bf63d191 bf84d46c",
    ("kaiming", ()): "bf2024cf bec4e68f 3f8ed071 bf465629 bfa8a8ba bff8000b",
    ("orthogonal", ()): "beefca55 be9369fc 3f55d791 bf03810e bf2e341f bf05c66b",
}


@pytest.mark.parametrize(("kind", "arguments"), PINNED)
def test_the_bits_are_these_on_every_machine(kind: str, arguments: tuple[float, ...]) -> None:
    drawn = initial_value(Initializer(kind, arguments), (2, 3), 1337, "gpt.wte")
    assert drawn.astype(">f4").tobytes().hex(" ", 4) == PINNED[kind, arguments]


def test_each_initializer_says_how_many_arguments_it_takes() -> None:
    for kind, (_, count) in INITIALIZERS.items():
        assert initial_value(Initializer(kind, (0.5,) * count), (2, 2), 0, "w").shape == (2, 2)


NATIVE = [("normal", (0.02,)), ("trunc-normal", (0.02,)), ("uniform", (-0.3, 0.1)), ("xavier", ())]


@pytest.mark.parametrize("count", [LEAST_NATIVE, LEAST_NATIVE + 1, BLOCK + 1, 3 * BLOCK + 15, 1_000_003])
@pytest.mark.parametrize(("kind", "arguments"), NATIVE)
def test_native_code_draws_the_bits_of_numpy(kind: str, arguments: tuple[float, ...], count: int) -> None:
    initializer = Initializer(kind, arguments)
    expected = initial_value(initializer, (count,), 7, "w")
    for threads in (1, 2, 3):
        found = initial_value(initializer, (count,), 7, "w", normals=engine(threads).normals)
        assert found.dtype == np.float32
        assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_values_are_drawn_one_after_another_as_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    def draw(initializer: Initializer, shape: tuple[int, ...], seed: int, name: str, *more: object) -> object:
        drawn.append(name)
        return initial_value(initializer, shape, seed, name)

    monkeypatch.setattr(model, "initial_value", draw)
    experiment = load(Path(sexpgpu.__file__).parent / "examples" / "digits.sexp").elaborated
    names = [parameter.name for parameter in experiment.parameters]
    values = model.initial_parameters(experiment, 3, without=names[:1])
    assert drawn == [] and next(values)[0] == names[1] and drawn == names[1:2]
    assert [name for name, _ in values] == names[2:] and drawn == names[1:]
