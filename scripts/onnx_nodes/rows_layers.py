"""Activations over an axis, norms, losses."""

from __future__ import annotations

from math import prod

from onnx_nodes.case import Case, Left, Row, written


def softmax(name: str) -> object:
    def form(c: Case) -> str:
        """Before opset 13 all axes from `axis` on are one."""
        if c.opset >= 13:
            return f"({name} x :axis {c.get('axis', -1)})"
        axis = c.get("axis", 1) % c.rank()
        return f"(reshape ({name} (reshape x [{prod(c.shape()[:axis])} -1])) {written(c.shape())})"

    return form


def hardmax(c: Case) -> str:
    axis = c.get("axis", -1) % c.rank()
    order = [*range(axis), c.rank() - 1, *range(axis, c.rank() - 1)]
    return f"(permute (one-hot (argmax x :axis {axis}) {c.shape()[axis]}) {written(order)})"


def normalized(c: Case, axes: list[int], epsilon: float) -> str:
    a = written(axes)
    return f"(/ (- x (mean x :axis {a} :keep true)) (sqrt (+ (var x :axis {a} :keep true) {epsilon})))"


def channels(name: str, c: Case) -> str:
    return f"(reshape {name} {written([-1, *[1] * (c.rank() - 2)])})"


def batchnorm(c: Case) -> str:
    eps, momentum, rank = c.get("epsilon", 1e-5), c.get("momentum", 0.9), c.rank()
    if not c.get("training_mode", 0):
        return (f"(+ (* (/ (- x {channels('w', c)}) (sqrt (+ {channels('v', c)} {eps}))) {channels('y', c)}) "
                f"{channels('z', c)})")  # fmt: skip
    axes = written([0, *range(2, rank)])
    y = f"(+ (* {normalized(c, [0, *range(2, rank)], eps)} {channels('y', c)}) {channels('z', c)})"
    moved = [f"(+ (* {momentum} {old}) (* {1 - momentum} ({new} x :axis {axes})))" for old, new in (("w", "mean"), ("v", "var"))]
    return f"(values {y} {moved[0]} {moved[1]})"


def instance_norm(c: Case) -> str:
    made = normalized(c, list(range(2, c.rank())), c.get("epsilon", 1e-5))
    return f"(+ (* {made} {channels('y', c)}) {channels('z', c)})"


def group_norm(c: Case) -> str:
    """Our groupnorm with the model's gain and bias, one each a channel (opset 21)."""
    c.parameters |= {"groupnorm.gain": c.array(1), "groupnorm.bias": c.array(2)}
    return f"(groupnorm x {c.get('num_groups')} :eps {c.get('epsilon', 1e-5)})"


def layernorm(c: Case) -> str:
    axes = list(range(c.get("axis", -1) % c.rank(), c.rank()))
    eps, a = c.get("epsilon", 1e-5), written(axes)
    bias = " z" if c.has(2) else " 0"
    every = [f"(+ (* (* (- x m) r) y){bias})", "m", "r"]
    wanted = " ".join(every[k] for k in c.outputs)
    return (f"(let* ((m (mean x :axis {a} :keep true)) (r (rsqrt (+ (var x :axis {a} :keep true) {eps})))) "
            f"(values {wanted}))")  # fmt: skip


def rmsnorm(c: Case) -> str:
    axes = written(list(range(c.get("axis", -1) % c.rank(), c.rank())))
    return f"(* (* x (rsqrt (+ (mean (square x) :axis {axes} :keep true) {c.get('epsilon', 1e-5)}))) y)"


def mean_variance(c: Case) -> str:
    axes = list(c.get("axes", [0, 2, 3]))
    return f"(/ (- x (mean x :axis {written(axes)} :keep true)) (+ (std x :axis {written(axes)} :keep true) 1e-9))"


def lp_norm(c: Case) -> str:
    axis, p = c.get("axis", -1), c.get("p", 2)
    length = f"(norm x :axis {axis} :keep true)" if p == 2 else f"(sum (abs x) :axis {axis} :keep true)"
    return f"(let ((n {length})) (where (= n 0) 0 (/ x (where (= n 0) 1 n))))"


def lrn(c: Case) -> str:
    """The window runs over channels: they are moved last."""
    n = c.get("size")
    before, after = (n - 1) // 2, n - 1 - (n - 1) // 2
    last, back = [0, *range(2, c.rank()), 1], [0, c.rank() - 1, *range(1, c.rank() - 1)]
    widths = [[0, 0]] * (c.rank() - 1) + [[before, after]]
    total = f"(sum (windows (pad (permute (square x) {written(last)}) {written(widths)}) [{n}]) :axis -1)"
    scale = f"(+ {c.get('bias', 1.0)} (* {c.get('alpha', 1e-4) / n} (permute {total} {written(back)})))"
    return f"(/ x (pow {scale} {c.get('beta', 0.75)}))"


def likelihood(c: Case, log_p: str, further: str = "") -> str:
    """Classes moved last; targets that are ignored weigh nothing."""
    rank, ignore = c.rank(), c.get("ignore_index")
    last = written([0, *range(2, rank), 1])
    classes = c.shape()[1]
    weight = "(take z t)" if c.has(2) else "(ones (shape t))"
    keep = "true" if ignore is None else f"(!= y {ignore})"
    target = "y" if ignore is None else f"(where {keep} y 0)"
    total = {"none": "l", "sum": "(sum l)", "mean": "(/ (sum l) (sum w))"}[c.get("reduction", b"mean").decode()]
    return (f"(let* ((p {log_p}) (t {target}) (w (where {keep} {weight} 0)) "
            f"(l (neg (* w (sum (* (permute p {last}) (one-hot t {classes})) :axis -1))))) {further.format(total) or total})"
            )  # fmt: skip


def cross_entropy(c: Case) -> str:
    return likelihood(c, "(log-softmax x :axis 1)", "(values {} p)" if len(c.outputs) > 1 else "")

def dropout(c: Case) -> str:
    ratio = float(c.array(1)) if c.has(1) else c.get("ratio", 0.5)
    if c.has(2) and bool(c.array(2)) and ratio:
        raise Left("compares random draws with those of NumPy's generator; ours are Philox")
    return "(values x (= x x))" if len(c.outputs) > 1 else f"(dropout x {ratio})"

LAYERS = (
    Row("Softmax", softmax("softmax")),  # type: ignore[arg-type]
    Row("LogSoftmax", softmax("log-softmax")),  # type: ignore[arg-type]
    Row("Hardmax", hardmax, exact=True),
    Row("BatchNormalization", batchnorm),
    Row("InstanceNormalization", instance_norm),
    Row("GroupNormalization", group_norm),
    Row("LayerNormalization", layernorm),
    Row("RMSNormalization", rmsnorm),
    Row("MeanVarianceNormalization", mean_variance),
    Row("LpNormalization", lp_norm),
    Row("LRN", lrn),
    Row("NegativeLogLikelihoodLoss", lambda c: likelihood(c, "x")),
    Row("SoftmaxCrossEntropyLoss", cross_entropy),
    Row("Dropout", dropout, exact=True),
)
