"""examples/gradient-penalty.sexp against figures of PyTorch's double backward (scripts/record_gradient_penalty)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import sexpgpu

EXAMPLE = Path(sexpgpu.__file__).parent / "examples" / "gradient-penalty.sexp"
RECORDED = dict(np.load(Path(__file__).parent / "data" / "pytorch" / "gradient-penalty.npz", allow_pickle=False).items())
BATCH = 8
# Of losses and parameters, after ten steps in f32 on both sides.
LOSS, PARAMETER = 2e-5, 2e-5


def given_draws(folder: Path) -> Path:
    """The example with the fakes and the shares of the points between as fields, so that they are the recorded ones."""
    text = EXAMPLE.read_text(encoding="utf-8")
    loss = "(critic-loss x (fakes x) (random-uniform [batch 1]))"
    loaders = [f'(builtin "digits" :batch batch :split (train 0.8 val 0.2) :part {part})' for part in ("train", "val")]
    assert all(text.count(part) == 1 for part in (loss, *loaders))
    text = text.replace(loss, "(critic-loss x fake share)")
    for loader in loaders:
        text = text.replace(loader, '(arrays "given.npz" :batch batch)')
    np.savez(folder / "given.npz", **{name: RECORDED[name] for name in ("x", "fake", "share")})
    path = folder / "given.sexp"
    path.write_text(text, encoding="utf-8")
    return path


def batch(step: int, microbatch: int) -> dict[str, np.ndarray]:
    rows = slice((step - 1) * BATCH, step * BATCH)
    return {name: RECORDED[name][rows] for name in ("x", "fake", "share")}


def test_the_critic_has_the_losses_and_parameters_of_pytorch(tmp_path: Path) -> None:
    experiment = sexpgpu.load(given_draws(tmp_path), set={"hidden": 16, "batch": BATCH})
    initial = {name.removeprefix("initial "): a for name, a in RECORDED.items() if name.startswith("initial ")}
    trainer = experiment.trainer(device="cpu", batches=batch, parameters=initial)
    losses = [trainer.step().loss for _ in RECORDED["loss"]]
    np.testing.assert_allclose(losses, RECORDED["loss64"], rtol=LOSS)
    np.testing.assert_allclose(losses, RECORDED["loss"], rtol=LOSS)
    for name, value in trainer.parameters.items():
        np.testing.assert_allclose(value, RECORDED[f"trained {name}"], rtol=0, atol=PARAMETER, err_msg=name)
