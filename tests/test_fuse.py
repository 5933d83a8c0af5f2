"""How few kernels common expressions take, which values go through memory, and what is lowered away."""

from __future__ import annotations

import numpy as np
from test_differentiate import field
from test_plan import check

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.passes.differentiate import differentiate
from sexpgpu.passes.simplify import simplify
from sexpgpu.plan.build import plan
from sexpgpu.plan.kernel import Generated, Indexed, Plan, Product

RNG = np.random.default_rng(0)


def spread(x: Node, like: Node) -> Node:
    return x.graph.add("broadcast", (x,), {"shape": like.shape, "dims": tuple(range(len(x.shape)))})


def softmax(x: Node) -> Node:
    last = (len(x.shape) - 1,)
    raised = x.graph.add("exp", (x - spread(x.graph.add("max", (x,), {"axes": last}), x),))
    return raised / spread(x.graph.add("sum", (raised,), {"axes": last}), raised)


def softmax_region(x: Node) -> Node:
    body = Graph("softmax")
    argument = body.add("input", (), {"kind": "argument", "name": "a", "dtype": "f32", "shape": x.shape})
    body.outputs["y"] = softmax(argument)
    return x.graph.add("region", (x,), {"body": body})


def cross_entropy(logits: Node, targets: Node) -> Node:
    """−log softmax at the targets, summed: logits [n v], targets [n]."""
    graph, n = logits.graph, logits.shape[0]
    shifted = logits - spread(graph.add("max", (logits,), {"axes": (1,)}), logits)
    total = graph.add("log", (graph.add("sum", (graph.add("exp", (shifted,)),), {"axes": (1,)}),))
    column = graph.add("reshape", (targets,), {"shape": (n, 1)})
    picked = graph.add("reshape", (graph.add("gather", (shifted, column), {"axis": 1}),), {"shape": (n,)})
    return graph.add("sum", (total - picked,), {"axes": (0,)})


def kinds(made: Plan) -> list[str]:
    return [x.program.kind if isinstance(x, Generated) else type(x).__name__ for x in made.launches]


def test_a_softmax_is_one_row_kernel() -> None:
    graph = Graph("softmax")
    graph.outputs["y"] = softmax(field(graph, "x", np.zeros((6, 40))))
    assert kinds(check(graph, {"x": RNG.normal(size=(6, 40))})) == ["row"]


def test_cross_entropy_is_a_gather_and_rows() -> None:
    graph = Graph("loss")
    logits, targets = field(graph, "x", np.zeros((6, 40))), field(graph, "t", np.zeros(6, np.int32))
    graph.outputs["loss"] = cross_entropy(logits, targets)
    values = {"x": RNG.normal(size=(6, 40)), "t": np.arange(6, dtype=np.int32) * 7 % 40}
    made = check(graph, values)
    assert kinds(made) == ["Indexed", "row", "row"]
    (gather,) = (x for x in made.launches if isinstance(x, Indexed))
    # The logits themselves are gathered: nothing of their size is written.
    assert made.buffers[gather.inputs[0].buffer].name == "field:x"
    assert made.arena_bytes <= 4 * 64


def test_the_gradient_of_cross_entropy_needs_no_pass_of_scattering() -> None:
    graph = Graph("loss")
    logits, targets = field(graph, "x", np.zeros((6, 40))), field(graph, "t", np.zeros(6, np.int32))
    graph.outputs["loss"] = cross_entropy(logits, targets)
    graph = simplify(differentiate(graph, {"loss": ("number", 1.0)}, {"x": logits}))
    made = check(graph, {"x": RNG.normal(size=(6, 40)), "t": np.arange(6, dtype=np.int32) - 6})
    assert [x.op for x in made.launches if isinstance(x, Indexed)] == ["gather"]


def test_the_backward_pass_takes_exponentials_from_the_softmax_that_is_kept() -> None:
    graph = Graph("attention")
    x, w = field(graph, "x", np.zeros((256, 200))), field(graph, "w", np.zeros((200, 8)))
    pairs = {"batch": ((), ()), "contracted": ((1,), (0,))}
    y = graph.add("contract", (softmax_region(x * 2.0), w), pairs)
    graph.outputs["loss"] = graph.add("sum", (y * y,), {"axes": (0, 1)})
    graph = simplify(differentiate(graph, {"loss": ("number", 1.0)}, {"x": x, "w": w}))
    made = check(graph, {"x": RNG.normal(size=(256, 200)), "w": RNG.normal(size=(200, 8))})
    exponentials = [x for x in made.launches if isinstance(x, Generated) and any(i.op == "exp" for i in x.program.body)]
    assert len(exponentials) == 1


