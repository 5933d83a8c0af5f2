"""A plan executed to the letter in NumPy: every launch through its strides on byte buffers. The planner's oracle.

Memory of the arena is filled with NaN before each run, and every place is checked against its buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sexpgpu.ir.host import evaluate as evaluate_host
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.ops.table import OPS
from sexpgpu.plan.kernel import Access, Attention, Generated, Indexed, Matrix, Place, Plan, Product
from sexpgpu.randomness import key_of, uniform_f32, words_of

Array = np.ndarray


def run_plan(
    plan: Plan, inputs: Mapping[str, Any], hosts: Mapping[str, float] | None = None, seed: int = 0
) -> dict[str, Array]:
    """The outputs by name; `inputs` by external buffer name. External buffers that the plan writes are copies."""
    oracle = _Oracle(plan, inputs, hosts or {}, seed)
    with np.errstate(all="ignore"):
        for launch in plan.launches:
            oracle.launch(launch)
    return {name: oracle.whole(place, type_.dtype, type_.shape) for name, (place, type_) in plan.outputs.items()}


class _Oracle:
    def __init__(self, plan: Plan, inputs: Mapping[str, Any], hosts: Mapping[str, float], seed: int) -> None:
        self.plan = plan
        self.arena = np.full(plan.arena_bytes, 0xFF, np.uint8)
        self.memory: list[Array] = []
        for buffer in plan.buffers:
            if buffer.kind == "arena":
                assert buffer.offset + buffer.size_bytes <= plan.arena_bytes
                self.memory.append(self.arena[buffer.offset : buffer.offset + buffer.size_bytes])
            elif buffer.kind == "external":
                type_ = plan.externals[buffer.name]
                given = inputs.get(buffer.name, np.zeros(type_.shape))
                array = np.array(given, numpy_dtype(type_.dtype))
                assert array.shape == type_.shape, (buffer.name, array.shape, type_)
                self.memory.append(array.copy().reshape(-1).view(np.uint8))
            else:
                self.memory.append(np.zeros(buffer.size_bytes, np.uint8))
        for expression, place in plan.hosts:
            self.strided(place, "f32", (), ())[...] = evaluate_host(expression, hosts)
        for path, ordinal, place in plan.randoms:
            self.strided(place, "u32", (2,), (1,))[...] = key_of(seed, path, ordinal)

    def strided(self, place: Place, dtype: str, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        kind = numpy_dtype(dtype)
        data = self.memory[place.buffer]
        low = place.offset + sum((n - 1) * s * kind.itemsize for n, s in zip(sizes, strides, strict=True) if s < 0 and n)
        high = place.offset + sum((n - 1) * s * kind.itemsize for n, s in zip(sizes, strides, strict=True) if s > 0 and n)
        if all(sizes):
            assert low >= 0 and high + kind.itemsize <= data.nbytes, (place, sizes, strides, data.nbytes)
        steps = tuple(s * kind.itemsize for s in strides)
        return np.ndarray(sizes, kind, data, place.offset, steps)  # type: ignore[no-any-return]

    def whole(self, place: Place, dtype: str, shape: tuple[int, ...]) -> Array:
        count = int(np.prod(shape, dtype=int))
        return self.strided(place, dtype, (count,), (1,)).reshape(shape).copy()

    def launch(self, launch: Any) -> None:
        if isinstance(launch, Generated):
            self.generated(launch)
        elif isinstance(launch, Product):
            self.product(launch)
        elif isinstance(launch, Attention):
            self.attention(launch)
        else:
            self.indexed(launch)

    def operand(self, access: Access, dtype: str, kind: str, sizes: tuple[int, ...]) -> Array:
        if kind == "index":
            made = np.full(sizes, access.start, np.int64)
            for axis, (n, step) in enumerate(zip(sizes, access.strides, strict=True)):
                along = [1] * len(sizes)
                along[axis] = n
                made = made + (np.arange(n) * step).reshape(along)
            return made
        assert access.place is not None
        return self.strided(access.place, dtype, sizes, access.strides)

    def generated(self, launch: Generated) -> None:
        program, sizes = launch.program, launch.sizes
        assert program.rank == len(sizes)
        reduced = {"row": -1, "column": -2, "map": 0}[program.kind]
        values: list[Array] = []
        for load, access in zip(program.loads, launch.loads, strict=True):
            step = access.strides[-1]
            assert load.inner == ("zero" if step == 0 else "one" if step == 1 else "any")
            values.append(np.array(self.operand(access, load.dtype, load.kind, sizes)))
        for instruction in program.body:
            operands = [values[a] for a in instruction.arguments]
            values.append(self.instruction(instruction, operands, sizes, reduced))
        for store, access in zip(program.stores, launch.stores, strict=True):
            assert access.place is not None
            kept = list(sizes)
            if program.kind == "column" or (program.kind == "row" and access.strides[-1] == 0):
                kept[reduced] = 1
            value = np.broadcast_to(values[store.value], sizes)[tuple(slice(0, n) for n in kept)]
            self.strided(access.place, store.dtype, tuple(kept), access.strides)[...] = value

    def instruction(self, instruction: Any, operands: list[Array], sizes: tuple[int, ...], reduced: int) -> Array:
        dtype = numpy_dtype(instruction.dtype)
        if instruction.op == "constant":
            return np.full((), dict(instruction.attributes)["value"], dtype)
        if instruction.op.startswith("reduce_"):
            full = np.broadcast_to(operands[0], sizes)
            made = OPS[instruction.op[7:]].run(full, axes=(reduced % len(sizes),))
            return np.expand_dims(np.asarray(made, dtype), reduced)
        if instruction.op == "random":
            element, key0, key1, scan, microbatch, step = operands
            key = (int(key0.flat[0]), int(key1.flat[0]))
            counters = (int(a.flat[0]) for a in (scan, microbatch, step))
            words = words_of(key, int(element.max()) + 1 if element.size else 0, *counters)
            return uniform_f32(words)[element]
        if instruction.op == "cast":
            return np.asarray(OPS["cast"].run(operands[0], dtype=instruction.dtype), dtype)
        return np.asarray(OPS[instruction.op].run(*operands), dtype)

    def matrix(self, place: Place, dtype: str, matrix: Matrix, rows: int, columns: int) -> Array:
        """A matrix; with loops, every axis of which it is made turns by itself."""
        turns = [*(matrix.rows or ((rows, matrix.row),)), *(matrix.columns or ((columns, matrix.column),))]
        return self.strided(place, dtype, tuple(n for n, _ in turns), tuple(step for _, step in turns)).reshape(rows, columns)

    def product(self, launch: Product) -> None:
        a, b, c = launch.a, launch.b, launch.c
        for z in range(len(c.starts)):
            item = numpy_dtype(launch.dtype).itemsize
            at = [Place(x.place.buffer, x.place.offset + x.starts[z] * item) for x in (a, b, c)]
            left = self.matrix(at[0], launch.dtype, a, launch.m, launch.k)
            right = self.matrix(at[1], launch.dtype, b, launch.k, launch.n)
            assert a.has_loops or a.row == 1 or a.column == 1 or 1 in (launch.m, launch.k), launch
            into = self.strided(at[2], launch.dtype, (launch.m, launch.n), (c.row, c.column))
            into[...] = into + left @ right if launch.accumulate else left @ right

    def attention(self, launch: Attention) -> None:
        """By the whole matrix of scores, in float32."""
        heads, served = (launch.batch, launch.heads), (launch.batch, launch.heads // launch.group)
        of_rows, of_columns = (*heads, launch.rows), (*served, launch.columns)
        d, e = launch.width, launch.value_width
        shapes = [(*of_rows, d), (*of_columns, d), (*of_columns, e), (*of_rows, e), of_rows, (*of_rows, e)]
        floats = launch.loads[:-1] if launch.masked else launch.loads
        read = [self.rows(access, shape) for access, shape in zip(floats, shapes, strict=False)]
        q, k, v = read[0], np.repeat(read[1], launch.group, 1), np.repeat(read[2], launch.group, 1)
        seen = np.ones((launch.rows, launch.columns), bool)
        if launch.causal:
            seen = np.tril(seen)
        if launch.masked:
            mask = launch.loads[-1]
            assert mask.place is not None
            seen = seen & self.strided(mask.place, "bool", (*of_rows, launch.columns), mask.strides)
        scores = np.where(seen, np.float32(launch.scale) * (q @ np.swapaxes(k, -1, -2)), np.float32(-np.inf))
        if not launch.backward:
            largest = scores.max(-1, keepdims=True)
            shift = np.where(np.isfinite(largest), largest, 0)
            e_scores = np.exp(scores - shift)
            total = e_scores.sum(-1, keepdims=True)
            results = [(e_scores / total) @ v, (shift + np.log(total))[..., 0]]
        else:
            out, lse, dout = read[3:]
            p = np.exp(scores - lse[..., None])
            slope = p * (dout @ np.swapaxes(v, -1, -2) - (dout * out).sum(-1, keepdims=True))
            slope = np.where(seen, slope, 0) * np.float32(launch.scale)
            each = [np.swapaxes(slope, -1, -2) @ q, np.swapaxes(p, -1, -2) @ dout]
            split = (*served, launch.group, launch.columns)
            results = [slope @ k, *(x.reshape(*split, x.shape[-1]).sum(2) for x in each)]
        for access, value in zip(launch.stores, results, strict=False):
            self.rows(access, value.shape)[...] = value

    def rows(self, access: Access, shape: tuple[int, ...]) -> Array:
        assert access.place is not None
        return self.strided(access.place, "f32", shape, (*access.strides, 1)[: len(shape)])

    def indexed(self, launch: Indexed) -> None:
        outer, size, count, inner = launch.outer, launch.size, launch.count, launch.inner

        def full(place: Place, dtype: str, *shape: int) -> Array:
            return self.strided(place, dtype, (int(np.prod(shape, dtype=int)),), (1,)).reshape(shape)

        if launch.op in ("cumsum", "argsort"):
            x = full(launch.inputs[0], launch.dtype, outer, size, inner)
            attributes = {"axis": 1} | ({"descending": launch.descending} if launch.op == "argsort" else {})
            dtype = "i32" if launch.op == "argsort" else launch.dtype
            full(launch.out, dtype, outer, size, inner)[...] = OPS[launch.op].run(x, **attributes)
            return
        adds = launch.op in ("scatter_add", "gather_add")
        shape = (outer, count, inner) if launch.op.startswith("gather") else (count,)
        indices = full(launch.inputs[0 if adds else 1], launch.index_dtype, *shape)
        out = full(launch.out, launch.dtype, *((outer, size, inner) if adds else (outer, count, inner)))
        if adds:
            updates = full(launch.inputs[1], launch.dtype, outer, count, inner)
            out[...] = OPS[launch.op].run(out, indices, updates, axis=1)
        else:
            x = full(launch.inputs[0], launch.dtype, outer, size, inner)
            out[...] = OPS[launch.op].run(x, indices, axis=1)
