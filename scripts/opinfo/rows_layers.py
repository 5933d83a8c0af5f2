"""Layers and losses, as a user writes them; what a layer owns is PyTorch's operand."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from row import Arguments, Operand, Row, written


def owned(layer: str, **names: object) -> dict[str, Operand]:
    """The parameters of a layer that PyTorch's call gives."""
    return {f"{layer}.{name}": Operand(value) for name, value in names.items() if value is not None}  # type: ignore[arg-type]


def one_or_list(value: object) -> str:
    return written(list(value)) if isinstance(value, (list, tuple)) else str(value)


# Convolutions and pools


def convolution(name: str, layer: str, axes: int) -> Row:
    def form(a: Arguments) -> str:
        out, _, *kernel = a.weight.shape
        x = "x" if a.x.ndim == axes + 2 else "(expand-dims x 0)"
        bias = "" if a.bias is not None else " :bias false"
        made = (
            f"({layer} {x} {out} {written(kernel)} :stride {one_or_list(a.stride)} :padding {_padding(a, kernel)} "
            f":dilation {one_or_list(a.dilation)} :groups {a.groups}{bias})"
        )
        return made if x == "x" else f"(squeeze {made} 0)"

    return Row(
        name, form, "x weight bias=None stride=1 padding=0 dilation=1 groups=1",
        operands=lambda a: owned(layer, weight=a.weight, bias=a.bias),
        left=((_uneven, "pads one side more than the other: `:padding` is the same on both"),),
    )  # fmt: skip


def _each(value: object, axes: int) -> list[int]:
    made = list(value) if isinstance(value, (list, tuple)) else [value]
    return made * axes if len(made) == 1 else made  # type: ignore[return-value]


def _uneven(a: Arguments) -> bool:
    kernel = a.weight.shape[2:]
    return a.padding == "same" and any(d * (k - 1) % 2 for d, k in zip(_each(a.dilation, len(kernel)), kernel, strict=True))


