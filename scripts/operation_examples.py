"""Examples of docs/operations.md, one of every operation, and what a prelude function means.

The values are what `sexpgpu eval` prints, on one line and floats to six digits: the last bit of an `exp` is the machine's.
A test runs them all.
"""

from __future__ import annotations

import re

from sexpgpu.cli.evaluate import evaluate_text

# Operation names and forms, a section each. The page takes signatures and sentences from the tables of the language.
SECTIONS: dict[str, str] = {
    "Elementwise": """
+                (+ 1 [1 2 3])
-                (- [3 4] 1)
*                (* 2 [1.5 2.5])
/                (/ [7 8] 2)
//               (// [7 -7] 2)
mod              (mod [7 -7] 3)
neg              (neg [1 -2])
abs              (abs [1 -2])
sign             (sign [-2.5 0.0 3.0])
exp              (exp [0.0 1.0])
expm1            (expm1 [0.0 1e-8])
log              (log [1.0 2.0])
log1p            (log1p [0.0 1e-8])
sqrt             (sqrt [4.0 2.0])
rsqrt            (rsqrt [4.0 0.25])
square           (square [3 -4])
pow              (pow [2.0 3.0] 3)
sin              (sin [0.0 1.0])
cos              (cos [0.0 1.0])
tanh             (tanh [0.0 1.0])
sigmoid          (sigmoid [0.0 2.0])
erf              (erf [0.0 1.0])
floor            (floor [1.5 -1.5])
ceil             (ceil [1.5 -1.5])
round            (round [0.5 1.5 2.4])
maximum          (maximum [1 5] [4 2])
minimum          (minimum [1 5] [4 2])
clip             (clip [-2 0 7] -1 5)
<                (< [1 2 3] 2)
<=               (<= [1 2 3] 2)
>                (> [1 2 3] 2)
>=               (>= [1 2 3] 2)
=                (= (iota 3) 2)
!=               (!= (iota 3) 2)
logical-and      (logical-and (> [1 2] 0) (> [1 2] 1))
logical-or       (logical-or (> [1 2] 1) (> [1 2] 2))
logical-not      (logical-not (> [1 2] 1))
where            (where [true false] [1 2] 0)
cast             (cast [1.7 -1.7 300.0] u8)
isfinite         (isfinite [1.0 inf nan])
relu             (relu [-1.0 2.0])
leaky-relu       (leaky-relu [-1.0 2.0] :slope 0.5)
elu              (elu [-1.0 2.0])
gelu             (gelu [-1.0 2.0])
gelu-tanh        (gelu-tanh [-1.0 2.0])
silu             (silu [-1.0 2.0])
softplus         (softplus [0.0 100.0])
""",
    "Reductions and order": """
sum              (sum [[1 2] [3 4]] :axis 0)
mean             (mean [[1.0 2.0] [3.0 4.0]] :axis -1 :keep true)
max              (max [[1 2] [3 4]])
min              (min [[1 2] [3 4]] :axis 1)
prod             (prod [[1 2] [3 4]] :axis 1)
var              (var [1.0 2.0 3.0] :ddof 1)
std              (std [1.0 3.0])
any              (any [[false true] [false false]] :axis 1)
all              (all [[true true] [true false]] :axis 1)
argmax           (argmax [1 5 5])
argmin           (argmin [[4 1] [2 3]] :axis 1)
logsumexp        (logsumexp [1000.0 1000.0])
norm             (norm [3.0 4.0])
count-nonzero    (count-nonzero [0 2 0 3])
sort             (sort [3 1 2])
argsort          (argsort [3 1 2])
top-k            (top-k [3 1 2] 2)
cumsum           (cumsum [1 2 3])
""",
    "Shape and places": """
zeros            (zeros [3])
ones             (ones [3] :dtype i32)
full             (full [2] 7 :dtype i64)
zeros-like       (zeros-like [1 2])
ones-like        (ones-like [1 2])
iota             (iota 4)
arange           (arange 2 5)
reshape          (reshape (iota 6) [2 -1])
transpose        (transpose [[1 2] [3 4]])
permute          (shape (permute (zeros [2 3 4]) [2 0 1]))
broadcast-to     (broadcast-to [1 2] [2 2])
expand-dims      (shape (expand-dims (zeros [2 3]) [0 -1]))
squeeze          (shape (squeeze (zeros [1 3 1]) 0))
slice            (slice (iota 6) [nil] [nil] :steps [-2])
concat           (concat [[1 2] [3]])
stack            (stack [[1 2] [3 4]] :axis 1)
split            (split (iota 5) [2 3])
pad              (pad [1 2] [[1 2]] :value 9)
flip             (flip [1 2 3])
roll             (roll [1 2 3 4] 1)
take             (take [10 20 30] [2 0 -1])
gather           (gather [[1 2] [3 4]] [[1] [0]])
scatter-add      (scatter-add [0 0 0] [2 0 2] [1 5 7])
one-hot          (one-hot [0 2] 3)
tril             (tril [[1 2] [3 4]])
triu             (triu [[1 2] [3 4]] :k 1)
windows          (windows [1 2 3 4] [2] :stride 2)
shape            (shape (zeros [2 3]))
rank             (rank (zeros [2 3]))
dim              (dim (zeros [2 3]) -1)
size             (size (zeros [2 3]))
dtype            (dtype [1 2])
""",
    "Products": """
matmul           (matmul [[1 2] [3 4]] [1 1])
einsum           (einsum "i j, j -> i" [[1 2] [3 4]] [1 1])
outer            (outer [1 2] [3 4])
dot              (dot [1 2] [3 4])
""",
    "Layers, attention and losses": """
param            (param "w" [2] ones)
buffer           (buffer "b" [2] zeros)
linear           (shape (linear (ones [2 3]) 4))
embed            (embed [[1 2] [3 4]] [1 0])
layernorm        (layernorm [1.0 3.0] :eps 0)
rmsnorm          (rmsnorm [3.0 4.0] :eps 0)
groupnorm        (groupnorm [[1.0 3.0]] 1 :eps 0)
batchnorm        (batchnorm [[1.0 3.0]] :eps 0)
softmax          (softmax [0.0 0.0])
log-softmax      (log-softmax [0.0 0.0])
split-heads      (shape (split-heads (zeros [1 4 6]) 2))
merge-heads      (shape (merge-heads (zeros [1 2 4 3])))
attention        (attention (ones [1 1 1 2]) (ones [1 1 2 2]) (reshape [1.0 3.0] [1 1 2 1]))
rope             (rope (ones [1 1 2 2]))
dropout          (dropout [1.0 2.0] 0.5)
conv1d           (shape (conv1d (zeros [1 2 8]) 4 3 :padding 1))
conv2d           (shape (conv2d (zeros [1 2 8 8]) 4 3 :stride 2))
max-pool         (max-pool [[[1.0 2.0 3.0 4.0]]] 2)
avg-pool         (avg-pool [[[1.0 2.0 3.0 4.0]]] 2)
cross-entropy    (cross-entropy [[0.0 0.0]] [1])
binary-cross-entropy (binary-cross-entropy [0.0] [1.0])
mse              (mse [1.0 2.0] [3.0 2.0])
huber            (huber [1.0 4.0] [1.5 1.0])
kl-divergence    (kl-divergence (log [0.5 0.5]) (log [0.5 0.5]))
stop-gradient    (stop-gradient [1.0 2.0])
grad             (grad (fn (x) (sum (pow x 3))) [1.0 2.0])
grad-params      (grad-params (sum (square (param "w" [2] ones))) "w")
probe            (probe "x" [1.0 2.0])
""",
    "Random draws and loops": """
random           (shape (random [2 3]))
random-uniform   (shape (random-uniform [2 3] :lo -1))
random-normal    (shape (random-normal [2 3]))
random-bernoulli (shape (random-bernoulli 0.5 [2 3]))
scan             (scan (fn (c x) (values (+ c x) (* c x))) 0 (iota 4))
""",
    "Lists and values at compile time": """
list             (list 1 2)
nth              (nth [1 2 3] -1)
length           (length [1 2 3])
append           (append [1] [2 3])
range            (range 1 7 2)
map              (map (fn (a) (* a a)) [1 2 3])
fold             (fold + 0 [1 2 3])
str              (str "w" 1)
values           (values 1 2)
each-axis        (each-axis 3 2)
""",
    "Initial values": """
normal           (shape (param "w" [2] (normal 0.02)))
trunc-normal     (shape (param "w" [2] (trunc-normal 0.02)))
uniform          (shape (param "w" [2] (uniform -1 1)))
constant         (param "w" [2] (constant 3))
kaiming          (shape (param "w" [2 3] (kaiming)))
xavier           (shape (param "w" [2 3] (xavier)))
orthogonal       (matmul (param "w" [1 1] (orthogonal)) (param "w" [1 1] (orthogonal) :share true))
""",
    "Schedules": """
warmup-cosine    (warmup-cosine 100 :peak 1.0 :warmup 10 :total 100)
warmup-linear    (warmup-linear 5 :peak 1.0 :warmup 10 :total 100)
constant-then-linear (constant-then-linear 75 :peak 1.0 :constant 50 :total 100)
""",
}

