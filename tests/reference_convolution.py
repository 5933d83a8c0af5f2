"""Cases of convolutions and pools, whose meaning is written as loops over the windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cases import Array, Case, Kink, apart, normal, smooth

Numbers = int | Sequence[int]


def _each(value: Numbers, axes: int) -> tuple[int, ...]:
    return (value,) * axes if isinstance(value, int) else tuple(value)


def _padded(x: Array, padding: Numbers, value: float) -> Array:
    widths = [(0, 0), (0, 0), *((p, p) for p in _each(padding, x.ndim - 2))]
    return np.pad(x, widths, constant_values=value)


def _places(x: Array, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    sizes = zip(x.shape[2:], kernel, stride, dilation, strict=True)
    return tuple((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in sizes)


def convolution(
    x: Array, weight: Array, bias: Array | None = None, stride: Numbers = 1, padding: Numbers = 0, dilation: Numbers = 1,
    groups: int = 1,
) -> Array:  # fmt: skip
    """The sum over the elements of the window: each one's channels times what they weigh, at all places at once."""
    axes = x.ndim - 2
    steps, gaps = _each(stride, axes), _each(dilation, axes)
    x = _padded(x, padding, 0.0)
    places = _places(x, weight.shape[2:], steps, gaps)
    parts = []
    for of_group, w in zip(np.split(x, groups, 1), np.split(weight, groups), strict=True):
        part = np.zeros((len(x), len(w), int(np.prod(places))))
        for j in np.ndindex(weight.shape[2:]):
            at = tuple(slice(e * d, e * d + (n - 1) * s + 1, s) for e, d, n, s in zip(j, gaps, places, steps, strict=True))
            part += w[(..., *j)] @ of_group[(..., *at)].reshape(*of_group.shape[:2], -1)
        parts.append(part)
    out = np.concatenate(parts, 1).reshape(len(x), -1, *places)
    return out if bias is None else out + bias.reshape(-1, *(1,) * axes)


def pool(x: Array, kernel: Numbers, stride: Numbers | None, padding: Numbers, value: float, of: Callable[..., Any]) -> Array:
    """`of` every window over its last axis; what stands around x is `value`."""
    axes = x.ndim - 2
    sizes = _each(kernel, axes)
    steps = sizes if stride is None else _each(stride, axes)
    x = _padded(x, padding, value)
    out = np.zeros((*x.shape[:2], *_places(x, sizes, steps, (1,) * axes)))
    for place in np.ndindex(out.shape[2:]):
        cut = tuple(slice(p * s, p * s + k) for p, s, k in zip(place, steps, sizes, strict=True))
        out[(..., *place)] = of(x[(..., *cut)].reshape(*x.shape[:2], -1), axis=-1)
    return out


def max_pool(x: Array, kernel: Numbers, stride: Numbers | None = None, padding: Numbers = 0) -> Array:
    return pool(x, kernel, stride, padding, -np.inf, np.max)


def avg_pool(x: Array, kernel: Numbers, stride: Numbers | None = None, padding: Numbers = 0) -> Array:
    return pool(x, kernel, stride, padding, np.nan, np.nanmean)


def _options(told: dict[str, Any]) -> str:
    def text(value: Any) -> str:
        return f"[{' '.join(map(str, value))}]" if isinstance(value, (list, tuple)) else str(value)

    return "".join(f" :{name} {text(value)}" for name, value in told.items())