def test_the_gradient_of_a_weight_is_one_product_of_its_shape() -> None:
    graph = Graph("linear")
    x, w = field(graph, "x", np.zeros((2, 3, 17))), field(graph, "w", np.zeros((9, 17)))
    turned = graph.add("permute", (w,), {"axes": (1, 0)})
    y = graph.add("contract", (x, turned), {"batch": ((), ()), "contracted": ((2,), (0,))})
    graph.outputs["loss"] = graph.add("sum", (y * y,), {"axes": (0, 1, 2)})
    graph = simplify(differentiate(graph, {"loss": ("number", 1.0)}, {"w": w}))
    made = plan(graph, aliases={"gradient:w": "gradient:w"})
    (launch,) = (x for x in made.launches if isinstance(x, Product) and made.buffers[x.c.place.buffer].name == "gradient:w")
    assert (launch.m, launch.k, launch.n, launch.c.row) == (9, 6, 17, 17)
    check(graph, {"x": RNG.normal(size=(2, 3, 17)), "w": RNG.normal(size=(9, 17))})


def test_the_gradient_of_a_tied_embedding_is_added_to_in_place() -> None:
    graph = Graph("tied")
    w, tokens = field(graph, "w", np.zeros((30, 8)), "parameter"), field(graph, "t", np.zeros(5, np.int32))
    x = graph.add("take", (w, tokens), {"axis": 0})
    y = graph.add("contract", (x, w), {"batch": ((), ()), "contracted": ((1,), (1,))})
    graph.outputs["loss"] = graph.add("sum", (y * y,), {"axes": (0, 1)})
    graph = simplify(differentiate(graph, {"loss": ("number", 1.0)}, {"w": w}))
    check(graph, {"w": RNG.normal(size=(30, 8)), "t": np.array([3, 3, 0, 29, -1], np.int32)})
    made = plan(graph, aliases={"gradient:w": "gradient:w"})
    written = [x for x in made.launches if made.buffers[_result(x)].name == "gradient:w"]
    assert [type(x) for x in written] == [Product, Indexed]


def _result(launch: object) -> int:
    if isinstance(launch, Product):
        return launch.c.place.buffer
    if isinstance(launch, Indexed):
        return launch.out.buffer
    assert isinstance(launch, Generated)
    assert launch.stores[0].place is not None
    return launch.stores[0].place.buffer


def test_two_column_sums_over_the_same_values_share_a_kernel() -> None:
    graph = Graph("columns")
    x, y = field(graph, "x", np.zeros((50, 9))), field(graph, "y", np.zeros((50, 9)))
    graph.outputs["bias"] = graph.add("sum", (x,), {"axes": (0,)})
    graph.outputs["gain"] = graph.add("sum", (x * y,), {"axes": (0,)})
    assert kinds(check(graph, {"x": RNG.normal(size=(50, 9)), "y": RNG.normal(size=(50, 9))})) == ["column"]


def test_long_sums_are_taken_in_two_stages_of_blocks() -> None:
    graph = Graph("long")
    x = field(graph, "x", np.zeros((2048, 3)))
    graph.outputs["y"] = graph.add("sum", (x,), {"axes": (0,)})
    made = check(graph, {"x": RNG.normal(size=(2048, 3))})
    assert kinds(made) == ["column", "column"]
    assert [x.sizes for x in made.launches if isinstance(x, Generated)] == [(8, 256, 3), (8, 3)]


def test_a_row_may_be_read_through_a_view_that_steps_unevenly() -> None:
    graph = Graph("uneven")
    x = field(graph, "x", np.zeros((3, 4, 5)))
    turned = graph.add("permute", (x,), {"axes": (1, 2, 0)})
    graph.outputs["y"] = graph.add("sum", (turned * turned,), {"axes": (1, 2)})
    check(graph, {"x": RNG.normal(size=(3, 4, 5))})


def test_a_sum_of_one_repeated_value_a_row() -> None:
    graph = Graph("repeated")
    x = field(graph, "x", np.zeros(7))
    like = graph.constant(0.0, "f32", (7, 33))
    graph.outputs["y"] = graph.add("sum", (spread(x, like),), {"axes": (1,)})
    check(graph, {"x": RNG.normal(size=7)})


