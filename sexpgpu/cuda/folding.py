"""Kernels that a product's call does on the way: adding a bias to its result, summing the columns of its right operand.

A plan's product and kernel become one call, at the product's place in the plan, where that changes no value: the kernel is
nothing but the sum, in f32, which it may round to the dtype of the operands; nobody else reads what the product alone
would give; nothing between the two touches what the call writes at another time than the plan has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from msgspec.structs import replace

from sexpgpu.cuda.epilogue import Epilogue
from sexpgpu.ir.types import SIZES
from sexpgpu.plan.kernel import Access, Generated, Kernel, Loop, Place, Plan, Product, flattened, places_of

# Begin and end of memory: of the arena (name '') or of a buffer bound from outside.
_Span = tuple[str, int, int]


@dataclass(frozen=True)
class Fold:
    """A product as it is called, and the number of the kernel that it does."""

    product: Product
    epilogue: Epilogue
    kernel: int


def folds(plan: Plan) -> Mapping[int, Fold]:
    """By the products' numbers; none inside loops."""
    found = _Folds(plan)
    made: dict[int, Fold] = {}
    taken: set[int] = set()
    for number, launch in found.launches.items():
        if isinstance(launch, Product) and not launch.accumulate and len(launch.c.starts) == 1:
            fold = found.bias(number, launch) or found.gradient(number, launch)
            if fold is not None and fold.kernel not in taken:
                taken.add(fold.kernel)
                made[number] = fold
    return made


class _Folds:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.launches = dict(_numbered(plan))
        self.kernels = {n: launch for n, launch in self.launches.items() if isinstance(launch, Generated)}
        self.outputs = {place.buffer for place, _ in plan.outputs.values()}

    def bias(self, number: int, product: Product) -> Fold | None:
        """c = a b + bias, where c alone is read once, by that sum."""
        readers = [n for n in self._touching(product.c.place.buffer) if n != number]
        kernel = self.kernels.get(readers[0]) if len(readers) == 1 else None
        in_arena = self.plan.buffers[product.c.place.buffer].kind == "arena"
        if kernel is None or not in_arena or product.c.place.buffer in self.outputs or product.c_dtype != "f32":
            return None
        dtype = _sum_of_two(kernel)
        if dtype not in ("f32", product.dtype):
            return None
        whole = (product.m, product.n)
        sides = [k for k, load in enumerate(kernel.loads) if load.place == _first(product)]
        if len(sides) != 1 or not _contiguous(product) or prod(kernel.sizes) != prod(whole):
            return None
        read, other, store = kernel.loads[sides[0]], kernel.loads[1 - sides[0]], kernel.stores[0]
        across = _is_row(kernel.sizes, other, product.n)
        if not (across and _in_order(kernel.sizes, read) and _in_order(kernel.sizes, store)):
            return None
        assert store.place is not None and other.place is not None
        made = replace(product, c=replace(product.c, place=store.place, starts=(0,)), result=dtype)
        fold = Fold(made, Epilogue(bias=other.place, bias_dtype="" if dtype == "f32" else "f32"), readers[0])
        size = SIZES[dtype] * prod(whole)
        return fold if self._may_write(store.place, size, number, readers[0], made, other.place) else None

    def gradient(self, number: int, product: Product) -> Fold | None:
        """The sums of b's columns, as of a bias whose gradient is b."""
        b = product.b
        if product.c_dtype != "f32" or (b.row, b.column, b.starts) != (product.n, 1, (0,)) or b.has_loops:
            return None
        for place, kernel in self.kernels.items():
            if self._sums_columns(kernel, product):
                target = kernel.stores[0].place
                assert target is not None
                if self._may_write(target, 4 * product.n, number, place, product):
                    return Fold(product, Epilogue(gradient=target), place)
        return None

    def _sums_columns(self, kernel: Generated, product: Product) -> bool:
        program = kernel.program
        if program.kind != "column" or [i.op for i in program.body] != ["reduce_sum"] or len(program.stores) != 1:
            return False
        whole = kernel.sizes == (product.k, product.n) and kernel.loads[0].place == product.b.place
        steps = kernel.loads[0].strides == (product.n, 1) and kernel.stores[0].strides[-1] == 1
        return whole and steps and program.loads[0].dtype == product.dtype and program.stores[0].dtype == "f32"

    def _touching(self, buffer: int) -> list[int]:
        return [n for n, launch in self.launches.items() if any(place.buffer == buffer for place in places_of(launch))]

    def _may_write(self, target: Place, size: int, number: int, kernel: int, made: Product, *read: Place) -> bool:
        """Whether the product's call may write `size` bytes there: it reads none of them itself, and no launch from it to the
        kernel, in whichever order these stand, touches them."""
        span = self._span(target, size)
        operands = [self._buffer(place) for place in (made.a.place, made.b.place, *read)]
        low, high = sorted((number, kernel))
        between = [n for n in self.launches if low < n < high]
        if set(range(low + 1, high)) - set(between):
            return False  # a loop stands there
        others = [self._buffer(place) for n in between for place in places_of(self.launches[n])]
        return not any(_meet(span, other) for other in (*operands, *others))

    def _span(self, place: Place, size: int) -> _Span:
        name, begin, _ = self._buffer(place)
        return name, begin + place.offset, begin + place.offset + size

    def _buffer(self, place: Place) -> _Span:
        buffer = self.plan.buffers[place.buffer]
        if buffer.kind == "arena":
            return "", buffer.offset, buffer.offset + buffer.size_bytes
        return buffer.name, 0, buffer.size_bytes


def _numbered(plan: Plan) -> Iterator[tuple[int, Kernel]]:
    """Launches outside loops by their numbers among all."""
    number = 0
    for launch in plan.launches:
        if isinstance(launch, Loop):
            number += sum(1 for _ in flattened((launch,)))
        else:
            yield number, launch
            number += 1


def _first(product: Product) -> Place:
    return Place(product.c.place.buffer, product.c.place.offset + 4 * product.c.starts[0])


def _contiguous(product: Product) -> bool:
    return (product.c.row, product.c.column) == (product.n, 1) or product.m == 1


def _sum_of_two(kernel: Generated) -> str:
    """The dtype that a kernel stores the sum of two operands of f32 in, where it does nothing else; else ''."""
    program = kernel.program
    ops, loads = [i.op for i in program.body], program.loads
    sums = ops in (["add"], ["add", "cast"]) and sorted(program.body[0].arguments) == [0, 1]
    if program.kind != "map" or program.rank < 2 or not sums or len(program.stores) != 1:
        return ""
    (store,) = program.stores
    f32 = all(load.kind == "memory" and load.dtype == "f32" for load in loads) and program.body[0].dtype == "f32"
    last = store.value == len(loads) + len(ops) - 1 and program.body[-1].dtype == store.dtype
    return store.dtype if f32 and last else ""


def _in_order(sizes: Sequence[int], access: Access) -> bool:
    """Whether the elements are neighbours in the order of the loops."""
    step = 1
    for size, stride in zip(reversed(sizes), reversed(access.strides), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


def _is_row(sizes: Sequence[int], access: Access, columns: int) -> bool:
    """Whether the last loop goes along `columns` neighbours, and the others stay."""
    *outer, last = access.strides
    return sizes[-1] == columns and last == 1 and all(s == 0 or n == 1 for n, s in zip(sizes, outer, strict=False))


def _meet(one: _Span, other: _Span) -> bool:
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]
