"""A few lines of PTX run on arrays: one thread for each element, operands loaded into registers by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.simulator import Memory, Outcome, load

# How a value of a type is declared and moved: half precision goes through registers of bits.
HELD = {
    "u8": ("b16", "u8", "u1"),
    "s8": ("b16", "s8", "i1"),
    "u16": ("b16", "u16", "u2"),
    "s16": ("b16", "s16", "i2"),
    "b16": ("b16", "b16", "u2"),
    "u32": ("b32", "u32", "u4"),
    "s32": ("b32", "s32", "i4"),
    "b32": ("b32", "b32", "u4"),
    "u64": ("b64", "u64", "u8"),
    "s64": ("b64", "s64", "i8"),
    "f32": ("f32", "f32", "f4"),
    "f64": ("f64", "f64", "f8"),
}
HEADER = ".version 9.0\n.target sm_90\n.address_size 64\n"


def kernel(body: str, declared: str = "", names: Sequence[str] = ()) -> str:
    """A kernel named `k` with an address for each name, in a register of that name with `_at` after it."""
    parameters = ", ".join(f".param .u64 p_{name}" for name in names)
    loads = "".join(f".reg .b64 %{name}_at; ld.param.u64 %{name}_at, [p_{name}];\n" for name in names)
    return f"{HEADER}.visible .entry k({parameters})\n{{\n{declared}\n{loads}{body}\nret;\n}}\n"


def evaluate(body: str, result: str, perturb: int | None = None, **operands: tuple[str, Any]) -> Any:
    """`body` computes %d, of type `result`, from registers named after the operands, (type, values) each.

    A result "pred" comes as bool. Everything runs in blocks of 32 threads; the values' length must be a multiple."""
    count = len(next(iter(operands.values()))[1])
    shown, memory = ("u32" if result == "pred" else result), Memory(1 << 22)
    declared = [f".reg .pred %t; .reg .b64 %o, %a; .reg .b32 %i, %n, %b; .reg .{HELD[shown][0]} %w;"]
    declared.append(f".reg .{'pred' if result == 'pred' else HELD[result][0]} %d;")
    lines = ["mov.u32 %i, %tid.x; mov.u32 %n, %ctaid.x; mad.lo.u32 %i, %n, 32, %i;"]
    addresses = []
    for name, (kind, values) in operands.items():
        register, moved, dtype = HELD[kind]
        declared.append(f".reg .{register} %{name};")
        lines.append(f"mul.wide.u32 %o, %i, {np.dtype(dtype).itemsize}; add.u64 %a, %{name}_at, %o;")
        lines.append(f"ld.global.{moved} %{name}, [%a];")
        addresses.append(memory.put(np.asarray(values, dtype)))
    lines.append(body)
    register, moved, dtype = HELD[shown]
    value = "%d"
    if result == "pred":
        lines.append("selp.u32 %w, 1, 0, %d;")
        value = "%w"
    size = np.dtype(dtype).itemsize
    lines.append(f"mul.wide.u32 %o, %i, {size}; add.u64 %a, %out_at, %o; st.global.{moved} [%a], {value};")
    addresses.append(memory.allocate(size * count))
    text = kernel("\n".join(lines), "\n".join(declared), [*operands, "out"])
    outcome = load(text).launch("k", (count // 32,), (32,), list(map(np.uint64, addresses)), memory, perturb=perturb)
    assert outcome.findings == []
    found = memory.read(addresses[-1], count, dtype)
    return found != 0 if result == "pred" else found


def launch(text: str, memory: Memory, *addresses: int, grid: int = 1, block: int = 32, **options: Any) -> Outcome:
    return load(text).launch("k", (grid,), (block,), [np.uint64(one) for one in addresses], memory, **options)
