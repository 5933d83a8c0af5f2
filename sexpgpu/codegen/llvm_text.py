"""LLVM text written by Python statements: values have names, loops and conditions are `with` blocks.

Variables lie in memory as the text has them; LLVM puts them into registers. Integers are i64 where nothing else is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# Calls of memset or memcpy would keep code from being mapped as it is.
ATTRIBUTES = 'attributes #0 = { nounwind noinline "no-builtins" "prefer-vector-width"="512" }'


class Function:
    """One function's text; `parameters` are `ptr %a` and the like."""

    def __init__(self, name: str, parameters: str, internal: bool = True) -> None:
        self.head = f"define {'internal ' if internal else ''}void @{name}({parameters}) #0 {{\nentry:"
        self.variables: list[str] = []
        self.lines: list[str] = []
        self.count = 0

    def text(self) -> str:
        return "\n".join([self.head, *self.variables, *self.lines, "  ret void", "}", ""])

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def let(self, text: str) -> str:
        """The name of a new value."""
        made = self.name()
        self.do(f"{made} = {text}")
        return made

    # -- integers

    def add(self, a: str, b: str | int) -> str:
        return self.let(f"add nsw i64 {a}, {b}")

    def sub(self, a: str, b: str | int) -> str:
        return self.let(f"sub nsw i64 {a}, {b}")

    def mul(self, a: str, b: str | int) -> str:
        return self.let(f"mul nsw i64 {a}, {b}")

    def divided(self, a: str, b: str | int) -> str:
        """Of integers that are not negative."""
        return self.let(f"udiv i64 {a}, {b}")

    def remainder(self, a: str, b: str | int) -> str:
        return self.let(f"urem i64 {a}, {b}")

    def least(self, a: str, b: str | int) -> str:
        return self.choose(self.test("slt", a, b), a, b)

    def test(self, condition: str, a: str, b: str | int) -> str:
        return self.let(f"icmp {condition} i64 {a}, {b}")

    def choose(self, condition: str, a: str | int, b: str | int) -> str:
        return self.let(f"select i1 {condition}, i64 {a}, i64 {b}")

    def word(self, table: str, index: str | int) -> str:
        return self.load("i64", self.at(table, index, "i64"), 8)

    # -- memory

    def at(self, pointer: str, index: str | int, type_: str = "float") -> str:
        return self.let(f"getelementptr {type_}, ptr {pointer}, i64 {index}")

    def pointer(self, address: str) -> str:
        return self.let(f"inttoptr i64 {address} to ptr")

    def load(self, type_: str, pointer: str, alignment: int) -> str:
        return self.let(f"load {type_}, ptr {pointer}, align {alignment}")

    def store(self, type_: str, value: str, pointer: str, alignment: int) -> None:
        self.do(f"store {type_} {value}, ptr {pointer}, align {alignment}")

    # -- vectors

    def splat(self, type_: str, lanes: int, value: str) -> str:
        first = self.let(f"insertelement <{lanes} x {type_}> poison, {type_} {value}, i64 0")
        return self.shuffle(type_, lanes, first, "poison", [0] * lanes)

    def shuffle(self, type_: str, lanes: int, a: str, b: str, places: Sequence[int]) -> str:
        mask = ", ".join(f"i32 {place}" for place in places)
        vector = f"<{lanes} x {type_}>"
        return self.let(f"shufflevector {vector} {a}, {vector} {b}, <{len(places)} x i32> <{mask}>")

    # -- control

    def variable(self, type_: str, value: str) -> str:
        made = self.name()
        self.variables.append(f"  {made} = alloca {type_}")
        self.do(f"store {type_} {value}, ptr {made}")
        return made

    def get(self, type_: str, variable: str) -> str:
        return self.let(f"load {type_}, ptr {variable}")

    def set(self, type_: str, variable: str, value: str) -> None:
        self.do(f"store {type_} {value}, ptr {variable}")

    def _block(self) -> str:
        self.count += 1
        return f"b{self.count}"

    def _begin(self, block: str) -> None:
        self.lines.append(f"{block}:")

    @contextmanager
    def loop(self, low: str | int, high: str | int, step: str | int = 1) -> Iterator[str]:
        """The counter from `low` by `step` while it is below `high`."""
        variable = self.variable("i64", str(low))
        test, body, done = self._block(), self._block(), self._block()
        self.do(f"br label %{test}")
        self._begin(test)
        counter = self.get("i64", variable)
        self.do(f"br i1 {self.test('slt', counter, high)}, label %{body}, label %{done}")
        self._begin(body)
        yield counter
        self.set("i64", variable, self.add(counter, step))
        self.do(f"br label %{test}")
        self._begin(done)

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        body, done = self._block(), self._block()
        self.do(f"br i1 {condition}, label %{body}, label %{done}")
        self._begin(body)
        yield
        self.do(f"br label %{done}")
        self._begin(done)

    @contextmanager
    def unless(self, condition: str) -> Iterator[None]:
        with self.when(self.let(f"xor i1 {condition}, true")):
            yield
