"""Loaders that draw from others, and random fields: pure functions of seed and position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import sexpgpu
from sexpgpu.errors import Diagnostics, Error
from sexpgpu.loaderspec import Field, LoaderSpec
from sexpgpu.source import Source, Span
from sexpgpu.train.identity import loader_text
from sexpgpu.train.loader import Loader, header, open_loader

SPAN = Span(Source("a.sexp", "(mix)"), 0, 5)


def array(base: Path, name: str, values: Any, **options: Any) -> LoaderSpec:
    np.savez(base / f"{name}.npz", x=np.asarray(values))
    return LoaderSpec("arrays", (f"{name}.npz",), name=name, base=base, span=SPAN, **{"batch": 4, **options})


def two(base: Path, **options: Any) -> LoaderSpec:
    """Of 0 … 9 and 100 … 149, seven rows to three."""
    parts = ((array(base, "a", np.arange(10)), 0.7), (array(base, "b", np.arange(100, 150)), 0.3))
    return LoaderSpec("mix", (), name="m", span=SPAN, **{"parts": parts, "batch": 4, **options})


def rows(loader: Loader, steps: int, first: int = 1) -> list[int]:
    return [value for step in range(first, first + steps) for value in loader.batch(step, 0, 1)["x"].tolist()]


def test_each_thousand_rows_hold_the_shares_exactly(tmp_path: Path) -> None:
    loader = open_loader(two(tmp_path), 3, shuffled=True)
    for block in (0, 1, 5):
        drawn = rows(loader, 250, 1 + 250 * block)
        assert sum(value < 100 for value in drawn) == 700 and sum(value >= 100 for value in drawn) == 300


def test_the_shares_are_spread_over_the_rows_by_the_seed(tmp_path: Path) -> None:
    one, other = (rows(open_loader(two(tmp_path), seed, shuffled=False), 250) for seed in (3, 4))
    assert [value < 100 for value in one] != [value < 100 for value in other]
    for tenth in range(10):
        assert 40 < sum(value < 100 for value in one[100 * tenth : 100 * tenth + 100]) < 95


def test_every_loader_runs_through_its_own_epochs(tmp_path: Path) -> None:
    drawn = rows(open_loader(two(tmp_path), 3, shuffled=True), 500)
    first, second = ([v for v in drawn if v < 100], [v for v in drawn if v >= 100])
    for values, count in ((first, 10), (second, 50)):
        for epoch in range(len(values) // count):
            assert len(set(values[epoch * count : (epoch + 1) * count])) == count


def test_in_file_order_the_rows_of_each_loader_stay_in_order(tmp_path: Path) -> None:
    drawn = rows(open_loader(two(tmp_path), 3, shuffled=False), 100)
    assert [v for v in drawn if v >= 100][:50] == list(range(100, 150))
    assert [v for v in drawn if v < 100][:20] == [*range(10), *range(10)]


def test_a_batch_of_a_mix_is_a_function_of_its_position_alone(tmp_path: Path) -> None:
    place = two(tmp_path)
    forward = open_loader(place, 3, shuffled=True)
    seen = [forward.batch(step, m, 2)["x"].tolist() for step in range(1, 300) for m in range(2)]
    fresh = open_loader(place, 3, shuffled=True)
    for at in (597, 251, 250, 249, 0, 130):
        assert fresh.batch(at // 2 + 1, at % 2, 2)["x"].tolist() == seen[at]


def test_an_epoch_of_a_mix_is_as_many_rows_as_its_loaders_have(tmp_path: Path) -> None:
    assert header(two(tmp_path)).count == 60
    loader = open_loader(two(tmp_path, limit=10), 3, shuffled=False)
    portions = loader.passing()
    assert [portions.real(1, m) for m in range(portions.microbatches)] == [4, 4, 2]
    padded = loader.take(portions, 1, 2)["x"].tolist()
    assert padded[1] == padded[2] == padded[3]


def test_a_mix_of_mixes_draws_from_all(tmp_path: Path) -> None:
    inner = two(tmp_path)
    outer = replace(inner, name="o", parts=((inner, 0.5), (array(tmp_path, "c", np.arange(500, 520)), 0.5)))
    drawn = rows(open_loader(outer, 0, shuffled=True), 500)
    assert [sum(lo <= v < lo + 100 for v in drawn) for lo in (0, 100, 500)] == [700, 300, 1000]


def test_fields_that_do_not_agree_are_refused(tmp_path: Path) -> None:
    other = array(tmp_path, "c", np.zeros((5, 2)))
    with pytest.raises(Error) as caught:
        header(two(tmp_path, parts=((array(tmp_path, "a", np.arange(10)), 0.7), (other, 0.3))))
    assert caught.value.code == "E-DATA-006" and caught.value.span is SPAN
    assert caught.value.message == "the fields of c are x f32[4, 2], those of a x i64[4]"


def test_a_share_below_a_row_in_a_thousand_is_refused(tmp_path: Path) -> None:
    parts = ((array(tmp_path, "a", np.arange(10)), 1.0), (array(tmp_path, "b", np.arange(10)), 1e-6))
    with pytest.raises(Error) as caught:
        header(two(tmp_path, parts=parts))
    assert caught.value.code == "E-DATA-007" and "share of b" in caught.value.message


def test_the_identity_of_a_mix_is_of_its_contents_and_shares(tmp_path: Path) -> None:
    place = two(tmp_path)
    known = open_loader(place, 0, True).identity()
    assert known == open_loader(place, 1, False).identity()
    assert known != open_loader(replace(place, parts=((place.parts[0][0], 0.6), place.parts[1])), 0, True).identity()
    (tmp_path / "there").mkdir()
    assert loader_text(place) == loader_text(two(tmp_path / "there"))


# In files


def mixed(folder: Path, text: str) -> Any:
    for name in ("a", "b"):
        array(folder, name, np.arange(20))
    (folder / "e.sexp").write_text(f"""
      (defloader a (arrays "a.npz" :batch 4))
      (defloader b (arrays "b.npz" :batch 4))
      {text}
      (defrun go :data m :optimizer (sgd) :steps 2 :loss (mse (* (cast x f32) (param "w" [1] ones)) 0))
    """)
    return sexpgpu.load(folder / "e.sexp")


def test_a_mix_is_trained_on_and_has_a_batch_of_its_own(tmp_path: Path) -> None:
    experiment = mixed(tmp_path, "(defloader m (mix (a 0.7) (b 0.3) :batch 6))")
    assert experiment.elaborated.headers["m"].fields["x"].shape == (6,)
    drawn = open_loader(experiment.elaborated.loaders["m"], 5, True).batch(1, 0, 1)["x"].astype(float)
    trainer = experiment.trainer(device="cpu", seed=5)
    assert trainer.step().loss == pytest.approx(np.mean(drawn**2), rel=1e-6)


def test_the_batch_of_a_mix_reaches_mixes_and_synthetic_fields_in_it(tmp_path: Path) -> None:
    text = "(defloader s (synthetic :x (i64 [4] 9))) (defloader t (mix (a 1) (s 1))) (defloader m (mix (t 1) (b 1) :batch 3))"
    assert mixed(tmp_path, text).elaborated.headers["m"].fields["x"] == Field("i64", (3,))


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("(defloader m (mix (a 0.7) (m 0.3)))", "E-DATA-007", "m draws from itself"),
        ("(defloader m (mix (a 0.7) (c 0.3)))", "E-NAME-001", "no loader c"),
        ("(defloader m (mix (a 0.7) (b 0)))", "E-DATA-007", "weight of b is 0"),
        ("(defloader m (mix a b))", "E-SYN-001", "(LOADER WEIGHT)"),
        ("(defloader m (mix))", "E-SYN-001", "(LOADER WEIGHT)"),
        ("(defloader m (mix (a 0.7) (b 0.3) :seq 4))", "E-RUN-002", "no key :seq"),
        ("(defloader m (synthetic :x f32))", "E-SYN-001", "(DTYPE [batch …])"),
        ("(defloader m (synthetic :x (f33 [4])))", "E-SYN-001", "(DTYPE [batch …])"),
        ("(defloader m (synthetic :x (f32 [])))", "E-SHAPE-003", "at least 1"),
        ("(defloader m (synthetic :x (f32 [4 99999999999999])))", "E-SHAPE-005", "2^48 or more"),
        ("(defloader m (synthetic :x (i32 [4] 0)))", "E-DATA-007", "below 0"),
        ("(defloader m (synthetic))", "E-DATA-007", "needs a field"),
        ("(defloader m (synthetic 4 :x (f32 [4])))", "E-SYN-001", "takes fields"),
        ("(defloader m (synthetic :x (f32 [4]) :y (f32 [5])))", "E-DATA-006", "x 4, y 5"),
    ],
)
def test_a_wrong_mix_or_synthetic_field_is_refused(tmp_path: Path, text: str, code: str, words: str) -> None:
    with pytest.raises(Diagnostics) as caught:
        mixed(tmp_path, text)
    assert code in {error.code for error in caught.value.errors}
    assert any(words in error.message for error in caught.value.errors)


# Random fields


def synthetic(**options: Any) -> LoaderSpec:
    declared = (
        ("x", Field("f32", (64, 5, 3)), 256), ("y", Field("i32", (64,)), 10), ("c", Field("bool", (64, 2)), 256),
        ("h", Field("bf16", (64,)), 256), ("u", Field("u8", (64,)), 256),
    )  # fmt: skip
    return LoaderSpec("synthetic", (), batch=64, span=SPAN, declared=declared, **options)


def test_synthetic_fields_have_their_dtype_shape_and_range() -> None:
    loader = open_loader(synthetic(), 0, shuffled=True)
    batch = loader.batch(1, 0, 1)
    assert {name: (array.dtype.name, array.shape) for name, array in batch.items()} == {
        "x": ("float32", (64, 5, 3)), "y": ("int32", (64,)), "c": ("bool", (64, 2)), "h": ("bfloat16", (64,)),
        "u": ("uint8", (64,)),
    }  # fmt: skip
    x = batch["x"].astype(np.float64)
    # Uniform in [−1, 1): mean 0 ± 4 · √(1/3 / 960), variance 1/3.
    assert -1 <= x.min() < x.max() < 1 and abs(x.mean()) < 0.075 and abs(x.var() - 1 / 3) < 0.05
    assert set(batch["y"].tolist()) == set(range(10)) and batch["u"].max() > 200
    assert 0.3 < batch["c"].mean() < 0.7


def test_a_synthetic_example_is_the_same_wherever_it_is_read() -> None:
    first = open_loader(synthetic(), 0, shuffled=False).batch(2, 0, 1)["x"]
    assert np.array_equal(open_loader(synthetic(), 9, shuffled=False).batch(1, 1, 2)["x"], first)
    assert len(np.unique(first.reshape(64, -1), axis=0)) == 64


def test_limit_and_split_hold_for_synthetic_fields() -> None:
    assert header(synthetic(limit=100)).count == 100
    parts = [header(synthetic(split=(("a", 0.75), ("b", 0.25)), part=part)).count for part in ("a", "b")]
    assert parts == [3 << 18, 1 << 18]


def test_synthetic_fields_are_declared_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "e.sexp").write_text("""
      (defhyper batch 8)
      (defloader d (synthetic :tokens (i32 [batch 16] 50) :targets (i32 [batch 16] 50) :limit 64))
      (defrun go :data d :optimizer (sgd) :epochs 1
        :loss (cross-entropy (linear (one-hot tokens 50) 50) targets))
    """)
    experiment = sexpgpu.load(tmp_path / "e.sexp").elaborated
    assert experiment.headers["d"].count == 64
    assert dict(experiment.headers["d"].fields)["tokens"] == Field("i32", (8, 16))
