"""Optimizers: the prelude's make the steps of PyTorch's own (scripts/record_optimizers), and so do a user's file's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from elaborated import experiment, parameter, updated
from elaborating import LOADER, elaborated, errors_of, run_of
from meaning import adam

import sexpgpu
from sexpgpu.passes.experiment import Experiment
from tests.fake_cuda import A100, FakeCuda
from tests.on_fake_cuda import install, nothing_wrong

FIGURES = Path(__file__).parent / "data" / "pytorch" / "optimizers.npz"
RECORDED = dict(np.load(FIGURES, allow_pickle=False).items())
CASES = [name for name in RECORDED if name.startswith("(")]


def made_of(case: str, folder: Path) -> tuple[Experiment, np.ndarray, np.ndarray, np.ndarray]:
    """The experiment that has the case's parameter, where it starts, its gradients, and where PyTorch's steps led."""
    expression, _, shape = case.rpartition(" ")
    start = RECORDED[f"parameter {shape}"]
    declared = parameter("p", start)
    if start.ndim == 4:
        declared = declared.replace("zeros)", "zeros :convolution true)")
    made = experiment(folder, {"other": np.zeros(1)}, f"(sum {declared})", optimizer=expression)
    return made, start, RECORDED[f"gradients {shape}"], RECORDED[case]


@pytest.mark.parametrize("case", CASES)
def test_an_optimizer_makes_the_steps_of_pytorch(case: str, tmp_path: Path) -> None:
    made, start, gradients, expected = made_of(case, tmp_path)
    values = {"parameter:p": start}
    for update, (gradient, wanted) in enumerate(zip(gradients, expected, strict=True), 1):
        values = updated(made, {**values, "gradient:p": gradient}, {"updates": update})
        np.testing.assert_allclose(values["parameter:p"], wanted, rtol=1e-11, atol=1e-13)


def all_in_one(folder: Path, cases: Sequence[str]) -> Path:
    """A run with a parameter for each case, its gradient a field of the data, its optimizer chosen by its name."""
    terms, choices, fields = [], [], {}
    for k, case in enumerate(cases):
        expression, _, shape = case.rpartition(" ")
        start = RECORDED[f"parameter {shape}"]
        fields[f"g{k}"] = start[None].astype(np.float32)
        start_of = "zeros :convolution true" if start.ndim == 4 else "zeros"
        terms.append(f"(sum (* g{k} {parameter(f'p{k}', start).replace('zeros', start_of)}))")
        choices.append(f'("p{k}" {expression})')
    np.savez(folder / "gradients.npz", **fields)
    path = folder / "all.sexp"
    path.write_text(
        '(defloader gradients (arrays "gradients.npz" :batch 1))\n'
        f"(defrun all :data gradients :loss (+ {' '.join(terms)})\n"
        f"  :optimizer (by-name {' '.join(choices)} (else (sgd))) :steps 5)\n"
    )
    return path


def distances(device: str, folder: Path, cases: Sequence[str]) -> tuple[dict[str, float], sexpgpu.api.Trainer]:
    """By case the largest difference from PyTorch's parameter after any step, relative to the largest number."""
    shapes = {f"{k}": case.rpartition(" ")[2] for k, case in enumerate(cases)}
    starts = {f"p{k}": RECORDED[f"parameter {shape}"].astype(np.float32) for k, shape in shapes.items()}
    gradients = {f"g{k}": RECORDED[f"gradients {shape}"].astype(np.float32) for k, shape in shapes.items()}
    batches = [{name: array[step : step + 1] for name, array in gradients.items()} for step in range(5)]
    trainer = sexpgpu.load(all_in_one(folder, cases)).trainer(device=device, batches=batches, parameters=starts)
    found = dict.fromkeys(cases, 0.0)
    for step in range(5):
        trainer.step()
        parameters = trainer.parameters
        for k, case in enumerate(cases):
            wanted = RECORDED[case][step]
            error = np.max(np.abs(parameters[f"p{k}"] - wanted)) / np.max(np.abs(wanted))
            found[case] = max(found[case], float(error))
    return found, trainer


def test_in_f32_on_the_cpu_the_steps_are_those_of_pytorch(tmp_path: Path) -> None:
    found, _ = distances("cpu", tmp_path, CASES)
    # Five steps of some f32 operations each, relative to a number that is rounded to 6e-8.
    assert max(found.values()) < 1e-6, found


def test_on_the_simulated_card_the_steps_are_those_of_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEXPGPU_PRODUCTS", "own")
    driver = FakeCuda(A100, order="lazy")
    install(driver, monkeypatch)
    one_of_each = {case.rpartition(" ")[0]: case for case in CASES}
    found, trainer = distances("cuda", tmp_path, list(one_of_each.values()))
    assert max(found.values()) < 1e-6, found
    trainer._session.device.close()
    assert nothing_wrong(driver)


# An optimizer of a user's file: adam with two lists in one state, and sgd for what has no two axes.
MINE = """(defoptimizer mine (p g &key (lr 0.01) (betas [0.9 0.999]) (eps 1e-8))
  (if (< (rank p) 2)
    (sgd p g :lr 0.1 :momentum 0.9 :nesterov true :decay 0.05)
    (let* ((mix (fn (old new beta) (+ (* beta old) (* (- 1 beta) new))))
           (shape2 (append [2] (shape p))))
      (state both (zeros shape2))
      (let* ((m (mix (squeeze (slice both [0] [1]) 0) g (nth betas 0)))
             (v (mix (squeeze (slice both [1] [2]) 0) (square g) (nth betas 1)))
             (mh (/ m (- 1 (pow (nth betas 0) updates))))
             (vh (/ v (- 1 (pow (nth betas 1) updates)))))
        (update both (stack [m v]))
        (- p (* lr (/ mh (+ (sqrt vh) eps))))))))"""


