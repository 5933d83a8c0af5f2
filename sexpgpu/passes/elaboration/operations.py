"""Every operation of the language by name, the constants, and the names whose value depends on the place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi

from sexpgpu.ir.types import DTYPES
from sexpgpu.passes.elaboration import elementwise, gradients, lists, modelling, products, scanning, shaping, sliding
from sexpgpu.passes.elaboration.machine import Machine
from sexpgpu.passes.elaboration.values import Builtin, DtypeName, Problem, Scalar, Value

_TABLES = (elementwise, shaping, products, sliding, lists, modelling, scanning, gradients)
BUILTINS: Mapping[str, Builtin] = {builtin.name: builtin for module in _TABLES for builtin in module.rows()}
CONSTANTS: Mapping[str, Value] = {"pi": pi, **{name: DtypeName(name) for name in DTYPES}}


def _host(name: str) -> Callable[[Machine], Value]:
    value = Scalar((name,))

    def read(m: Machine) -> Value:
        if not m.context.steps:
            raise Problem("E-NAME-001", f"{name} is known in optimizers, :loss and run options only")
        return value

    return read


def _training(m: Machine) -> Value:
    if m.context.training is None:
        raise Problem("E-NAME-001", "training is known in the expressions of runs, metrics, diagnostics and analyses only")
    return m.context.training


DYNAMIC: Mapping[str, Callable[[Machine], Value]] = {
    "step": _host("step"), "updates": _host("updates"), "total-steps": _host("total-steps"), "training": _training
}  # fmt: skip
