"""The values of the language at elaboration: numbers that know where they came from, host scalars, functions, tensors.

Integers, floats, booleans, texts and nil are Python's; a list is a tuple; a tensor is a node of the graph being built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sexpgpu.initial import Initializer
from sexpgpu.ir.graph import Node
from sexpgpu.ir.host import Expression, evaluate, known
from sexpgpu.ops.record import TypeMismatch
from sexpgpu.source import Span

if TYPE_CHECKING:
    pass

Value = Any
# The variables of one function's activation, by slot; compiled code reads and fills them.
Frame = list[Value]
Code = Callable[[Frame], Value]


class Poison:
    """What a wrong expression gives: every operation on it is silent, for the problem is reported already."""

    def __repr__(self) -> str:
        return "poison"


class Missing:
    """A slot that no argument has filled yet."""


POISON = Poison()
MISSING = Missing()


class Problem(TypeMismatch):
    """What is wrong with a call, without its place: `label` stands beside the caret (else the operands are shown)."""

    def __init__(self, code: str, message: str, *, label: str = "", notes: Sequence[str] = ()) -> None:
        super().__init__(code, message)
        self.label = label
        self.notes = list(notes)


class ListGiven(Problem):
    """A list where a tensor is needed: one of numbers becomes a tensor."""

    def __init__(self, value: Value, what: str, takes: str) -> None:
        super().__init__("E-TYPE-001", f"{what} takes {takes}, not {describe(value)}")
        self.value = value


class Labelled(int):
    """An integer that knows which hyper or axis it came from; arithmetic gives plain integers."""

    label: str


def labelled(value: int, label: str | None) -> int:
    if label is None:
        return value
    made = Labelled(value)
    made.label = label
    return made


class Quotient(float):
    """The float of an integer division that is not exact, or made of one; a message about it shows both integers."""

    operands: tuple[int, int]


def quotient(a: int, b: int) -> float:
    made = Quotient(a / b)
    made.operands = (int(a), int(b))
    return made


# Lists inside lists, and elements of all of them. What compares, hashes and prints values calls itself at every level,
# and comes to a list as often as it stands in others.
MAXIMUM_LISTS = 1_000
MAXIMUM_ELEMENTS = 100_000
# Operations of one number that the host computes at every step.
MAXIMUM_OPERATIONS = 500


class Nested(tuple[Any, ...]):
    """A list that holds lists: how many of them stand in each other, and how many elements all of them have."""

    depth: int
    elements: int


def listed(items: Iterable[Value]) -> tuple[Value, ...]:
    """A list of the values."""
    made = tuple(items)
    lists = [item for item in made if isinstance(item, tuple)]
    if not lists:
        return made
    nested = Nested(made)
    nested.depth = 1 + max([getattr(part, "depth", 1) for part in lists])
    nested.elements = len(made) + sum([getattr(part, "elements", len(part)) for part in lists])
    if nested.depth > MAXIMUM_LISTS or nested.elements > MAXIMUM_ELEMENTS:
        limits = f"at most {MAXIMUM_LISTS:,} stand in each other, with {MAXIMUM_ELEMENTS:,} elements"
        raise Problem("E-TYPE-001", f"a list of lists is too large: {limits}")
    return nested


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number of the host's: of `step`, `updates`, `total-steps`, or a float hyper, which is known but stays an input."""

    expression: Expression
    # How many operations.
    size: int = field(default=1, compare=False)

    @property
    def known(self) -> bool:
        return known(self.expression)


def scalar(operation: str, *parts: Value) -> Scalar:
    """An operation of the host on its numbers, plain numbers and booleans."""
    size = 1 + sum([part.size for part in parts if isinstance(part, Scalar)])
    if size > MAXIMUM_OPERATIONS:
        raise Problem("E-TYPE-001", f"a number known at each step takes more than {MAXIMUM_OPERATIONS} operations")
    return Scalar((operation, *[_operand(part) for part in parts]), size)


def _operand(part: Value) -> Expression:
    if isinstance(part, Scalar):
        return part.expression
    return ("number", part if isinstance(part, bool) else plain(part))


class Values(tuple[Any, ...]):
    """Several values, given by `values`; `let` takes them apart."""

    depth: int
    elements: int


def several(items: Iterable[Value]) -> Values:
    """Several values, among them lists as in a list."""
    made = Values(items)
    as_list = listed(made)
    made.depth, made.elements = getattr(as_list, "depth", 1), getattr(as_list, "elements", len(made))
    return made


class DtypeName(str):
    """A dtype standing as a value: `f32`."""


@dataclass(frozen=True, slots=True)
class Weighted:
    """`(weighted L W)`, allowed only as a whole `:loss` or metric."""

    loss: Value
    weight: Value


@dataclass(frozen=True, slots=True)
class LoaderName:
    """A defloader standing as a value."""

    name: str


@dataclass(frozen=True)
class Signature:
    """Positional names, then keys with their defaults. `rest`: the name that takes all further positional ones."""

    names: tuple[str, ...]
    keys: tuple[tuple[str, Value], ...] = ()
    rest: str | None = None
    optional: int = 0

    @property
    def key_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.keys)


@dataclass(frozen=True, eq=False)
class Builtin:
    """An operation of the language written in Python: a row of the operation tables.

    `run(machine, *arguments)` gets every parameter of the signature in order, the rest as a tuple last.
    """

    name: str
    usage: str
    signature: Signature
    run: Callable[..., Value]
    doc: str


