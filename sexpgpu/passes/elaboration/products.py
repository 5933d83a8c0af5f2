"""The table of products: matmul, einsum, outer and dot, all one `contract` with no copy of an operand."""

from __future__ import annotations

from collections.abc import Sequence

from sexpgpu.ir.graph import Node
from sexpgpu.passes.elaboration.lowering import cast, common_dtype, size_text
from sexpgpu.passes.elaboration.machine import Machine
from sexpgpu.passes.elaboration.shaping import permuted, reshaped
from sexpgpu.passes.elaboration.table import row
from sexpgpu.passes.elaboration.values import Builtin, Problem, Value, describe, tensor

# Products of these are not computed in their own dtype.
_WIDENED = {"bool": "i32", "u8": "i32", "u32": "i64"}


def _factors(name: str, a: Value, b: Value) -> tuple[Node, Node]:
    x, y = tensor(a, name), tensor(b, name)
    dtype = common_dtype(name, (x, y))
    target = _WIDENED.get(dtype, dtype)
    return cast(x, target), cast(y, target)


def contract(a: Node, b: Node, batch: Sequence[tuple[int, int]], contracted: Sequence[tuple[int, int]]) -> Node:
    """The product over pairs of axes (of a, of b)."""
    pairs = {
        "batch": (tuple([i for i, _ in batch]), tuple([j for _, j in batch])),
        "contracted": (tuple([i for i, _ in contracted]), tuple([j for _, j in contracted])),
    }
    return a.graph.add("contract", (a, b), pairs)


def _inner_sizes(name: str, a: Node, i: int, b: Node, j: int) -> None:
    m, n = a.shape[i], b.shape[j]
    if m == n:
        return
    left, right = size_text(m, a.tensor.label(i)), size_text(n, b.tensor.label(j))
    raise InnerSizes(f"{name}: inner sizes differ, {left} and {right}", a.shape, b.shape)


