"""A kernel's instructions → steps for the scheduler; an unknown one faults when a thread comes to it."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulator import atomics, compare, convert, copies, floats, integers, matrix, moves, warp
from tests.simulator.dtypes import DTYPES, FLOATS, HALVES
from tests.simulator.form import Action, Form
from tests.simulator.machine import Machine
from tests.simulator.program import Kernel
from tests.simulator.report import Fault
from tests.simulator.schedule import Barrier, Guard, Step, arrive, branch, leave, table_branch
from tests.simulator.threads import Threads

BUILDERS: dict[str, Callable[[Form], Action]] = {
    **integers.BUILDERS,
    **convert.BUILDERS,
    **compare.BUILDERS,
    **moves.BUILDERS,
    **atomics.BUILDERS,
    **warp.BUILDERS,
    **matrix.BUILDERS,
    **copies.BUILDERS,
}
BY_TYPE = {
    **dict.fromkeys(FLOATS, floats.BUILDERS),
    **dict.fromkeys(HALVES, floats.HALF_BUILDERS),
    "f32x2": floats.PAIR_BUILDERS,
}


def decode(kernel: Kernel) -> list[Step]:
    steps = [decode_one(Form(kernel, instruction)) for instruction in kernel.code]
    return [*steps, Step(flow=leave(None))]


def decode_one(form: Form) -> Step:
    one = form.instruction
    guard = None if one.predicate is None else Guard(form.kernel.registers[one.predicate], one.negated)
    if one.opcode == "bra":
        return Step(flow=branch(guard, form.kernel.labels[form.text(0)]))
    if one.opcode == "brx" and guard is None:
        targets = [form.kernel.labels[name] for name in form.kernel.tables[form.text(1)]]
        return Step(flow=table_branch(form.source(0, "u32"), targets))
    if one.opcode in ("ret", "exit"):
        return Step(flow=leave(guard))
    if one.opcode in ("bar", "barrier") and not form.has("warp"):
        return decode_barrier(form, guard)
    action = build(form)
    return Step(action=action if guard is None else guarded(guard, action))


def build(form: Form) -> Action:
    opcode = form.instruction.opcode
    if opcode in ("bar", "barrier"):
        return synchronise_warp
    kind = form.types[-1] if form.types else ""
    builder = BY_TYPE.get(kind, {}).get(opcode)
    if builder is None and (opcode not in integers.BUILDERS or kind not in BY_TYPE):
        builder = BUILDERS.get(opcode)
    known = MODIFIERS.get(opcode)
    try:
        if builder is None or (known is not None and not {*form.modifiers} <= {*known.split(), *DTYPES}):
            raise form.unsupported()
        return builder(form)
    except Fault as fault:
        return failing(fault)


# What may follow an opcode besides its types, where it changes the result.
ROUNDED = "rn rz rm rp ftz sat"
MODIFIERS: dict[str, str] = {
    "add": f"{ROUNDED} cc",
    "sub": f"{ROUNDED} cc",
    "mul": f"{ROUNDED} lo hi wide",
    "mad": f"{ROUNDED} lo hi wide cc",
    "fma": f"{ROUNDED} relu",
    **dict.fromkeys(("addc", "subc"), "cc"),
    "madc": "lo hi cc",
    "div": f"{ROUNDED} approx full",
    **dict.fromkeys(("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"), f"{ROUNDED} approx"),
    **dict.fromkeys(("min", "max"), "ftz NaN xorsign abs"),
    **dict.fromkeys(("neg", "abs"), "ftz"),
    **dict.fromkeys(("rem", "sad", "and", "or", "xor", "not", "cnot", "shl", "shr", "lop3", "bfe", "bfi"), ""),
    **dict.fromkeys(("brev", "popc", "clz", "selp", "slct", "mov", "copysign", "dp4a"), ""),
    "dp2a": "lo hi",
    "bfind": "shiftamt",
    "shf": "l r wrap clamp",
    "prmt": " ".join(integers.SELECTORS),
    "cvt": f"{ROUNDED} rni rzi rmi rpi rna relu",
}


def failing(fault: Fault) -> Action:
    def fail(machine: Machine, threads: Threads) -> None:
        raise fault

    return fail


def guarded(guard: Guard, action: Action) -> Action:
    def run(machine: Machine, threads: Threads) -> None:
        holds = machine.spread(guard.holds(machine, threads), threads)
        if holds.all():
            action(machine, threads)
        elif holds.any():
            action(machine, threads.where(holds))

    return run


def synchronise_warp(machine: Machine, threads: Threads) -> None:
    """bar.warp.sync orders the memory accesses of a warp's lanes."""
    machine.warp_epoch[threads.pick] += 1


def decode_barrier(form: Form, guard: Guard | None) -> Step:
    """bar.sync a{, b} and bar.red.op d, a{, b}, c."""
    reduction = form.one_of("popc", "and", "or")
    places = list(range(form.count))
    result = vote = None
    if reduction:
        result, vote = form.target(places.pop(0)), form.source(places.pop(), "pred")
    if form.has("arrive") or not places:
        return Step(action=failing(form.unsupported()))
    number = form.source(places[0], "u32")
    count = form.source(places[1], "u32") if len(places) > 1 else None
    barrier = Barrier(number, count, reduction, vote, result)
    return Step(flow=arrive(guard, barrier), barrier=barrier)
