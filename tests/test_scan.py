"""The in-graph loop: values and gradients against loops by hand in NumPy float64, on graphs and on the CPU's kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from elaborated import SCALES, experiment, parameter
from elaborating import errors_of, run_of, value_of
from meaning import sigmoid, softmax
from on_cpu import engine, run_graph

from sexpgpu.ir.evaluate import evaluate_graph
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.text import print_graph, read_graph
from sexpgpu.ir.verify import verify
from sexpgpu.passes.differentiate import differentiate
from sexpgpu.passes.hoist import hoist
from sexpgpu.passes.pipeline import training_graph
from sexpgpu.passes.precision import rounded
from sexpgpu.plan.build import plan
from sexpgpu.plan.kernel import Generated, Indexed, Launch, Loop, Product
from sexpgpu.plan.report import describe, totals
from sexpgpu.randomness import key_of, uniform_f32, words_of

Array = np.ndarray
# Float64 on both sides; a central difference is good to half the digits.
VALUE, GRADIENT = 1e-12, 1e-7
# Float32: about as many roundings in a row as an LSTM of five steps makes, 2^-24 each.
SINGLE = 100 * 2.0**-24
RNG = np.random.default_rng(7)


def normal(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32).astype(np.float64)


XS, YS = normal(5, 2, 3), normal(5, 2, 3)
IDS = np.array([[1, 2], [0, 4], [4, 4], [3, 1], [2, 2]], np.int32)
W, U, B, H, E, M = normal(3, 3) / 2, normal(3, 3) / 2, normal(3), normal(2, 3), normal(5, 3), normal(2, 4, 3)


# Loops by hand: a scalar loss of the fields and parameters


def rnn(v: Mapping[str, Array]) -> Array:
    h, total = np.zeros((2, 3)), np.zeros(())
    for x in v["xs"]:
        h = np.tanh(x @ v["w"] + v["b"] + h @ v["u"])
        total = total + np.sum(h * h)
    return total


def lstm(v: Mapping[str, Array]) -> Array:
    h = c = np.zeros((2, 4))
    total = np.zeros(())
    for x in v["xs"]:
        i, f, g, o = np.split(x @ v["x.weight"] + v["x.bias"] + h @ v["h.weight"], 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        total = total + np.sum(h * h)
    return total + np.sum(c)


def lists(v: Mapping[str, Array]) -> Array:
    a, b, total = np.zeros((2, 3)), np.ones((2, 3)), np.zeros(())
    for x, y in zip(v["xs"], v["ys"], strict=True):
        a, b = b * y, a @ v["w"] + x
        total = total + np.sum(np.sin(b)) + np.sum((a * b) ** 2)
    return total + np.sum(a * b)


def first_carry(v: Mapping[str, Array]) -> Array:
    h = v["h"]
    for x in v["xs"]:
        h = np.tanh(h @ v["w"] + x)
    return np.sum(h * h)


def nested(v: Mapping[str, Array]) -> Array:
    c, total = np.ones(3), np.zeros(())
    for x in v["xs"] / 4:
        inner = c
        for z in x:
            inner = np.tanh(inner @ v["w"] + c * z)
            total = total + np.sum((inner * z) ** 2)
        c = inner
    return total + np.sum(c)


def running_sum(v: Mapping[str, Array]) -> Array:
    """The parameter's gradient is elementwise: no product of stacked values."""
    c, total = v["h"], np.zeros(())
    for x in v["xs"]:
        c = np.exp(c / 8) * np.sin(v["p"] * x)
        total = total + np.sum(c)
    return total


def embedded(v: Mapping[str, Array]) -> Array:
    h, total = np.zeros((2, 3)), np.zeros(())
    for ids in v["ids"]:
        h = np.tanh(h @ v["w"] + v["e"][ids])
        total = total + np.sum(v["e"][np.argmax(h, -1)] ** 2) + np.sum(h)
    return total


