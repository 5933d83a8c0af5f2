"""Attention, positions and recurrences."""

from __future__ import annotations

import numpy as np

from onnx_nodes.case import Case, Left, Row, written
from onnx_nodes.rows_elementwise import TYPE


def rope(c: Case) -> str:
    """cos and sin are the model's, one row a position; [b t h·d] is split into heads and merged again."""
    heads = c.get("num_heads", 0)
    flat = c.rank() == 3
    x = f"(split-heads x {heads})" if flat else "x"
    d = c.shape()[2] // heads if flat else c.shape()[3]
    turned = c.get("rotary_embedding_dim", 0) or d
    half = turned // 2
    row = (lambda n: f"(expand-dims (take {n} w) 1)") if c.has(3) else (lambda n: f"(expand-dims {n} 1)")
    if c.get("interleaved", 0):
        parts = (f"(let (((lo hi) (split (reshape t (append (map (fn (i) (dim t i)) (range 3)) [{half} 2])) 2 :axis -1))) "
                 "(values (squeeze lo -1) (squeeze hi -1)))")  # fmt: skip
        joined = "(reshape (stack [(- (* lo c) (* hi s)) (+ (* hi c) (* lo s))] :axis -1) (shape t))"
    else:
        parts = "(split t 2 :axis -1)"
        joined = "(concat [(- (* lo c) (* hi s)) (+ (* hi c) (* lo s))] :axis -1)"
    made = (f"(let* (((t rest) (split {x} [{turned} {d - turned}] :axis -1)) (c {row('y')}) (s {row('z')}) "
            f"((lo hi) {parts})) (concat [{joined} rest] :axis -1))")  # fmt: skip
    return f"(merge-heads {made})" if flat else made


def sequence(gates: int, step: str) -> object:
    """RNN, GRU and LSTM: one scan a direction. Weights are [directions gates·hidden in]; `step` gives the next state
    from x, the state h (and c), and the weights."""

    def form(c: Case) -> str:
        layout, hidden = c.get("layout", 0), c.get("hidden_size")
        directions = c.shape(1)[0]
        if c.get("activations") or c.get("clip") or (c.has(4) and len(set(c.numbers(4))) > 1):
            raise Left("names its own activations, or sequences of unequal length")
        x = "(permute x [1 0 2])" if layout else "x"
        batch = c.shape()[0] if layout else c.shape()[1]
        outs, lasts, cells = [], [], []
        text = f"(let* ((xs {x})"
        for k in range(directions):
            backward = c.get("direction", b"forward") == b"reverse" or k == 1
            pick = lambda name, k=k: f"(squeeze (slice {name} [{k}] [{k + 1}]) 0)"  # noqa: E731
            begin = lambda place, name, pick=pick: (  # noqa: E731
                pick(f"(permute {name} [1 0 2])" if layout else name) if c.has(place) else f"(zeros [{batch} {hidden}])"
            )
            bias = pick("w") if c.has(3) else f"(zeros [{2 * gates * hidden}])"
            text += (f" (wi{k} (transpose {pick('y')})) (wh{k} (transpose {pick('z')})) (b{k} {bias})"
                     f" ((bi{k} bh{k}) (split b{k} 2))")  # fmt: skip
            start = begin(5, "u")
            if "cell" in step:
                start = f"[{start} {begin(6, 's')}]"
            over = "(flip xs :axis 0)" if backward else "xs"
            names = {"wi": f"wi{k}", "wh": f"wh{k}", "bi": f"bi{k}", "bh": f"bh{k}", "hidden": hidden,
                     "peep": f"(split {pick('r')} 3)" if c.has(7) else "(values 0 0 0)"}  # fmt: skip
            text += f" ((last{k} out{k}) (scan {step.format_map(names)} {start} {over}))"
            outs.append(f"(flip out{k} :axis 0)" if backward else f"out{k}")
            lasts.append(f"(nth last{k} 0)" if "cell" in step else f"last{k}")
            cells.append(f"(nth last{k} 1)")
        every = [f"(stack [{' '.join(part)}] :axis {axis})" for part, axis in ((outs, 1), (lasts, 0), (cells, 0))]
        if layout:
            every = [f"(permute {every[0]} [2 0 1 3])", f"(permute {every[1]} [1 0 2])", f"(permute {every[2]} [1 0 2])"]
        return f"{text}) (values {' '.join(every[k] for k in c.outputs)}))"

    return form


