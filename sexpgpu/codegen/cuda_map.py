"""Pointwise regions as CUDA C: a thread takes some neighbours along the last loop, moved as one pack where they can be."""

from __future__ import annotations

from math import prod

from msgspec.structs import replace

from sexpgpu.codegen.cuda_operands import (
    Alignment,
    Operand,
    declare,
    is_wide,
    load_element,
    offset,
    operands_of,
    pack_width,
    register_type,
    store_element,
)
from sexpgpu.codegen.cuda_source import (
    MEMORY_TYPES,
    CudaKernel,
    CudaLaunch,
    CudaText,
    c_type,
    constant_of,
    loaded,
    spell,
    stored,
)
from sexpgpu.codegen.source import describe_lines
from sexpgpu.plan.kernel import Generated

THREADS = 256


def emit_map(launch: Generated, alignment: Alignment) -> CudaLaunch | None:
    """The launch of a map; None where there is nothing to compute."""
    if prod(launch.sizes) == 0:
        return None
    writer = MapWriter(launch if launch.sizes else _one_loop(launch), alignment)
    kernel = writer.write()
    return CudaLaunch(kernel, (-(-writer.units // THREADS), 1, 1), tuple(writer.text.arguments))


def _one_loop(launch: Generated) -> Generated:
    """A launch without loops as one of one point."""
    loads, stores = (tuple(replace(a, strides=(0,)) for a in side) for side in (launch.loads, launch.stores))
    return replace(launch, sizes=(1,), loads=loads, stores=stores)


class MapWriter:
    """Writes the kernel of a map. `limit`: the size of the last loop, as it stands in the text."""

    def __init__(self, launch: Generated, alignment: Alignment) -> None:
        self.launch = launch
        self.program = launch.program
        self.text = CudaText("map", THREADS)
        self.operands = operands_of(launch)
        self.width = pack_width(launch, self.operands, alignment)
        *self.outer, self.last = launch.sizes
        self.limit = str(self.last)
        self.units = prod(self.outer) * -(-self.last // self.width)
        self.integer = "long long" if is_wide(launch) else "int"

    def write(self) -> CudaKernel:
        declare(self.text, self.operands)
        self._places()
        self.points(self.last % self.width != 0)
        sizes = " × ".join(map(str, self.launch.sizes))
        return self.text.finish([f"A map over {sizes}.", *describe_lines(self.program)])

    def points(self, has_rest: bool) -> None:
        """The points of a thread."""
        if self.width == 1:
            self._point(dict.fromkeys(range(len(self.operands)), ""))
        else:
            if has_rest:
                self._rest()
            self._packs()

    def _places(self) -> None:
        """The thread's place along every loop, and each operand's offset there."""
        unsigned = "unsigned long long" if self.integer == "long long" else "unsigned"
        add = self.text.add
        add(f"const {unsigned} unit = ({unsigned})blockIdx.x * {THREADS}u + threadIdx.x;")
        if self.last % self.width == 0:
            add(f"if (unit >= {self.units}u) return;")
        places = {}
        sizes = [*self.outer, -(-self.last // self.width)]
        below = 1
        for loop in range(len(sizes) - 1, -1, -1):
            part = f"unit / {below}u" if below > 1 else "unit"
            part = f"{part} % {sizes[loop]}u" if loop else part
            step = f" * {self.width}" if loop == len(sizes) - 1 and self.width > 1 else ""
            add(f"const {self.integer} i{loop} = ({self.integer})({part}){step};")
            places[loop] = f"i{loop}"
            below *= sizes[loop]
        for operand in self.operands:
            add(f"const {self.integer} o{operand.number} = {offset(operand, places)};")

    def _rest(self) -> None:
        """The last neighbours, too few for a pack, one by one; none beyond the end."""
        last = f"i{len(self.outer)}"
        self.text.open(f"if ({last} + {self.width} > {self.limit})")
        self.text.open(f"for (int j = 0; j < {self.limit} - {last}; ++j)")
        self._point({o.number: self._step(o) for o in self.operands})
        self.text.close()
        self.text.add("return;")
        self.text.close()

    @staticmethod
    def _step(operand: Operand) -> str:
        """How far the j-th neighbour is."""
        step = operand.access.strides[-1]
        return "" if step == 0 else " + j" if step == 1 else f" + j * ({step})"

    def _point(self, steps: dict[int, str]) -> None:
        """One point: loads, instructions, stores."""
        names = {}
        for operand in self.operands[: len(self.program.loads)]:
            names[operand.number] = name = f"x{operand.number}"
            value = load_element(operand, f"o{operand.number}{steps[operand.number]}", self.text)
            self.text.add(f"const {register_type(operand)} {name} = {value};")
        self._body(names)
        for operand, value in self._stored(names):
            self.text.add(store_element(operand, f"o{operand.number}{steps[operand.number]}", value))

    def _packs(self) -> None:
        """All neighbours of the thread: packs are moved at once, everything else is the same for all or counted."""
        text, width = self.text, self.width
        names: dict[int, str] = {}
        for operand in self.operands[: len(self.program.loads)]:
            step = operand.access.strides[-1]
            if operand.in_memory and step:
                text.add(f"const auto w{operand.number} = take<{width}>({operand.pointer} + o{operand.number});")
            elif not step:
                names[operand.number] = f"x{operand.number}"
                value = load_element(operand, f"o{operand.number}", text)
                text.add(f"const {register_type(operand)} x{operand.number} = {value};")
        stores = self.operands[len(self.program.loads) :]
        for operand in stores:
            text.add(f"Pack<{width}, {MEMORY_TYPES[operand.description.dtype]}> y{operand.number};")
        text.add("#pragma unroll")
        text.open(f"for (int j = 0; j < {width}; ++j)")
        for operand in self.operands[: len(self.program.loads)]:
            if operand.number not in names:
                self._neighbour(operand, names)
        self._body(names)
        for operand, value in self._stored(names):
            text.add(f"y{operand.number}.at[j] = {stored(value, operand.description.dtype)};")
        text.close()
        for operand in stores:
            text.add(f"put({operand.pointer} + o{operand.number}, y{operand.number});")

    def _neighbour(self, operand: Operand, names: dict[int, str]) -> None:
        """The j-th neighbour's value of a load."""
        names[operand.number] = name = f"x{operand.number}"
        if operand.in_memory:
            value = loaded(f"w{operand.number}.at[j]", operand.description.dtype)
        else:
            value = load_element(operand, f"o{operand.number}{self._step(operand)}", self.text)
        self.text.add(f"const {register_type(operand)} {name} = {value};")

    def _body(self, names: dict[int, str]) -> None:
        """A line an instruction; constants stand where they are used."""
        for value, instruction in enumerate(self.program.body, len(self.program.loads)):
            constant = constant_of(self.program, value)
            if constant is not None:
                names[value] = constant
                continue
            text = spell(self.program, instruction, [names[a] for a in instruction.arguments], self.text)
            names[value] = f"v{value}"
            self.text.add(f"const {c_type(self.program, value)} v{value} = {text};")

    def _stored(self, names: dict[int, str]) -> list[tuple[Operand, str]]:
        stores = self.operands[len(self.program.loads) :]
        return [(o, names[store.value]) for o, store in zip(stores, self.program.stores, strict=True)]