def attending(v: Mapping[str, Array]) -> Array:
    c, total = np.zeros((2, 3)), np.zeros(())
    for x in v["xs"]:
        weights = softmax(np.einsum("bsh,bh->bs", v["m"], c + x))
        c = np.einsum("bs,bsh->bh", weights, v["m"])
        total = total + np.sum(c * c)
    return total


def counted(v: Mapping[str, Array]) -> Array:
    """A carry of integers, and a carry that changes places without a computation."""
    h, total = v["h"], np.zeros(())
    for n, x in enumerate(v["xs"]):
        h = h + n * x
        total = total + np.sum(h * (n + 1))
    return total


def loop(function: str, first: str, xs: str, loss: str) -> str:
    return f"(let (((last ys) (scan {function} {first} {xs}))) {loss})"


def p(name: str, value: Array) -> str:
    return parameter(name, value)


RNN = loop(
    f"(fn (h x) (let ((h (tanh (+ (+ (matmul x {p('w', W)}) {p('b', B)}) (matmul h {p('u', U)}))))) (values h h)))",
    "(zeros [2 3])", "xs", "(sum (square ys))",
)  # fmt: skip
CELL = """(fn (state x)
  (let* (((h c) state)
         ((i f g o) (split (+ (linear x 16 :name "x") (linear h 16 :name "h" :bias false)) 4 :axis -1))
         (c (+ (* (sigmoid f) c) (* (sigmoid i) (tanh g))))
         (h (* (sigmoid o) (tanh c))))
    (values [h c] h)))"""
LSTM = loop(CELL, "[(zeros [2 4]) (zeros [2 4])]", "xs", "(+ (sum (square ys)) (sum (nth last 1)))")
OF_LSTM = {"x.weight": normal(3, 16), "x.bias": normal(16), "h.weight": normal(4, 16)}
LISTS = f"""(let* ((w {p("w", W)})
  ((last ys) (scan (fn (s e) (let* (((a b) s) ((u v) e) (n (+ (matmul a w) u)) (m (* b v)))
                                (values [m n] [(sin n) (* m n)])))
                   [(zeros [2 3]) (ones [2 3])] [xs ys]))
  ((a b) last) ((y z) ys)) (+ (sum (* a b)) (+ (sum y) (sum (square z)))))"""
CASES: dict[str, tuple[str, Callable[..., Array], dict[str, Array]]] = {
    "rnn": (RNN, rnn, {"w": W, "b": B, "u": U}),
    "lstm": (LSTM, lstm, OF_LSTM),
    "lists": (LISTS, lists, {"w": W}),
    "first carry": (
        loop(f"(fn (h x) (values (tanh (+ (matmul h {p('w', W)}) x)) nil))", p("h", H), "xs", "(sum (square last))"),
        first_carry, {"h": H, "w": W},
    ),
    "nested": (
        loop(
            f"""(fn (c x) (scan (fn (d z) (let ((d (tanh (+ (matmul d {p("w", W)}) (* c z)))))
                  (values d (square (* d z))))) c x))""",
            "(ones [3])", "(/ xs 4)", "(+ (sum last) (sum ys))",
        ),
        nested, {"w": W},
    ),
    "running sum": (
        loop(f"(fn (c x) (let ((c (* (exp (/ c 8)) (sin (* {p('p', H)} x))))) (values c c)))", p("h", H), "xs", "(sum ys)"),
        running_sum, {"p": H + 1, "h": H},
    ),
    "embedded": (
        f"""(let* ((e {p("e", E)}) ((last ys) (scan (fn (h t) (let ((h (tanh (+ (matmul h {p("w", W)}) (take e t)))))
              (values h (+ h (square (take e (argmax h :axis -1))))))) (zeros [2 3]) ids))) (sum ys))""",
        embedded, {"w": W, "e": E},
    ),
    "attending": (
        f"""(let* ((m {p("m", M)}) ((last ys) (scan (fn (c x) (let* ((s (softmax (einsum "b s h, b h -> b s" m (+ c x))))
              (c (einsum "b s, b s h -> b h" s m))) (values c c))) (zeros [2 3]) xs))) (sum (square ys)))""",
        attending, {"m": M},
    ),
    "counted": (
        loop(
            "(fn (s x) (let* (((n h) s) (h (+ h (* (cast n f32) x)))) (values [(+ n 1) h] (* h (+ (cast n f32) 1)))))",
            f"[(zeros [] :dtype i32) {p('h', H)}]", "xs", "(sum ys)",
        ),
        counted, {"h": H},
    ),
}  # fmt: skip
FIELDS = {"xs": XS, "ys": YS, "ids": IDS}