RNN = "(fn (h t) (let ((n (tanh (+ (+ (matmul t {wi}) {bi}) (+ (matmul h {wh}) {bh}))))) (values n n)))"
GRU = (
    "(fn (h t) (let* (((iz ir in) (split (+ (matmul t {wi}) {bi}) 3 :axis -1))"
    " ((wz wr wn) (split {wh} 3 :axis -1)) ((bz br bn) (split {bh} 3))"
    " (z (sigmoid (+ iz (+ (matmul h wz) bz)))) (r (sigmoid (+ ir (+ (matmul h wr) br))))"
    " (n (tanh (+ in LINEAR)))"
    " (next (+ (* (- 1 z) n) (* z h)))) (values next next)))"
)
LSTM = (
    "(fn (state t) (let* ((h (nth state 0)) (cell (nth state 1)) ((pi po pf) {peep})"
    " ((i o f g) (split (+ (+ (matmul t {wi}) {bi}) (+ (matmul h {wh}) {bh})) 4 :axis -1))"
    " (next (+ (* (sigmoid (+ f (* pf cell))) cell) (* (sigmoid (+ i (* pi cell))) (tanh g))))"
    " (out (* (sigmoid (+ o (* po next))) (tanh next)))) (values [out next] out)))"
)


def gru(c: Case) -> str:
    linear = "(* r (+ (matmul h wn) bn))" if c.get("linear_before_reset", 0) else "(+ (matmul (* r h) wn) bn)"
    return sequence(3, GRU.replace("LINEAR", linear))(c)  # type: ignore[operator]


def attention(c: Case) -> str:
    """Scores, softcap, mask, softmax and products in the order of the standard; [b t h·d] is split into heads."""
    flat = c.rank() == 3
    heads, groups = (c.get("q_num_heads"), c.get("kv_num_heads")) if flat else (c.shape()[1], c.shape(1)[1])
    q, k, v = ((f"(split-heads {n} {h})" for n, h in (("x", heads), ("y", groups), ("z", groups))) if flat else ("x", "y", "z"))
    kk, vv = (f"(concat [v {k}] :axis 2)", f"(concat [u {v}] :axis 2)") if c.has(4) else (k, v)
    d = c.shape()[2] // heads if flat else c.shape()[3]
    t = c.shape()[1] if flat else c.shape()[2]
    past = c.shape(4)[2] if c.has(4) else 0
    s = (c.shape(1)[1] if flat else c.shape(1)[2]) + past
    scale = c.get("scale", d**-0.5)
    mask = ""
    if c.has(3):
        wide = c.shape(3)[-1]
        hidden = "false" if c.array(3).dtype == bool else "-inf"
        widths = written([[0, 0]] * (c.rank(3) - 1) + [[0, s - wide]])
        mask = f"(pad w {widths} :value {hidden})" if wide < s else "w"
    capped = c.get("softcap", 0.0)
    left, right = c.get("left_window_size", -1), c.get("right_window_size", -1)
    rows, columns = f"(+ (expand-dims (iota {t}) -1) {past})", f"(iota {s})"
    near = []
    if c.has(6):
        # How many keys of each example are valid; the last query stands at the last of them.
        lengths = "(reshape s [-1 1 1 1])"
        rows = f"(+ (expand-dims (iota {t}) -1) (- {lengths} {t}))"
        near.append(f"(< {columns} {lengths})")
    if c.get("is_causal", 0):
        near.append(f"(<= {columns} {rows})")
    if left >= 0:
        near.append(f"(>= {columns} (- {rows} {left}))")
    if right >= 0:
        near.append(f"(<= {columns} (+ {rows} {right}))")
    grouped = f"(dim q 0) {groups} {heads // groups} {t}"
    steps = [f'(a (* {scale} (einsum "b g r t d, b g s d -> b g r t s" (reshape q [{grouped} {d}]) k)))',
             f"(a (reshape a [(dim q 0) {heads} {t} {s}]))"]  # fmt: skip
    cap = f"(a1 (* {capped} (tanh (/ a {capped}))))" if capped else "(a1 a)"
    masked = "a1"
    if mask:
        masked = f"(where {mask} a1 -inf)" if c.array(3).dtype == bool else f"(+ a1 {mask})"
    for condition in near:
        masked = f"(where {condition} {masked} -inf)"
    # A row that attends to nothing gives 0.
    steps += [cap, f"(a2 {masked})", "(m (max a2 :axis -1 :keep true))",
              "(e (exp (- a2 (where (isfinite m) m 0))))", "(n (sum e :axis -1 :keep true))",
              "(p (/ e (where (= n 0) 1 n)))",
              f'(o (reshape (einsum "b g r t s, b g s e -> b g r t e" (reshape p [{grouped} {s}]) v) '
              f"[(dim q 0) {heads} {t} (dim v 3)]))"]  # fmt: skip
    dtype = {"float16": "f16", "float32": "f32", "bfloat16": "bf16"}[c.array(0).dtype.name]
    shown = ["a", "a1", "a2", "p"][c.get("qk_matmul_output_mode", 0)]
    every = ["(merge-heads o)" if flat else "o", "k", "v", shown]
    wanted = " ".join(f"(cast {every[i]} {dtype})" for i in c.outputs)
    return f"(let* ((q {q}) (k {kk}) (v {vv}) {' '.join(steps)}) (values {wanted}))"