def _convolved(x: tuple[int, ...], out: int, kernel: Numbers, **told: Any) -> Case:
    axes, groups = len(x) - 2, told.get("groups", 1)
    name = f"conv{axes}d"
    sizes = _each(kernel, axes)
    shown = f"[{' '.join(map(str, kernel))}]" if isinstance(kernel, list) else str(kernel)
    expression = f"({name} x {out} {shown}{_options(told)})"
    parameters = {f"{name}.weight": normal(21, out, x[1] // groups, *sizes), f"{name}.bias": normal(22, out)}

    def reference(x: Array, weight: Array, bias: Array) -> Array:
        return convolution(x, weight, bias, **told)

    return Case(f"{expression} of {list(x)}", expression, {"x": normal(20, *x)}, reference, ("x", *parameters), parameters)


def convolutions() -> list[Case]:
    image, wide = (2, 4, 7, 6), (2, 3, 9, 8)
    of_images = [
        (image, 3, 1, {}), (image, 3, 1, {"stride": 2}), (image, 3, 1, {"padding": 1}), (image, 3, 3, {}),
        (image, 3, 3, {"padding": 1}), (image, 3, 3, {"padding": 1, "stride": 2}), (image, 3, 2, {"stride": 2}),
        (image, 3, 2, {"padding": 2}), (image, 3, 3, {"padding": 3}), (image, 3, 2, {"stride": 3}),
        (image, 3, 4, {"stride": [2, 1], "padding": [1, 0]}), (image, 3, [7, 6], {}), (image, 3, [1, 3], {"padding": [0, 1]}),
        (image, 3, [3, 2], {"stride": [2, 3], "padding": [2, 1]}), (image, 6, 3, {"groups": 2, "padding": 1}),
        (image, 4, 3, {"groups": 4, "padding": 1}), (image, 8, 2, {"groups": 4, "stride": 2}), (image, 4, 1, {"groups": 2}),
        (wide, 2, 3, {"dilation": 2}), (wide, 2, 3, {"dilation": [1, 3], "padding": [0, 2]}),
        (wide, 2, 2, {"dilation": 2, "stride": 2, "padding": 2}), (wide, 3, 3, {"dilation": 2, "groups": 3, "padding": 2}),
        ((1, 1, 1, 1), 1, 1, {}), ((1, 1, 3, 3), 1, 3, {}), ((1, 8, 8, 8), 8, 3, {"padding": 1}),
    ]  # fmt: skip
    series = [
        ((2, 3, 9), 4, 3, {}), ((2, 3, 9), 4, 4, {"stride": 2, "padding": 1}), ((2, 4, 9), 4, [2], {"groups": 2, "dilation": 3}),
        ((2, 4, 5), 4, 5, {}), ((2, 3, 33), 1, 1, {}),
    ]  # fmt: skip
    cases = [_convolved(x, out, kernel, **told) for x, out, kernel, told in (*of_images, *series)]  # type: ignore[arg-type]
    x, weight, second = normal(23, 2, 3, 6, 6), normal(24, 4, 3, 3, 3), normal(25, 2, 4, 3, 3)
    bare = "(conv2d x 4 3 :padding 1 :bias false)"
    both = "(relu (conv2d x 4 3 :padding 1 :stride 2 :bias false)) 2 3 :bias false"
    return [
        *cases,
        Case("conv2d without bias", bare, {"x": x}, lambda x, w: convolution(x, w, padding=1),
             ("x", "conv2d.weight"), {"conv2d.weight": weight}),
        Case("two convolutions", f"(conv2d {both})", {"x": x},
             lambda x, v, w: convolution(np.maximum(convolution(x, v, None, 2, 1), 0), w),
             ("x", "conv2d.weight", "conv2d_2.weight"), {"conv2d.weight": weight, "conv2d_2.weight": second}),
    ]  # fmt: skip


def pools() -> list[Case]:
    told: list[tuple[Any, dict[str, Any]]] = [
        (2, {}), (3, {}), (1, {}), (3, {"stride": 2}), (3, {"stride": 1, "padding": 1}), (3, {"stride": 2, "padding": 1}),
        (2, {"stride": 3}), ([7, 6], {}), ([2, 3], {"stride": [1, 2], "padding": [1, 0]}), (4, {"padding": 2, "stride": 1}),
    ]  # fmt: skip
    cases = []
    for op, meaning in (("max-pool", max_pool), ("avg-pool", avg_pool)):
        for kernel, options in told:
            shown = f"[{' '.join(map(str, kernel))}]" if isinstance(kernel, list) else str(kernel)
            expression = f"({op} x {shown}{_options(options)})"

            def reference(x: Array, of: Any = meaning, kernel: Any = kernel, options: Any = options) -> Array:
                return of(x, kernel, **options)

            cases.append(smooth(expression, expression, reference, x=apart(26, 2, 3, 7, 6)))
        series = f"({op} x 3 :stride 2)"
        cases.append(smooth(f"{series} of a series", series, lambda x, of=meaning: of(x, 3, 2), x=apart(27, 2, 3, 33)))
    return cases


def windows() -> list[Case]:
    def of(x: Array) -> Array:
        return np.lib.stride_tricks.sliding_window_view(x, (3, 2), (1, 2))[:, ::2, ::1]

    return [
        smooth("windows", "(windows x [3 2] :stride [2 1])", of, x=normal(28, 3, 7, 5)),
        smooth("windows each-axis", "(windows x (each-axis 2 2) :stride 2)",
               lambda x: np.lib.stride_tricks.sliding_window_view(x, (2, 2), (1, 2))[:, ::2, ::2], x=normal(29, 3, 7, 5)),
    ]  # fmt: skip


# As PyTorch: the first of equal elements takes all.
TIES: tuple[Kink, ...] = (
    Kink("(max-pool (reshape x [1 1 4]) 2)", (1.0, 1.0, 2.0, 2.0), (1.0, 0.0, 1.0, 0.0)),
    Kink("(max-pool (reshape x [1 1 5]) 3 :stride 1)", (3.0, 3.0, 3.0, 1.0, 3.0), (1.0, 1.0, 1.0, 0.0, 0.0)),
    Kink("(max-pool (reshape x [1 1 2 2]) 2)", (0.0, 5.0, 5.0, 5.0), (0.0, 1.0, 0.0, 0.0)),
    Kink("(max-pool (reshape x [1 1 2 2]) 3 :stride 1 :padding 1)", (7.0, 7.0, 7.0, 7.0), (4.0, 0.0, 0.0, 0.0)),
)