def trained(name: str, folder: Path) -> tuple[Graph, dict[str, Array]]:
    expression, _, parameters = CASES[name]
    return verify(training_graph(experiment(folder, FIELDS, expression))), {**FIELDS, **parameters}


def slope(f: Callable[..., Array], values: Mapping[str, Array], name: str) -> Array:
    """Central differences of a scalar."""
    made = np.zeros(values[name].shape)
    for place in np.ndindex(made.shape):
        sides = []
        for step in (1e-5, -1e-5):
            moved = values[name].copy()
            moved[place] += step
            sides.append(float(f({**values, name: moved})))
        made[place] = (sides[0] - sides[1]) / 2e-5
    return made


@pytest.mark.parametrize("name", CASES)
def test_a_loop_has_the_value_and_the_gradients_of_the_loop_by_hand(name: str, tmp_path: Path) -> None:
    graph, values = trained(name, tmp_path)
    by_hand = CASES[name][1]
    made = evaluate_graph(graph, values, SCALES)
    np.testing.assert_allclose(made["loss"], by_hand(values), rtol=VALUE)
    for parameter_name in CASES[name][2]:
        expected = slope(by_hand, values, parameter_name)
        bound = GRADIENT * max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(made[f"gradient:{parameter_name}"], expected, rtol=0, atol=bound)


