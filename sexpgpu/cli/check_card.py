"""`sexpgpu check FILE --device cuda --card h100`: what that card would run, worked out without one."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from sexpgpu.cli.show_cuda import Programs, Shown, compiled_programs, kernel_table
from sexpgpu.cuda.cards import CARDS
from sexpgpu.cuda.cudnn_graphs import why_not_attention, why_not_product
from sexpgpu.cuda.epilogue import NO_EPILOGUE
from sexpgpu.cuda.kernels import Modules
from sexpgpu.cuda.model import Bounds, call_bounds
from sexpgpu.cuda.planned import PlannedCard, PlannedExecutable
from sexpgpu.errors import Error
from sexpgpu.plan.kernel import Attention, Product, repeated
from sexpgpu.settings import Settings
from sexpgpu.train.session import Session

NEVER_COMPARED = "model, never compared with this card"
# cuDNN's reasons are named up to so many.
REASONS = 4


def planned_card(name: str, settings: Settings) -> PlannedCard:
    """The card of a name. Raises E-RUN-007 where the run is not for cuda."""
    if not settings.device.startswith("cuda"):
        message = f"--card {name} plans for a CUDA card, and the device is {settings.device}"
        raise Error("E-RUN-007", message, notes=["add --device cuda"])
    return PlannedCard(CARDS[name], settings)


class CardReport:
    """What is added to the report of a check for a session that was prepared on a planned card."""

    def __init__(self, session: Session, card: PlannedCard) -> None:
        self.session, self.card = session, card
        step = session.step
        executables: dict[str, Any] = {"train": step.training, "update": step.update}
        executables |= {e.evaluation.loader: e.executable for e in session.evaluators}
        self.programs: Programs = {name: _program(made) for name, made in executables.items()}

    def kernels(self) -> tuple[list[Shown], Modules, list[str]]:
        """Every kernel, compiled for the card."""
        return compiled_programs(self.programs, self.card.arch.name, self.session.settings)

    def step_bounds(self) -> Bounds:
        train, update = (call_bounds(self.programs[name][1], self.card.card) for name in ("train", "update"))
        return train.times(self.session.microbatches) + update

    def text(self) -> str:
        table = kernel_table(f"kernels for {self.card.arch.name}", *self.kernels())
        return "\n\n".join([table, "\n".join(self.cudnn_lines()), self.step_line()])

    def step_line(self) -> str:
        bounds = self.step_bounds()
        parts = f"{1e3 * bounds.memory_s:.3g} ms bound by memory, {1e3 * bounds.arithmetic_s:.3g} ms by arithmetic"
        return f"step time: {1e3 * bounds.seconds:.3g} ms at least ({parts}; {NEVER_COMPARED})"

    def cudnn_lines(self) -> list[str]:
        """For how many launches cuDNN could be asked at all, and why not for the others. It is not asked here: it plans
        with a driver, and this version calls it in no run."""
        counts: Counter[tuple[str, str]] = Counter()
        for _, program in self.programs.values():
            for launch, times in repeated(program.plan.launches):
                if isinstance(launch, Attention):
                    # Attention is native in f32 alone.
                    counts["attention", why_not_attention(launch, "f32")] += times
                elif isinstance(launch, Product):
                    counts["product", why_not_product(launch, NO_EPILOGUE)] += times
        lines = [
            f"  {n} × {kind}: {reason or 'it could be asked'}" for (kind, reason), n in counts.most_common(REASONS)
        ]
        more = len(counts) - REASONS
        return ["cuDNN: not called by this version", *lines, *([f"  … and {more} more"] if more > 0 else [])]

    def facts(self) -> dict[str, object]:
        shown, _, _ = self.kernels()
        bounds = self.step_bounds()
        return {
            "card": {"name": self.card.card.name, "arch": self.card.arch.name, "free": self.card.free_bytes()},
            "kernels": [
                {"name": k.name, "uses": dict(k.uses), "what": k.where, "factor": k.launch.factor, **_takes(k)}
                for k in shown
            ],
            "model": {"step_seconds_at_least": bounds.seconds, **asdict(bounds), "note": NEVER_COMPARED},
        }


def _takes(kernel: Shown) -> dict[str, int]:
    takes = kernel.takes
    return {
        "registers": takes.registers,
        "spilled_bytes": takes.spill_load_bytes + takes.spill_store_bytes,
        "shared_bytes": takes.shared_bytes + kernel.launch.shared_bytes,
    }


def _program(made: object) -> tuple[Any, Any]:
    assert isinstance(made, PlannedExecutable)
    return made.graph, made.program