def _padding(a: Arguments, kernel: list[int]) -> str:
    if a.padding == "valid":
        return "0"
    if a.padding == "same":
        return written([d * (k - 1) // 2 for d, k in zip(_each(a.dilation, len(kernel)), kernel, strict=True)])
    return one_or_list(a.padding)


def rounds_up(a: Arguments, axes: int) -> bool:
    """Whether `ceil_mode` gives another shape."""
    sizes, strides, pads = _each(a.kernel, axes), _each(a.stride or a.kernel, axes), _each(a.padding, axes)
    dilations = _each(getattr(a, "dilation", 1), axes)
    spare = [
        (n + 2 * p - d * (k - 1) - 1) % s
        for n, k, s, p, d in zip(a.x.shape[-axes:], sizes, strides, pads, dilations, strict=True)
    ]
    return bool(a.ceil_mode and any(spare))


def pool(name: str, operation: str, axes: int) -> Row:
    def form(a: Arguments) -> str:
        x = "x" if a.x.ndim == axes + 2 else "(expand-dims x 0)"
        stride = "" if a.stride in (None, [], ()) else f" :stride {one_or_list(a.stride)}"
        made = f"({operation} {x} {one_or_list(a.kernel)}{stride} :padding {one_or_list(a.padding)})"
        return made if x == "x" else f"(squeeze {made} 0)"

    ceil = (lambda a: rounds_up(a, axes), "lets a window begin inside and end outside (`ceil_mode`): no such option")
    if operation == "max-pool":
        dilated = (lambda a: set(_each(a.dilation, axes)) != {1}, "has a dilation: the pools have no such option")
        return Row(
            name, form, "x kernel_size:kernel stride=None padding=0 dilation=1 ceil_mode=False return_indices=False",
            left=(dilated, ceil), value=lambda y: y[0] if isinstance(y, tuple) else y,
        )  # fmt: skip
    counted = (
        lambda a: a.count_include_pad and any(_each(a.padding, axes)),
        "counts its padding: ours is not counted (signatures.md)",
    )
    divided = (lambda a: a.divisor is not None, "divides by a number of its own: no such option")
    signature = "x kernel_size:kernel stride=None padding=0 ceil_mode=False count_include_pad=True"
    return Row(name, form, f"{signature} divisor_override:divisor=None", left=(counted, ceil, divided))


POOLS = (
    convolution("nn.functional.conv1d", "conv1d", 1),
    convolution("nn.functional.conv2d", "conv2d", 2),
    pool("nn.functional.avg_pool1d", "avg-pool", 1),
    pool("nn.functional.avg_pool2d", "avg-pool", 2),
    pool("nn.functional.avg_pool3d", "avg-pool", 3),
    pool("nn.functional.max_pool1d", "max-pool", 1),
    pool("nn.functional.max_pool2d", "max-pool", 2),
    pool("nn.functional.max_pool3d", "max-pool", 3),
)

# Norms


def last_axes(layer: str) -> object:
    """Several axes are normalized as one."""

    def form(a: Arguments) -> str:
        eps = f" :eps {a.eps}" if a.eps is not None else ""
        bias = "" if layer == "rmsnorm" or a.bias is not None else " :bias false"
        if len(a.axes) == 1:
            return f"({layer} x{eps}{bias})"
        lead = list(a.x.shape[: a.x.ndim - len(a.axes)])
        return f"(reshape ({layer} (reshape x {written([*lead, math.prod(a.axes)])}){eps}{bias}) (shape x))"

    return form


def last_owned(layer: str) -> object:
    def operands(a: Arguments) -> Mapping[str, Operand]:
        names = {"gain": a.weight, "bias": getattr(a, "bias", None)}
        return {f"{layer}.{n}": Operand(t, lambda t: t.reshape(-1)) for n, t in names.items() if t is not None} | (
            {} if a.weight is not None else {f"{layer}.gain": Operand(a.x.detach().new_ones(math.prod(a.axes)))}
        )

    return operands


def channels(layer: str) -> object:
    def operands(a: Arguments) -> dict[str, Operand]:
        c = a.x.shape[1] if a.x.ndim > 1 else 0
        x = a.x.detach()
        weight = x.new_ones(c) if a.weight is None else a.weight
        bias = x.new_zeros(c) if a.bias is None else a.bias
        return owned(layer, gain=weight, bias=bias)

    return operands


def normalized(a: Arguments) -> dict[str, Operand]:
    return channels("batchnorm")(a) | owned("batchnorm", mean=a.mean, var=a.var)  # type: ignore[operator]


FLAT = (lambda a: a.x.ndim < 2, "has no channels, or no batch: the norm takes [b c …]")

NORMS = (
    Row("nn.functional.layer_norm", last_axes("layernorm"), "x normalized_shape:axes weight=None bias=None eps=1e-5",  # type: ignore[arg-type]
        operands=last_owned("layernorm")),  # type: ignore[arg-type]
    Row("nn.functional.rms_norm", last_axes("rmsnorm"), "x normalized_shape:axes weight=None eps=1.1920928955078125e-07",  # type: ignore[arg-type]
        operands=last_owned("rmsnorm")),  # type: ignore[arg-type]
    Row("nn.functional.group_norm", "(groupnorm x {groups} :eps {eps})", "x num_groups:groups weight=None bias=None eps=1e-5",
        operands=channels("groupnorm")),  # type: ignore[arg-type]
    Row("nn.functional.instance_norm", "(groupnorm x (dim x 1) :eps {eps})",
        "x running_mean=None running_var=None weight=None bias=None use_input_stats=True momentum=0.1 eps=1e-5",
        operands=channels("groupnorm")),  # type: ignore[arg-type]
    Row("nn.functional.batch_norm", "(batchnorm x :eps {eps} :momentum {momentum})",
        "x running_mean:mean running_var:var weight=None bias=None training=False momentum=0.1 eps=1e-5",
        operands=normalized, left=(FLAT,), training=lambda a: bool(a.training)),
    Row("nn.functional.normalize", "(/ x (maximum (norm x :axis {dim} :keep true) {eps}))", "x p=2.0 dim=1 eps=1e-12",
        left=((lambda a: a.p != 2, "asks for another norm than the 2-norm: language.md has `norm` alone"),)),
    Row("nn.functional.glu", lambda a: f"(let (((a b) (split x 2 :axis {a.dim}))) (* a (sigmoid b)))", "x dim=-1"),
    Row("nn.functional.dropout", lambda a: "(dropout x {p})", "x p=0.5 training=True",
        left=((lambda a: a.training and a.p, "draws: other random numbers than PyTorch's"),)),
    Row("nn.functional.scaled_dot_product_attention", lambda a: attended(a),
        "q k v attn_mask:mask=None dropout_p:p=0.0 is_causal:causal=False scale=None enable_gqa:gqa=False",
        left=((lambda a: a.p, "draws: other random numbers than PyTorch's"),
              (lambda a: len({a.q.ndim, a.k.ndim, a.v.ndim}) > 1,
               "broadcasts its batch: `attention` takes [b h t d] (language.md)"),
              (lambda a: a.mask is not None and a.mask.dtype != torch.bool, "adds its mask: ours is bool"),),
        terms=lambda a: cancelling(a)),
)  # fmt: skip


def cancelling(a: Arguments) -> float:
    """√(t d) products of a cotangent of 1 with v and with q or k, by their root mean squares."""
    q, k, v = (float(t.detach().square().mean().sqrt()) for t in (a.q, a.k, a.v))
    scale = a.scale or 1 / math.sqrt(a.q.shape[-1])
    return math.sqrt(a.q.shape[-1] * max(a.q.shape[-2], a.k.shape[-2])) * v * max(q, k) * scale


def attended(a: Arguments) -> str:
    options = f" :causal {written(a.causal)}" + ("" if a.mask is None else " :mask mask")
    options += "" if a.scale is None else f" :scale {a.scale}"
    whole = [t.ndim == 4 for t in (a.q, a.k, a.v)]
    if all(whole):
        return f"(attention q k v{options})"
    names = " ".join(n if w else f"(expand-dims {n} 0)" for n, w in zip("qkv", whole, strict=True))
    return f"(squeeze (attention {names}{options}) 0)"


# Losses


def reduced(text: str, reduction: str) -> str:
    return {"mean": f"(mean {text})", "sum": f"(sum {text})", "none": text}[reduction]


def loss(name: str, form: str, signature: str = "x target", **more: object) -> Row:
    """Ours gives a loss an element; PyTorch reduces them, by the mean if nothing is said."""

    def whole(a: Arguments) -> str:
        return reduced(form, a.reduction)

    slots = f'{signature} size_average=None reduce=None reduction="mean"'
    return Row(name, whole, slots, **more)  # type: ignore[arg-type]


def class_last(a: Arguments) -> str:
    """Ours has the class axis last."""
    if a.x.ndim < 3:
        return "x"
    return f"(permute x {written([0, *range(2, a.x.ndim), 1])})"


def crossed(a: Arguments) -> str:
    ignored = bool((a.target == a.ignore).any())
    options = f" :label-smoothing {a.smoothing}" if a.smoothing else ""
    options += f" :ignore {a.ignore}" if ignored else ""
    made = f"(cross-entropy {class_last(a)} target{options})"
    if a.reduction != "mean" or not ignored:
        return reduced(made, a.reduction)
    return f"(/ (sum {made}) (count-nonzero (!= target {a.ignore})))"


def picked(a: Arguments) -> str:
    """The negative of the target's element; ignored targets count as nothing."""
    ignored = bool((a.target == a.ignore).any())
    index = f"(where (= target {a.ignore}) 0 target)" if ignored else "target"
    made = f"(neg (squeeze (gather {class_last(a)} (expand-dims {index} -1) :axis -1) -1))"
    made = f"(where (= target {a.ignore}) 0 {made})" if ignored else made
    if a.reduction != "mean" or not ignored:
        return reduced(made, a.reduction)
    return f"(/ (sum {made}) (count-nonzero (!= target {a.ignore})))"


def binary(a: Arguments) -> str:
    made = "(binary-cross-entropy x target)"
    if a.positive is not None:
        made = "(+ (* (- 1 target) x) (* (+ 1 (* (- positive 1) target)) (softplus (neg x))))"
    return reduced(f"(* weight {made})" if a.weight is not None else made, a.reduction)


def divergence(a: Arguments) -> str:
    """Of each element; `kl-divergence` itself sums over the last axis."""
    logs = "(log target)"
    made = "(* (exp target) (- target x))" if a.log else f"(* target (- {logs} x))"
    summed = a.x.ndim > 0 and a.reduction != "none" and a.log
    made = "(kl-divergence target x)" if summed else made
    count = max(a.x.numel(), 1) if a.reduction == "mean" else (a.x.shape[0] if a.x.ndim else 1)
    if a.reduction == "none":
        return made
    return f"(sum {made})" if a.reduction == "sum" else f"(/ (sum {made}) {count})"


CLASSES = 'x target weight=None size_average=None ignore_index:ignore=-100 reduce=None reduction="mean"'
WEIGHTED = (lambda a: a.weight is not None, "weighs the classes: no such option")

LOSSES = (
    Row("nn.functional.cross_entropy", crossed,
        f"{CLASSES} label_smoothing:smoothing=0.0",
        left=(WEIGHTED, (lambda a: a.target.is_floating_point(),
                         "has probabilities as targets: ours are integers (signatures.md)"))),
    Row("nn.functional.nll_loss", picked,
        CLASSES, left=(WEIGHTED,)),
    Row("nn.functional.binary_cross_entropy_with_logits", binary,
        'x target weight=None size_average=None reduce=None reduction="mean" pos_weight:positive=None'),
    loss("nn.functional.mse_loss", "(mse x target)"),
    loss("nn.functional.l1_loss", "(abs (- x target))"),
    loss("nn.functional.soft_margin_loss", "(softplus (neg (* target x)))"),
    Row("nn.functional.smooth_l1_loss",
        lambda a: reduced(f"(/ (huber x target :delta {a.beta}) {a.beta})" if a.beta else "(abs (- x target))", a.reduction),
        'x target size_average=None reduce=None reduction="mean" beta=1.0'),
    Row("nn.functional.huber_loss", lambda a: reduced(f"(huber x target :delta {a.delta})", a.reduction),
        'x target reduction="mean" delta=1.0'),
    Row("nn.functional.kl_div", divergence,
        'x target size_average=None reduce=None reduction="mean" log_target:log=False'),
    Row("nn.functional.poisson_nll_loss",
        lambda a: reduced("(- (exp x) (* target x))" if a.log else f"(- x (* target (log (+ x {a.eps}))))", a.reduction),
        'x target log_input:log=True full=False size_average=None eps=1e-8 reduce=None reduction="mean"',
        left=((lambda a: a.full, "adds Stirling's terms: no such option"),)),
    Row("nn.functional.margin_ranking_loss",
        lambda a: reduced(f"(relu (+ (* (neg target) (- x other)) {a.margin}))", a.reduction),
        'x other target margin=0.0 size_average=None reduce=None reduction="mean"'),
)  # fmt: skip

LAYERS = (*POOLS, *NORMS, *LOSSES)