# Rows that stand in a file only: optimizers, runs, loaders.
IN_A_FILE = "update real-rows from-file weighted decays? convolution? vocab-size".split()
# Functions of the prelude that its others are made of.
INNER = (
    "attended spatial-shape every pad-around convolution pool-windows as-channels channel-statistics integer? alike rms "
    "swap-last orthogonalized largest below-diagonal progress"
).split()

MEANINGS = {
    "relu": "X where positive, else 0.", "leaky-relu": "X where positive, else slope · X.",
    "gelu": "X · Φ(X), Φ the normal distribution by erf.", "gelu-tanh": "gelu with its tanh approximation.",
    "silu": "X · sigmoid(X).", "softplus": "log(1 + e^X), without overflow.",
    "elu": "X where positive, else alpha · (e^X − 1).",
    "mean": "The mean over the axes.", "var": "The mean squared deviation, n − ddof in the denominator.",
    "std": "√var.", "norm": "The square root of the sum of squares.", "count-nonzero": "How many elements are not 0.",
    "logsumexp": "log Σ e^X, without overflow.", "softmax": "e^X / Σ e^X along an axis.",
    "log-softmax": "The logarithm of softmax, without overflow.",
    "one-hot": "1 at index I of a new last axis of N, else 0.", "tril": "X with 0 above the k-th diagonal.",
    "triu": "X with 0 below the k-th diagonal.",
    "linear": "X · weight + bias, over the last axis.", "embed": "The rows of TABLE at IDS.",
    "layernorm": "The last axis with mean 0 and variance 1, then gain and bias.",
    "rmsnorm": "The last axis over the root of its mean square, then gain.",
    "groupnorm": "Groups of channels normalized in each example, then gain and bias.",
    "batchnorm": "Channels normalized over the batch in training, by buffers elsewhere.",
    "split-heads": "[b t h·d] as [b h t d].", "merge-heads": "[b h t d] as [b t h·d].",
    "attention": "softmax(scale · Q Kᵀ) V of [b h t d], k and v perhaps of fewer heads.",
    "rope": "Positions written into [b h t d] by rotation of the halves of d.",
    "dropout": "In training each element is kept with probability 1 − P, over 1 − P.",
    "conv1d": "The convolution of [b c t].", "conv2d": "The convolution of [b c h w].",
    "max-pool": "The largest value of each window of the axes behind the channels.",
    "avg-pool": "The mean of each window; padding is not counted.",
    "cross-entropy": "−log softmax(LOGITS) at TARGETS, over the last axis.",
    "binary-cross-entropy": "Of logits, element by element.", "mse": "(A − B)², element by element.",
    "huber": "Half the square within delta, linear beyond.",
    "kl-divergence": "Σ p (log p − log q) over the last axis.",
    "random-uniform": "Uniform between lo and hi.", "random-normal": "Normal, mean 0, deviation 1.",
    "random-bernoulli": "1 with probability P, else 0.",
    "warmup-cosine": "Rises to peak, then half a cosine to floor · peak at total.",
    "warmup-linear": "Rises to peak, then falls in a line to floor · peak.",
    "constant-then-linear": "peak, then a line to floor · peak.",
    "param": "The parameter NAME of this scope.",
}  # fmt: skip


def examples() -> dict[str, str]:
    """The form of each operation."""
    pairs = [line.split(None, 1) for text in SECTIONS.values() for line in text.strip().splitlines()]
    return dict(pairs)


def value_of(form: str) -> str:
    """What the page shows as a form's value."""
    printed = " ".join(evaluate_text(form, None, (), (), 0, False, False).split())
    return re.sub(r"\d+\.\d+", lambda found: _six_digits(found[0]), printed)


def _six_digits(number: str) -> str:
    return number if len(number.replace(".", "").lstrip("0")) <= 6 else f"{float(number):.6g}"