class InnerSizes(Problem):
    """Inner sizes that differ; the call suggests the transpose of an operand."""

    def __init__(self, message: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
        super().__init__("E-SHAPE-002", message)
        self.left = len(a) == 2 and a[0] == b[-2 if len(b) > 1 else 0] and a[-1] != b[-1]

    def suggest(self, texts: Sequence[str], ranks: Sequence[int]) -> None:
        """Of the operands as written, the one whose transpose is meant."""
        which = 0 if self.left else 1
        if which < len(texts) and ranks[which] == 2:
            self.notes.append(f"did you mean (transpose {texts[which]})?")


def _matmul(m: Machine, a: Value, b: Value) -> Node:
    """NumPy's rules: the last axis of a with the second last of b, axes before them are batches and broadcast."""
    x, y = _factors("matmul", a, b)
    return matmul(x, y, "matmul")


def matmul(x: Node, y: Node, name: str) -> Node:
    if not x.tensor.rank or not y.tensor.rank:
        raise Problem("E-SHAPE-001", f"{name} takes tensors of rank 1 or more")
    x_inner, y_inner = x.tensor.rank - 1, max(y.tensor.rank - 2, 0)
    _inner_sizes(name, x, x_inner, y, y_inner)
    x_batch, y_batch = max(x.tensor.rank - 2, 0), max(y.tensor.rank - 2, 0)
    shared = min(x_batch, y_batch)
    for k in range(1, shared + 1):
        i, j = x_batch - k, y_batch - k
        if x.shape[i] != y.shape[j] and 1 not in (x.shape[i], y.shape[j]):
            sizes = [size_text(n.shape[at], n.tensor.label(at)) for n, at in ((x, i), (y, j))]
            raise Problem("E-SHAPE-001", f"{name}: batch sizes {sizes[0]} and {sizes[1]} do not broadcast")
    return _Matmul(x, y, x_batch, y_batch).node()


class _Matmul:
    """One product with batches. Axes of the result are numbered from the left: `rank` batch axes, then rows, columns."""

    def __init__(self, x: Node, y: Node, x_batch: int, y_batch: int) -> None:
        self.x, self.y = x, y
        self.rank = max(x_batch, y_batch)
        # Which result axis each axis of an operand is; None is the contracted one.
        self.x_axes: list[int | None] = [self.rank - x_batch + i for i in range(x_batch)]
        self.y_axes: list[int | None] = [self.rank - y_batch + i for i in range(y_batch)]
        self.x_axes += [self.rank, None] if x.tensor.rank > 1 else [None]
        self.y_axes += [None, self.rank + 1] if y.tensor.rank > 1 else [None]

    def node(self) -> Node:
        self._squeeze()
        x, y, x_axes, y_axes = self.x, self.y, self.x_axes, self.y_axes
        batch = [(i, y_axes.index(axis)) for i, axis in enumerate(x_axes) if axis is not None and axis in y_axes]
        made = contract(x, y, batch, [(x_axes.index(None), y_axes.index(None))])
        order = [x_axes[i] for i, _ in batch]
        order += [axis for i, axis in enumerate(x_axes) if axis is not None and axis not in y_axes]
        order += [axis for axis in y_axes if axis is not None and axis not in x_axes]
        wanted = sorted([axis for axis in order if axis is not None])
        return permuted(made, tuple([order.index(axis) for axis in wanted]))

    def _squeeze(self) -> None:
        """An operand's batch axis of size 1 beside a larger one goes: the other's becomes a free axis, no copy is made."""
        for axis in range(self.rank):
            if axis in self.x_axes and axis in self.y_axes:
                i, j = self.x_axes.index(axis), self.y_axes.index(axis)
                if self.x.shape[i] == 1 and self.y.shape[j] != 1:
                    self.x = _without(self.x, i)
                    self.x_axes.pop(i)
                elif self.y.shape[j] == 1 and self.x.shape[i] != 1:
                    self.y = _without(self.y, j)
                    self.y_axes.pop(j)


def _without(node: Node, axis: int) -> Node:
    labels = tuple([node.tensor.label(i) for i in range(node.tensor.rank) if i != axis])
    return reshaped(node, (*node.shape[:axis], *node.shape[axis + 1 :]), labels)


def _dot(m: Machine, a: Value, b: Value) -> Node:
    """NumPy's dot: the last axis of a with the second last of b, all others free."""
    x, y = _factors("dot", a, b)
    if not x.tensor.rank or not y.tensor.rank:
        raise Problem("E-SHAPE-001", "dot takes tensors of rank 1 or more")
    i, j = x.tensor.rank - 1, max(y.tensor.rank - 2, 0)
    _inner_sizes("dot", x, i, y, j)
    return contract(x, y, (), [(i, j)])


def _outer(m: Machine, a: Value, b: Value) -> Node:
    x, y = _factors("outer", a, b)
    x, y = reshaped(x, (x.tensor.elements,)), reshaped(y, (y.tensor.elements,))
    return contract(x, y, (), ())


def _einsum(m: Machine, equation: Value, factors: tuple[Value, ...]) -> Node:
    if not isinstance(equation, str):
        raise Problem("E-TYPE-001", f"einsum: the equation is a text, not {describe(equation)}")
    nodes = [tensor(f, "einsum") for f in factors]
    terms, result = _equation(equation, nodes)
    if len(nodes) == 1:
        return _arranged(nodes[0], terms[0], result)
    made, names = nodes[0], terms[0]
    for k in range(1, len(nodes)):
        later = {name for term in terms[k + 1 :] for name in term} | set(result)
        made, names = _pair(made, names, nodes[k], terms[k], later)
    return _arranged(made, names, result)


def _equation(equation: str, nodes: Sequence[Node]) -> tuple[list[list[str]], list[str]]:
    """The axes' names of each operand and of the result; sizes are checked."""
    left, arrow, right = equation.partition("->")
    if not arrow:
        raise Problem("E-TYPE-001", 'einsum: the equation is "a b, b c -> a c"')
    texts = left.split(",")
    if len(texts) != len(nodes):
        raise Problem("E-SYN-002", f"einsum: {len(texts)} operands in the equation, {len(nodes)} given")
    terms = [_names(text) for text in texts]
    result = _names(right)
    sizes: dict[str, tuple[int, str | None]] = {}
    for term, node in zip(terms, nodes):
        if len(term) != node.tensor.rank:
            raise Problem("E-SHAPE-001", f"einsum: `{' '.join(term)}` names {len(term)} axes, the operand is {node.type}")
        if len(set(term)) != len(term):
            raise Problem("E-SHAPE-001", f"einsum: an axis stands twice in `{' '.join(term)}`")
        for i, name in enumerate(term):
            size, label = sizes.setdefault(name, (node.shape[i], node.tensor.label(i)))
            if size != node.shape[i]:
                other = size_text(node.shape[i], node.tensor.label(i))
                raise Problem("E-SHAPE-002", f"einsum: sizes of {name} differ, {size_text(size, label)} and {other}")
    for name in result:
        if name not in sizes or result.count(name) > 1:
            raise Problem("E-SHAPE-001", f"einsum: the result's axis {name} is that of no operand, or stands twice")
    return terms, result


def _names(text: str) -> list[str]:
    """`b t d` or `btd`."""
    words = text.split()
    return list(words[0]) if len(words) == 1 and words[0].isalpha() else words


def _summed(node: Node, names: list[str], kept: set[str]) -> tuple[Node, list[str]]:
    gone = tuple([i for i, name in enumerate(names) if name not in kept])
    if not gone:
        return node, names
    return node.graph.add("sum", (node,), {"axes": gone}), [name for name in names if name in kept]


def _arranged(node: Node, names: list[str], result: list[str]) -> Node:
    node, names = _summed(node, names, set(result))
    return permuted(node, tuple([names.index(name) for name in result]))


def _pair(a: Node, a_names: list[str], b: Node, b_names: list[str], later: set[str]) -> tuple[Node, list[str]]:
    a, b = _factors("einsum", a, b)
    a, a_names = _summed(a, a_names, set(b_names) | later)
    b, b_names = _summed(b, b_names, set(a_names) | later)
    shared = [(i, b_names.index(name)) for i, name in enumerate(a_names) if name in b_names]
    batch = [(i, j) for i, j in shared if a_names[i] in later]
    contracted = [(i, j) for i, j in shared if a_names[i] not in later]
    names = [a_names[i] for i, _ in batch]
    names += [name for name in a_names if name not in b_names] + [name for name in b_names if name not in a_names]
    return contract(a, b, batch, contracted), names


def rows() -> list[Builtin]:
    """The rows of this table."""
    return [
        row("(matmul A B)", _matmul, "The matrix product, batched by NumPy's rules."),
        row("(einsum EQUATION X…)", _einsum, 'Sums of products by named axes: (einsum "b t d, d f -> b t f" x w).'),
        row("(dot A B)", _dot, "NumPy's dot: the last axis of A with the second last of B."),
        row("(outer A B)", _outer, "The products of all pairs of elements."),
    ]
