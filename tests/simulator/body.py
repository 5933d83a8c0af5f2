"""A body's statements → instructions with every name resolved and every call replaced by the function's body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.simulator.dtypes import DTYPES
from tests.simulator.program import Function, Instruction, Variable
from tests.simulator.report import Fault
from tests.simulator.statements import Block, Label, Statement, operands, read_block

NAME = re.compile(r"(?<![\w.$%@])[%$]?[A-Za-z_][\w$]*(?:\.[xyz]\b)?")
FAMILY = re.compile(r"(%[A-Za-z_]+?)\d+")
DECLARATION = re.compile(
    r"\.(?P<space>shared|local|param)\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+(?P<name>[\w$]+)"
    r"(?:\[(?P<count>\d+)\])?"
)
INSTRUCTION = re.compile(r"(?:@(?P<negated>!?)(?P<predicate>\S+)\s+)?(?P<opcode>[a-z][\w.:]*)\s*(?P<operands>.*)", re.S)


@dataclass
class Area:
    """Offsets given out one after another."""

    end: int = 0

    def place(self, alignment: int, n_bytes: int) -> int:
        offset = -(-self.end // alignment) * alignment
        self.end = offset + n_bytes
        return offset


@dataclass(frozen=True)
class Scope:
    """Names that a block declares. A function's own scope is opaque: the caller's names are not seen through it."""

    number: int
    opaque: bool = False
    end_label: str | None = None
    names: dict[str, str] = field(default_factory=dict)
    families: dict[str, str] = field(default_factory=dict)

    def own(self, name: str) -> str:
        return name if self.number == 0 else f"{name}@{self.number}"


class Body:
    """What the kernel record is made of, filled while the statements are read."""

    def __init__(self, variables: Mapping[str, Variable], functions: Mapping[str, Function]) -> None:
        self.variables = variables
        self.functions = functions
        self.registers: dict[str, int] = {}
        self.register_types: list[str] = []
        self.code: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.tables: dict[str, list[str]] = {}
        self.shared = Area()
        self.local = Area()
        self.placed: dict[str, tuple[str, int]] = {}
        self.passed: list[slice] = []
        self.external: set[str] = set()
        self.scopes: list[Scope] = []
        self.inlining: list[str] = []
        self.blocks = 0

    def read(self, text: str, line: int) -> None:
        self.block(read_block(text, line), opaque=True)
        self.shared.place(16, 0)
        self.local.place(16, 0)

    def symbols(self) -> dict[str, tuple[str, int]]:
        """Where variables lie; shared memory that the launch sizes comes after all that the kernel sizes."""
        return {**self.placed, **dict.fromkeys(self.external, ("shared", self.shared.end))}

    def narrowest(self) -> dict[str, int]:
        """The fewest bytes that one access touches, 4 at most, by space."""
        found = {"global": 4, "shared": 4}
        for one in self.code:
            kind = next((word for word in reversed(one.modifiers) if word in DTYPES), None)
            if one.opcode in ("ld", "ldu", "st", "atom", "red") and kind:
                for space in found:
                    if space in one.modifiers or not {"global", "shared", "local", "param", "const"} & {*one.modifiers}:
                        found[space] = min(found[space], DTYPES[kind].itemsize)
        return found

    def block(self, block: Block, opaque: bool = False, end_label: str | None = None, **names: str) -> None:
        scope = Scope(self.blocks, opaque, end_label, dict(names))
        self.blocks += 1
        scope.names.update({label: scope.own(label) for label in block.labels()})
        self.scopes.append(scope)
        table = ""
        for item in block.items:
            if isinstance(item, Block):
                self.block(item)
            elif isinstance(item, Label):
                table = scope.own(item.name)
                self.labels[table] = len(self.code)
            elif item.text.startswith(".branchtargets"):
                self.tables[table] = [self.resolve(name) for name in operands(item.text.split(None, 1)[1])]
            else:
                self.statement(item)
        self.scopes.pop()

    def statement(self, statement: Statement) -> None:
        if statement.text.startswith("."):
            self.declare(statement.text)
            return
        found = INSTRUCTION.fullmatch(statement.text)
        if not found:
            raise Fault("unsupported", f"line {statement.line}: cannot read {statement.text!r}")
        opcode, *modifiers = found["opcode"].split(".")
        predicate = self.resolve(found["predicate"]) if found["predicate"] else None
        rest = tuple(operands(found["operands"]))
        instruction = Instruction(
            predicate, bool(found["negated"]), opcode, tuple(modifiers), rest, statement.text, statement.line
        )
        if opcode == "call":
            self.call(instruction)
        else:
            self.emit(instruction, tuple(NAME.sub(lambda name: self.resolve(name.group(0)), one) for one in rest))

    def emit(self, one: Instruction, resolved: tuple[str, ...]) -> None:
        opcode = one.opcode
        end = next(scope.end_label for scope in reversed(self.scopes) if scope.opaque)
        if opcode == "ret" and end is not None:
            opcode, resolved = "bra", (end,)
        self.code.append(Instruction(one.predicate, one.negated, opcode, one.modifiers, resolved, one.text, one.line))

    def declare(self, text: str) -> None:
        scope = self.scopes[-1]
        if text.startswith(".reg"):
            kind, names = text[4:].strip().lstrip(".").split(None, 1)
            for name in names.split(","):
                name = name.strip()
                if "<" in name:
                    scope.families[name.split("<")[0]] = kind
                else:
                    scope.names[name] = scope.own(name)
                    self.number(scope.own(name), kind)
        elif found := DECLARATION.match(text):
            width = DTYPES[found["type"]].itemsize
            space = "shared" if found["space"] == "shared" else "local"
            area = self.shared if space == "shared" else self.local
            n_bytes = width * int(found["count"] or 1)
            offset = area.place(int(found["align"] or width), n_bytes)
            if found["space"] == "param":
                self.passed.append(slice(offset, offset + n_bytes))
            scope.names[found["name"]] = scope.own(found["name"])
            self.placed[scope.own(found["name"])] = (space, offset)

    def number(self, register: str, kind: str) -> None:
        if register not in self.registers:
            self.registers[register] = len(self.register_types)
            self.register_types.append(kind)

    def resolve(self, name: str) -> str:
        """The name under which the kernel knows it."""
        family = FAMILY.fullmatch(name)
        for scope in reversed(self.scopes):
            if name in scope.names:
                return scope.names[name]
            if family and family[1] in scope.families:
                self.number(scope.own(name), scope.families[family[1]])
                return scope.own(name)
            if scope.opaque:
                break
        self.place_module_variable(name)
        return name

    def place_module_variable(self, name: str) -> None:
        variable = self.variables.get(name)
        if variable is None or variable.space != "shared" or name in self.placed:
            return
        if variable.external:
            self.external.add(name)
        else:
            self.placed[name] = ("shared", self.shared.place(variable.alignment, variable.n_bytes))

    def call(self, one: Instruction) -> None:
        """The function's body in place of the call: its parameters are the caller's variables."""
        groups = [[self.resolve(name) for name in operands(part[1:-1])] for part in one.operands if part[0] == "("]
        names = [part for part in one.operands if part[0] != "("]
        function = self.functions.get(names[0])
        if function is None or function.name in self.inlining or len(names) > 1:
            self.emit(one, (names[0],))
            return
        results = groups.pop(0) if function.results else []
        arguments = groups[0] if groups else []
        end = f"end of call {self.blocks}"
        if one.predicate is not None:
            jump = Instruction(one.predicate, not one.negated, "bra", (), (end,), one.text, one.line)
            self.code.append(jump)
        given = dict(zip([*function.results, *function.parameters], [*results, *arguments], strict=True))
        self.inlining.append(function.name)
        self.block(read_block(function.body, function.line), opaque=True, end_label=end, **given)
        self.inlining.pop()
        self.labels[end] = len(self.code)