@dataclass(eq=False)
class Function:
    """A function; `kind` is function, layer, region or optimizer.

    Arguments fill the slots from `first` on, in the order of the signature. What follows `span` is filled when the
    body is compiled: `defaults` are (slot, code) of the keys, `size` is the number of slots.
    A layer has two more keys, `:name` and `:share`, in the slots `name_slot` and `share_slot`.
    """

    name: str
    kind: str
    signature: Signature
    first: int
    span: Span
    prelude: bool
    name_slot: int = -1
    share_slot: int = -1
    defaults: tuple[tuple[int, Code], ...] = ()
    body: Code | None = None
    size: int = 0


@dataclass(frozen=True, eq=False)
class Closure:
    """A function with the variables that stood around it."""

    function: Function
    captured: tuple[Value, ...] = ()


@dataclass(frozen=True)
class OptimizerCall:
    """`(adamw :lr 1e-3)` in the place of an optimizer: elaborated once per parameter."""

    closure: Closure
    keywords: tuple[tuple[str, Value], ...]
    span: Span


def is_number(value: Value) -> bool:
    """A plain number, not a boolean."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def describe(value: Value) -> str:
    """A value in the words of messages."""
    match value:
        case Node():
            return str(value.type)
        case Scalar():
            return "a number known at each step" if not value.known else f"the number {evaluate(value.expression, {})}"
        case bool():
            return "true" if value else "false"
        case None:
            return "nil"
        case int() | float():
            return f"the number {plain(value)}"
        case DtypeName():
            return f"the dtype {value}"
        case str():
            return f'the text "{value[:40]}"'
        case Values():
            return f"{len(value)} values"
        case tuple():
            return f"a list of {len(value)}"
        case Closure():
            return f"the {value.function.kind} {value.function.name}"
        case Builtin():
            return f"the operation {value.name}"
        case Initializer():
            return f"the initializer {value.kind}"
        case LoaderName():
            return f"the loader {value.name}"
        case OptimizerCall():
            return "an optimizer"
        case Weighted():
            return "a weighted loss"
    return repr(value)


def plain(value: float) -> float:
    """The number without what it knows of itself."""
    return float(value) if isinstance(value, float) else int(value)


def fold(value: Value) -> Value:
    """A known host scalar as a plain number; other values as they are."""
    if isinstance(value, Scalar) and value.known:
        return evaluate(value.expression, {})
    return value


def number_text(value: float) -> str:
    """A number for a message: a quotient with the integers that it is of."""
    if isinstance(value, Quotient):
        a, b = value.operands
        return f"{a} / {b} = {float(value):.4g}" if value == a / b else f"{float(value):.4g}, made of {a} / {b} = {a / b:.4g}"
    return str(plain(value))


def integer(value: Value, what: str) -> int:
    """An integer, or E-TYPE-001."""
    value = fold(value)
    if isinstance(value, bool) or not isinstance(value, int):
        shown = number_text(value) if isinstance(value, float) else describe(value)
        raise Problem("E-TYPE-001", f"{what} must be an integer, not {shown}")
    return value


def number(value: Value, what: str) -> float:
    """A plain number (a known host scalar is folded), or E-TYPE-001."""
    value = fold(value)
    if not is_number(value):
        raise Problem("E-TYPE-001", f"{what} must be a number, not {describe(value)}")
    return plain(value)


def boolean(value: Value, what: str) -> bool:
    if not isinstance(value, bool):
        raise Problem("E-TYPE-001", f"{what} must be true or false, not {describe(value)}")
    return value


def size(value: Value, what: str) -> int:
    """A size of a shape: an integer of at least 0, or E-SHAPE-003."""
    value = fold(value)
    if isinstance(value, float):
        raise Problem("E-SHAPE-003", f"{what}: {number_text(value)} is a float, a size is an integer")
    if isinstance(value, bool) or not isinstance(value, int):
        raise Problem("E-SHAPE-003", f"{what}: a size is an integer, not {describe(value)}")
    if value < 0:
        raise Problem("E-SHAPE-003", f"{what}: a size is at least 0, not {int(value)}")
    return value


Labels = tuple[str | None, ...]


def shape(value: Value, what: str) -> tuple[tuple[int, ...], Labels]:
    """A shape and its labels; an integer alone is a shape of one axis."""
    items = value if isinstance(value, tuple) else (value,)
    sizes = [size(item, what) for item in items]
    labels = tuple([item.label if isinstance(item, Labelled) else None for item in items])
    return tuple([int(n) for n in sizes]), labels if any(labels) else ()


def tensor(value: Value, what: str) -> Node:
    if isinstance(value, tuple):
        raise ListGiven(value, what, "a tensor")
    if not isinstance(value, Node):
        raise Problem("E-TYPE-001", f"{what} takes a tensor, not {describe(value)}")
    return value


def axis(value: Value, rank: int, what: str) -> int:
    """One axis, counted from the front."""
    i = integer(value, f"{what}: an axis")
    if not -rank <= i < rank:
        raise Problem("E-SHAPE-004", f"{what}: no axis {int(i)} in a tensor of rank {rank}")
    return int(i) % rank


def axes(value: Value, rank: int, what: str) -> tuple[int, ...]:
    """Sorted axes; nil means all of them."""
    if value is None:
        return tuple(range(rank))
    made = [axis(item, rank, what) for item in (value if isinstance(value, tuple) else (value,))]
    if len(set(made)) != len(made):
        raise Problem("E-SHAPE-004", f"{what}: an axis stands twice in {[int(v) for v in value]}")
    return tuple(sorted(made))


def dtype(value: Value, what: str) -> str:
    if not isinstance(value, DtypeName):
        raise Problem("E-TYPE-001", f"{what}: a dtype is one of f32 bf16 f16 i32 i64 u8 u32 bool, not {describe(value)}")
    return str(value)