def test_an_operand_read_in_another_order_is_not_overwritten() -> None:
    graph = Graph("flip")
    x = field(graph, "x", np.zeros((200, 200)))
    product = graph.add("contract", (x, x), {"batch": ((), ()), "contracted": ((1,), (0,))})
    graph.outputs["y"] = product - graph.add("flip", (product,), {"axes": (1,)})
    made = check(graph, {"x": RNG.normal(size=(200, 200))})
    (last,) = (x for x in made.launches if isinstance(x, Generated))
    assert last.program.stores[0].alias is None


def test_layers_share_their_programs() -> None:
    counts = []
    for layers in (2, 6):
        graph = Graph("stack")
        x = field(graph, "x", np.zeros((8, 24)))
        w = field(graph, "w", np.zeros((24, 24)), "parameter")
        for _ in range(layers):
            y = graph.add("contract", (softmax(x), w), {"batch": ((), ()), "contracted": ((1,), (0,))})
            x = x + graph.add("tanh", (y,))
        graph.outputs["loss"] = graph.add("sum", (x,), {"axes": (0, 1)})
        graph = simplify(differentiate(graph, {"loss": ("number", 1.0)}, {"w": w}))
        counts.append(len({repr(x.program) for x in plan(graph).launches if isinstance(x, Generated)}))
    assert counts[1] <= counts[0] + 2


def cut(x: Node, start: int, limit: int) -> Node:
    """Part of the last axis."""
    rank = len(x.shape)
    starts, limits = ((0,) * (rank - 1) + (start,), (*x.shape[:-1], limit))
    return x.graph.add("slice", (x,), {"starts": starts, "limits": limits, "steps": (1,) * rank})


def test_the_operands_of_a_join_are_written_where_they_belong() -> None:
    graph = Graph("join")
    x = field(graph, "x", np.zeros((5, 8)))
    low, high = cut(x, 0, 4), cut(x, 4, 8)
    graph.outputs["y"] = graph.add("concat", (low * high, graph.add("tanh", (low + high,))), {"axis": 1})
    made = check(graph, {"x": RNG.normal(size=(5, 8))})
    assert kinds(made) == ["map"]
    assert len(made.launches[0].stores) == 2  # type: ignore[union-attr]


def test_the_gradients_of_parts_are_joined_without_zeros() -> None:
    graph = Graph("parts")
    x, w = field(graph, "x", np.zeros((6, 9))), field(graph, "w", np.zeros((9, 9)))
    whole = graph.add("contract", (x, w), {"batch": ((), ()), "contracted": ((1,), (0,))})
    a, b, c = (cut(whole, k, k + 3) for k in (0, 3, 6))
    graph.outputs["loss"] = graph.add("sum", (graph.add("tanh", (a,)) * b + c * c,), {"axes": (0, 1)})
    graph = simplify(differentiate(graph, {"loss": ("number", 1.0)}, {"w": w}))
    made = check(graph, {"x": RNG.normal(size=(6, 9)), "w": RNG.normal(size=(9, 9))})
    fills = [x for x in made.launches if isinstance(x, Generated) and not x.loads]
    assert fills == []
    (gradient,) = (x for x in made.launches if isinstance(x, Product) and (x.m, x.k, x.n) == (9, 6, 9))
    assert gradient.b.row == 9


def test_heads_that_share_keys_need_no_copy() -> None:
    graph = Graph("grouped")
    b, g, h, t, d = 2, 3, 2, 16, 8
    q, k, v = (field(graph, n, np.zeros((b, t, heads * d))) for n, heads in (("q", g * h), ("k", g), ("v", g)))
    w = field(graph, "w", np.zeros((g * h * d, 7)))

    def split(x: Node, *heads: int) -> Node:
        parts = graph.add("reshape", (x,), {"shape": (b, t, *heads, d)})
        order = (0, *range(2, 2 + len(heads)), 1, 2 + len(heads))
        return graph.add("permute", (parts,), {"axes": order})

    shared = ((0, 1), (0, 1))
    scores = graph.add("contract", (split(q, g, h), split(k, g)), {"batch": shared, "contracted": ((4,), (3,))})
    mixed = graph.add("contract", (softmax(scores), split(v, g)), {"batch": shared, "contracted": ((4,), (2,))})
    merged = graph.add("reshape", (graph.add("permute", (mixed,), {"axes": (0, 3, 1, 2, 4)}),), {"shape": (b, t, g * h * d)})
    graph.outputs["y"] = graph.add("contract", (merged, w), {"batch": ((), ()), "contracted": ((2,), (0,))})
    values = {n: RNG.normal(size=(b, t, heads * d)) for n, heads in (("q", g * h), ("k", g), ("v", g))}
    made = check(graph, values | {"w": RNG.normal(size=(g * h * d, 7))})
    assert kinds(made) == ["Product", "row", "Product", "Product"]