@pytest.mark.parametrize("keep_values", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_the_kernels_compute_a_loop_as_it_is_meant(name: str, keep_values: bool, tmp_path: Path) -> None:
    graph, values = trained(name, tmp_path)
    expected = evaluate_graph(graph, values, SCALES)
    made = run_graph(graph, values, SCALES, keep_values=keep_values)
    for output, value in expected.items():
        bound = SINGLE * max(1.0, float(np.abs(value).max()))
        np.testing.assert_allclose(made[output], value, rtol=0, atol=bound, err_msg=output)


def test_a_loop_has_the_bits_of_any_number_of_threads(tmp_path: Path) -> None:
    xs = normal(6, 40, 64)
    expression = LSTM.replace("16", "1024").replace("[2 4]", "[40 256]")
    graph = training_graph(experiment(tmp_path, {"xs": xs}, expression))
    values = {"xs": xs, "x.weight": normal(64, 1024) / 8, "x.bias": normal(1024), "h.weight": normal(256, 1024) / 16}
    first = run_graph(graph, values, SCALES, threads=1)
    assert np.abs(first["gradient:h.weight"]).max() > 0
    for threads in (2, 3, 4):
        made = run_graph(graph, values, SCALES, threads=threads)
        assert all(made[name].tobytes() == first[name].tobytes() for name in first)


# Lengths


def sums(xs: str, first: str = "(zeros [3])") -> str:
    return loop("(fn (c x) (values (+ c x) (+ c x)))", first, xs, "[last ys]")


@pytest.mark.parametrize("length", [0, 1, 8])
def test_a_running_sum_of_any_length_is_numpys(length: int) -> None:
    x = normal(8, 64)
    scanned = f"(slice x [0 0] [{length} 3])"
    ys = value_of(loop("(fn (c x) (values (+ c x) (+ c x)))", "(ones [3])", scanned, "ys"), x=x)
    last = value_of(loop("(fn (c x) (values (+ c x) (+ c x)))", "(ones [3])", scanned, "last"), x=x)
    expected = 1 + np.cumsum(x[:length, :3], 0)
    assert ys.shape == (length, 3)
    np.testing.assert_allclose(ys, expected, rtol=VALUE, atol=VALUE)
    np.testing.assert_allclose(last, expected[-1] if length else np.ones(3), rtol=VALUE)


def test_an_empty_loop_hands_the_gradient_to_its_first_carry(tmp_path: Path) -> None:
    loss = loop("(fn (c x) (values (tanh (+ c x)) c))", p("h", H), "(slice xs [0 0 0] [0 2 3])", "(sum (square last))")
    graph = training_graph(experiment(tmp_path, FIELDS, loss))
    assert not any(node.op == "scan" for node in graph.nodes)
    np.testing.assert_allclose(evaluate_graph(graph, {**FIELDS, "h": H}, SCALES)["gradient:h"], 2 * H, rtol=VALUE)


def test_a_number_is_a_carry_of_the_dtype_it_has_beside_what_is_scanned() -> None:
    x = normal(8, 64)
    total = value_of(loop("(fn (c x) (values (+ c (sum x)) nil))", "0", "x", "last"), x=x)
    np.testing.assert_allclose(total, x.sum(), rtol=VALUE)
    count = value_of(loop("(fn (c y) (values (+ c y) nil))", "0", "y", "last"), y=np.arange(8))
    assert count == 28


# What is computed where


def test_an_inputs_product_runs_before_the_loop_and_weight_gradients_after_it(tmp_path: Path) -> None:
    graph, _ = trained("lstm", tmp_path)
    loops = [launch for launch in plan(graph).launches if isinstance(launch, Loop)]
    products = [launch for launch in plan(graph).launches if isinstance(launch, Product)]
    inside = [[type(launch) for launch in one.launches] for one in loops]
    assert sorted((x.m, x.k, x.n) for x in products) == [(3, 10, 16), (4, 10, 16), (10, 3, 16)]
    assert [kinds.count(Product) for kinds in inside] == [1, 1]
    assert [kinds.count(Generated) for kinds in inside] == [1, 1]


def test_what_never_changes_is_computed_once(tmp_path: Path) -> None:
    loss = loop(f"(fn (c x) (values (* c (exp {p('h', H)})) (+ c (tanh x))))", "(ones [2 3])", "xs", "(sum ys)")
    graph = hoist(experiment(tmp_path, FIELDS, loss).training)
    (scan,) = (node for node in graph.nodes if node.op == "scan")
    assert "exp" in [node.op for node in graph.nodes]
    assert [node.op for node in scan.attributes["body"].nodes if node.op in ("exp", "tanh")] == ["tanh"]


def test_what_nobody_reads_is_not_stacked(tmp_path: Path) -> None:
    loss = loop("(fn (c x) (values (+ c x) [(sin x) (exp c)]))", p("h", H), "xs", "(sum (nth ys 0))")
    graph = training_graph(experiment(tmp_path, FIELDS, loss))
    bodies = [node.attributes["body"] for node in graph.nodes if node.op == "scan"]
    assert [[node.op for node in body.nodes] for body in bodies] == [["input", "sin"]]


def test_the_plan_prints_a_loop_with_its_launches_and_counts_products_every_time(tmp_path: Path) -> None:
    graph, _ = trained("rnn", tmp_path)
    made = plan(graph)
    text = describe(made, graph)
    assert "loop 5 times  " in text and "loop 5 times in reverse" in text and "field:xs parameter:w" in text
    inside, outside = 2 * (2 * 3 * 3) * 5 * 2, 2 * (10 * 3 * 3) * 3
    assert totals(made).flops == inside + outside


def test_a_graph_with_loops_reads_back_from_its_text(tmp_path: Path) -> None:
    for name in ("nested", "lstm"):
        text = print_graph(trained(name, tmp_path)[0])
        assert print_graph(verify(read_graph(text))) == text


@pytest.mark.parametrize("name", CASES)
def test_what_a_launch_reads_was_not_overwritten_by_another_value(name: str, tmp_path: Path) -> None:
    made = plan(trained(name, tmp_path)[0])
    holds: dict[int, int] = {}
    under: dict[int, int] = {}

    def blocks(buffer: int) -> tuple[int, range]:
        while buffer in under:
            buffer = under[buffer]
        kept = made.buffers[buffer]
        lines = range(kept.offset // 64, -(-(kept.offset + kept.size_bytes) // 64)) if kept.kind == "arena" else range(0)
        return buffer, lines

    def run(launches: Iterable[Launch]) -> None:
        for launch in launches:
            if isinstance(launch, Loop):
                under.update({window.buffer: window.base.buffer for window in launch.windows})
                for _ in range(launch.length):
                    run(launch.launches)
                continue
            read, written = touches(launch)
            for buffer, lines in map(blocks, read):
                assert all(holds[line] == buffer for line in lines)
            for buffer, lines in map(blocks, written):
                holds.update(dict.fromkeys(lines, buffer))

    run(made.launches)
    for place, _ in made.outputs.values():
        buffer, lines = blocks(place.buffer)
        assert all(holds[line] == buffer for line in lines)


def touches(launch: Launch) -> tuple[list[int], list[int]]:
    """The buffers that a launch reads and writes."""
    if isinstance(launch, Generated):
        return [a.place.buffer for a in launch.loads if a.place], [a.place.buffer for a in launch.stores if a.place]
    if isinstance(launch, Product):
        return [launch.a.place.buffer, launch.b.place.buffer], [launch.c.place.buffer]
    assert isinstance(launch, Indexed)
    return [at.buffer for at in launch.inputs], [launch.out.buffer]


# Derivatives of derivatives


def test_the_gradient_of_a_gradient_is_its_central_difference(tmp_path: Path) -> None:
    values = {**FIELDS, **CASES["rnn"][2]}
    graph = experiment(tmp_path, FIELDS, RNN).training
    graph = differentiate(graph, {"loss": ("number", 1.0)}, inputs(graph, "u"))
    gradient = graph.outputs["gradient:u"]
    weights = graph.add("constant", (), {"value": 1.0, "dtype": "f32", "shape": (3, 3)})
    graph.outputs = {"loss": graph.add("sum", (gradient * gradient * weights,), {"axes": (0, 1)})}
    twice = verify(differentiate(graph, {"loss": ("number", 1.0)}, inputs(graph, "u", "w")))
    made = evaluate_graph(twice, values)

    def first(v: Mapping[str, Array]) -> Array:
        return evaluate_graph(graph, v)["loss"]

    for name in ("u", "w"):
        expected = slope(first, values, name)
        bound = GRADIENT * max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(made[f"gradient:{name}"], expected, rtol=0, atol=bound)


def inputs(graph: Graph, *names: str) -> dict[str, Node]:
    return {node.attributes["name"]: node for node in graph.inputs if node.attributes["name"] in names}


# Draws


@pytest.mark.parametrize("keep_values", [False, True])
def test_a_draw_in_a_loop_has_the_index_of_its_iteration(keep_values: bool) -> None:
    graph = draws()
    made = plan(graph, keep_values=keep_values)
    loaded = engine().load(made, 3)
    loaded.run({}, 5, 9)
    got = loaded.output("u")
    expected = [uniform_f32(words_of(key_of(3, "a", 0), 7, scan=t, microbatch=5, step=9)) for t in range(12)]
    assert got.reshape(12, 7).tolist() == np.array(expected).tolist()


def draws() -> Graph:
    """[4 3 7]: a draw of 7 numbers in a loop of 3 in a loop of 4."""
    from sexpgpu.ops.scan import add_scan

    def around(inner: Graph | None, length: int, graph: Graph) -> Node:
        body = Graph("scan")
        if inner is None:
            body.outputs["out0"] = body.add("random", (), {"shape": (7,), "path": "a", "ordinal": 0})
        else:
            body.outputs["out0"] = around(None, 3, body)
        return add_scan(graph, body, [], [], [], length)[0]

    graph = Graph("draws")
    graph.outputs["u"] = around(Graph("inner"), 4, graph)
    return verify(graph)


# What is refused


@pytest.mark.parametrize(
    ("expression", "code", "message"),
    [
        ("(scan (fn (c x) (values (matmul c (ones [3 4])) nil)) (zeros [2 3]) x)", "E-SHAPE-001",
         "begins as f32[2 3] and becomes f32[2 4]"),
        ("(scan (fn (c x) (values (cast c i32) nil)) (zeros [3]) x)", "E-TYPE-001", "begins as f32[3] and becomes i32[3]"),
        ("(scan (fn (c x) (values [c c] nil)) (zeros [3]) x)", "E-TYPE-001", "becomes a list of 2"),
        ("(scan (fn (c) (values c nil)) (zeros [3]) x)", "E-SYN-002", "takes 1 argument, not 2"),
        ("(scan (fn (c x) c) (zeros [3]) x)", "E-TYPE-001", "not (values carry y)"),
        ("(scan (fn (c x) (values c x)) (zeros [3]) [x (zeros [7 2])])", "E-SHAPE-001", "the first axes differ, 8 (batch) and 7"),
        ("(scan (fn (c x) (values c x)) (zeros [3]) [])", "E-TYPE-001", "a tensor or a list of tensors, not a list of 0"),
        ("(scan (fn (c x) (values c x)) (zeros [3]) 8)", "E-TYPE-001", "not the number 8"),
        ("(scan (fn (c x) (values c x)) (zeros [3]) (sum x))", "E-SHAPE-001", "a tensor of rank 0 has none"),
        ("(scan 3 (zeros [3]) x)", "E-TYPE-004", "the number 3 is no function"),
        ('(scan (fn (c x) (values c x)) "a" x)', "E-TYPE-001", "a carry is a tensor"),
    ],
)  # fmt: skip
def test_a_wrong_loop_is_refused_at_its_place(expression: str, code: str, message: str) -> None:
    (error,) = errors_of(run_of(f"(sum (nth {expression} 1))"))
    assert error.code == code and message in error.message
    assert error.span is not None and error.span.text.startswith("(scan")


def test_parameters_of_a_loops_function_exist_once() -> None:
    from elaborating import elaborated, names

    loss = loop("(fn (c x) (values (linear (+ c (linear x 3)) 3) nil))", "(zeros [3])", "x", "(sum last)")
    assert names(elaborated(run_of(loss))) == ["linear.weight", "linear.bias", "linear_2.weight", "linear_2.bias"]


# Precision


def test_in_bfloat16_every_result_in_a_loop_is_rounded_and_products_read_rounded_parameters(tmp_path: Path) -> None:
    loss = loop(f"(fn (h x) (values (tanh (+ (matmul h {p('u', U)}) x)) nil))", "(ones [2 3])", "xs", "(sum last)")
    graph = rounded(experiment(tmp_path, FIELDS, loss, loss.replace("(sum last)", "last")).predict, "bfloat16")
    values = {"xs": XS, "u": U}
    made = evaluate_graph(graph, {name: values[name] for name in ("xs", "u")}, wide=False)["predict"]

    def bf16(x: Array) -> Array:
        return x.astype(ml_dtypes.bfloat16).astype(np.float64)

    h = np.ones((2, 3))
    for x in XS:
        h = bf16(np.tanh(bf16(bf16(h @ bf16(U)) + x)))
    np.testing.assert_array_equal(made, h.astype(np.float32))