@pytest.mark.parametrize(
    "shape, like", [("3x7", "(adam :lr 0.01)"), ("7", "(sgd :lr 0.1 :momentum 0.9 :nesterov true :decay 0.05)")]
)
def test_an_optimizer_of_the_users_file_makes_the_same_steps(shape: str, like: str) -> None:
    start = RECORDED[f"parameter {shape}"]
    made = elaborated(run_of(f"(+ x (sum {parameter('p', start)}))", MINE, optimizer="(mine)"))
    values = {"parameter:p": start}
    for update, (gradient, wanted) in enumerate(zip(RECORDED[f"gradients {shape}"], RECORDED[f"{like} {shape}"]), 1):
        values = updated(made, {**values, "gradient:p": gradient}, {"updates": update})
        np.testing.assert_allclose(values["parameter:p"], wanted, rtol=1e-11, atol=1e-13)


def test_adafactor_keeps_a_number_for_each_row_and_each_column() -> None:
    made = elaborated(run_of('(+ x (sum (param "w" [5 64] zeros)))', optimizer="(adafactor)"))
    assert {(s.name, s.shape) for s in made.states} == {("rows", (5, 1)), ("columns", (1, 64))}


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        (":relative false :scale false", 0.03 * 4),
        (":relative false", 0.03 * 4 * 2.0),
        (":scale false", 0.03 * 4),
        (":lr (* lr step) :eps [1e-30 5] :relative false", 0.03 * 4 * 5.0),
        (":lr 7 :scale false", 1 / 2),
    ],
)
def test_adafactors_steps_are_relative_and_scaled_only_if_asked(options: str, rate: float) -> None:
    """Of a vector whose gradient never changed the update is its sign; the parameter's root mean square is 2."""
    start, gradient = np.array([2.0, -2.0, 2.0]), np.array([0.5, -3.0, 0.1])
    lr = "" if ":lr" in options else ":lr (* lr step)"
    text = run_of(f"(+ x (sum {parameter('p', start)}))", "(defhyper lr 0.03)", optimizer=f"(adafactor {lr} {options})")
    values = {"parameter:p": start, "gradient:p": gradient, "state:p:v": gradient**2}
    after = updated(elaborated(text), values, {"updates": 4, "step": 4})["parameter:p"]
    np.testing.assert_allclose(after, start - rate * np.sign(gradient), rtol=1e-12)


def test_adafactor_leaves_rows_and_columns_that_never_had_a_gradient(tmp_path: Path) -> None:
    """In f32: products of two of the least moments would be 0, and 0/0 no number."""
    loss = '(sum (* g (param "p" [4 3] ones)))'
    np.savez(tmp_path / "g.npz", g=np.zeros((1, 4, 3), np.float32))
    path = tmp_path / "dead.sexp"
    path.write_text(
        f'(defloader d (arrays "g.npz" :batch 1))\n(defrun r :data d :steps 9 :optimizer (adafactor) :loss {loss})'
    )
    gradient = np.zeros((1, 4, 3), np.float32)
    gradient[0, :2, :2] = [[1e4, -1e-4], [3e3, 2.0]]
    trainer = sexpgpu.load(path).trainer(device="cpu", batches=lambda step, microbatch: {"g": gradient * (step > 2)})
    for _ in range(9):
        trainer.step()
    after = trainer.parameters["p"]
    assert np.isfinite(after).all()
    assert (after[2:] == 1).all() and (after[:, 2] == 1).all() and (after[:2, :2] != 1).all()


def test_muon_trains_what_is_no_matrix_by_adam() -> None:
    start, gradients = RECORDED["parameter 7"], RECORDED["gradients 7"]
    made = elaborated(run_of(f"(+ x (sum {parameter('p', start)}))", optimizer="(muon :lr 9 :vector-lr 0.03)"))
    values = {"parameter:p": start}
    for update, (gradient, wanted) in enumerate(zip(gradients, adam(start, gradients, lr=0.03, betas=(0.9, 0.95))), 1):
        values = updated(made, {**values, "gradient:p": gradient}, {"updates": update})
        np.testing.assert_allclose(values["parameter:p"], wanted, rtol=1e-11, atol=1e-13)


def test_muon_turns_each_matrix_of_a_stack_by_its_own_singular_vectors() -> None:
    """The quintic acts on singular values alone: p − lr · √(out/in) · U f⁵(S/‖S‖) Vᵀ, by NumPy's decomposition."""
    random = np.random.default_rng(8)
    start, gradient = random.normal(size=(2, 3, 7)), random.normal(size=(2, 3, 7))
    made = elaborated(run_of(f"(+ x (sum {parameter('p', start)}))", optimizer="(muon)"))
    after = updated(made, {"parameter:p": start, "gradient:p": gradient}, {"updates": 1})["parameter:p"]
    u, s, v = np.linalg.svd(gradient, full_matrices=False)
    s /= np.linalg.norm(s, axis=-1, keepdims=True)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    np.testing.assert_allclose(after, start - 0.02 * np.sqrt(7 / 3) * (u * s[:, None]) @ v, rtol=1e-11, atol=1e-13)


def test_an_optimizer_is_called_with_parameter_and_gradient_in_optimizers_alone() -> None:
    (error,) = errors_of(f"{LOADER}\n(defun f (p g) (sgd p g))\n" + run_of("(f x x)", loader="").strip())
    assert error.code == "E-SYN-002" and error.message == "sgd takes keywords only"