def test_a_copied_operand_is_copied_once() -> None:
    graph = Graph("copied")
    x, w = field(graph, "x", np.zeros((12, 10))), field(graph, "w", np.zeros((5, 4)))
    strided = graph.add("slice", (x,), {"starts": (0, 0), "limits": (12, 10), "steps": (2, 2)})
    pairs = {"batch": ((), ()), "contracted": ((1,), (0,))}
    first = graph.add("contract", (strided, w), pairs)
    graph.outputs["y"] = first
    graph.outputs["z"] = graph.add("contract", (strided, graph.add("tanh", (w,))), pairs)
    made = check(graph, {"x": RNG.normal(size=(12, 10)), "w": RNG.normal(size=(5, 4))})
    assert sorted(kinds(made)) == ["Product", "Product", "map", "map"]


def test_a_product_is_written_through_the_view_that_is_the_output() -> None:
    graph = Graph("view")
    x, w = field(graph, "x", np.zeros((6, 8))), field(graph, "w", np.zeros((8, 12)))
    product = graph.add("contract", (x, w), {"batch": ((), ()), "contracted": ((1,), (0,))})
    graph.outputs["gradient:p"] = graph.add("reshape", (product,), {"shape": (2, 3, 12)})
    values = {"x": RNG.normal(size=(6, 8)), "w": RNG.normal(size=(8, 12))}
    check(graph, values)
    made = plan(graph, aliases={"gradient:p": "gradient:p"})
    assert kinds(made) == ["Product"]


def test_maps_over_the_same_value_share_a_kernel() -> None:
    graph = Graph("gates")
    x, y = field(graph, "x", np.zeros((4, 50))), field(graph, "y", np.zeros((4, 50)))
    graph.outputs["a"] = x * graph.add("sigmoid", (y,))
    graph.outputs["b"] = graph.add("tanh", (x,)) + y
    made = check(graph, {"x": RNG.normal(size=(4, 50)), "y": RNG.normal(size=(4, 50))})
    assert kinds(made) == ["map"]


def test_an_operand_that_no_strides_express_is_copied() -> None:
    graph = Graph("scrambled")
    x, w = field(graph, "x", np.zeros((6, 4))), field(graph, "w", np.zeros((3, 5)))
    turned = graph.add("reshape", (graph.add("permute", (x,), {"axes": (1, 0)}),), {"shape": (8, 3)})
    scrambled = graph.add("reshape", (turned,), {"shape": (3, 8)})
    graph.outputs["y"] = graph.add("contract", (scrambled, w), {"batch": ((), ()), "contracted": ((0,), (0,))})
    made = check(graph, {"x": RNG.normal(size=(6, 4)), "w": RNG.normal(size=(3, 5))})
    assert kinds(made)[-1] == "Product"


def test_a_convolution_copies_no_windows() -> None:
    """Forward, both gradients: no value is larger than the padded image, but the parts of the weight's gradient."""
    graph = Graph("convolution")
    values = {"x": RNG.normal(size=(4, 3, 18, 18)), "w": RNG.normal(size=(5, 3, 3, 3))}
    x, w = (field(graph, name, value) for name, value in values.items())
    windows = graph.add("windows", (x,), {"sizes": (3, 3), "strides": (1, 1), "dilations": (1, 1)})
    y = graph.add("contract", (w, windows), {"batch": ((), ()), "contracted": ((1, 2, 3), (1, 4, 5))})
    graph.outputs["loss"] = graph.add("sum", (y * y,), {"axes": (0, 1, 2, 3)})
    graph = simplify(differentiate(graph, {"loss": ("number", 1.0)}, {"x": x, "w": w}))
    made = check(graph, values)
    largest = 5 * 4 * 20 * 20 * 4
    assert max(buffer.size_bytes for buffer in made.buffers if buffer.kind == "arena") <= largest
    weights = [p for p in made.launches if isinstance(p, Product) and p.m * p.n == 5 * 27 and len(p.c.starts) > 1]
    assert [len(p.c.starts) for p in weights] == [4]