def plain_attention(c: Case) -> str:
    """The language's own attention where nothing is asked that it has no option for."""
    simple = not any(c.has(k) for k in (4, 5, 6)) and len(c.outputs) == 1 and not c.get("softcap", 0.0)
    whole = not c.has(3) or (c.array(3).dtype == bool and c.shape(3)[-1] == c.shape(1)[2 if c.rank() == 4 else 1])
    rows = not c.has(3) or c.array(3).any(axis=-1).all()
    windows = c.get("left_window_size", -1) >= 0 or c.get("right_window_size", -1) >= 0
    causal = c.get("is_causal", 0) and c.has(3)
    if not (simple and whole and rows) or windows or causal or (c.has(3) and c.rank(3) not in (2, 4)):
        return attention(c)
    options = (" :causal true" if c.get("is_causal", 0) else "") + (f" :scale {c.get('scale')}" if c.get("scale") else "")
    options += " :mask w" if c.has(3) else ""
    if c.rank() == 4:
        return f"(attention x y z{options})"
    q, kv = c.get("q_num_heads"), c.get("kv_num_heads")
    return f"(merge-heads (attention (split-heads x {q}) (split-heads y {kv}) (split-heads z {kv}){options}))"


SCAN = "(scan (fn (carry t) (let ((total (+ carry t))) (values total total))) {init} {xs})"


def scanned(c: Case) -> str:
    """The models' bodies are a running sum, and a sum beside a product. Opset 8 has an axis of examples, here of one."""
    if c.has(0) and len(c.inputs) == 3:
        body = "(let ((total (+ (nth carry 0) t))) (values [total (* (nth carry 1) t)] total))"
        return f"(let (((last out) (scan (fn (carry t) {body}) [x y] z))) (values (nth last 0) (nth last 1) out))"
    if c.opset >= 9:
        return SCAN.format(init="x", xs="y")
    made = SCAN.format(init="(squeeze y 0)", xs="(squeeze z 0)")
    return f"(let (((last out) {made})) (values (expand-dims last 0) (expand-dims out 0)))"

def running_product(c: Case) -> str:
    """A scan over the axis, which is moved to the front; exclusive: what came before."""
    axis = c.numbers(1)[0] % c.rank()
    order = [axis, *(i for i in range(c.rank()) if i != axis)]
    x = f"(permute x {written(order)})"
    if c.get("reverse", 0):
        x = f"(flip {x} :axis 0)"
    one = f"(ones {written([c.shape()[i] for i in order[1:]])} :dtype {TYPE[c.array(0).dtype.name]})"
    given = "p" if c.get("exclusive", 0) else "next"
    made = f"(let (((last all) (scan (fn (p t) (let ((next (* p t))) (values next {given}))) {one} {x}))) all)"
    made = f"(flip {made} :axis 0)" if c.get("reverse", 0) else made
    return f"(permute {made} {written(np.argsort(order).tolist())})"


def tensor_scatter(c: Case) -> str:
    """Rows written at a place of each example: read back by index, where one is written."""
    axis, rank, n, m = c.get("axis", -2) % c.rank(), c.rank(), c.shape()[c.get("axis", -2)], c.shape(1)[c.get("axis", -2)]
    along = written([-1 if i == axis else 1 for i in range(rank)])
    place = f"(- (reshape (iota {n}) {along}) (reshape z {written([-1, *[1] * (rank - 1)])}))"
    if c.get("mode", b"linear") == b"circular":
        place = f"(mod {place} {n})"
    full = written(c.shape())
    return (f"(let ((i (broadcast-to {place} {full}))) (where (logical-and (>= i 0) (< i {m})) "
            f"(gather y (clip i 0 {m - 1}) :axis {axis}) x))")  # fmt: skip

SEQUENCES = (
    Row("RotaryEmbedding", rope),
    Row("RNN", sequence(1, RNN)),  # type: ignore[arg-type]
    Row("GRU", gru),
    Row("LSTM", sequence(4, LSTM)),  # type: ignore[arg-type]
    Row("Attention", plain_attention),
    Row("Scan", scanned),
    Row("CumProd", running_product),
    Row("TensorScatter", tensor_scatter, exact=True),
)
