"""Running values of reductions in CUDA C: how a lane begins, takes an element in, and how lanes are joined by halves.

The laws are those of `numba_reductions.py`: lane l takes in lane l + half, the lower lane is the left operand.
"""

from __future__ import annotations

from sexpgpu.codegen.cuda_source import CudaText
from sexpgpu.codegen.cuda_tracer import C_TYPES, formula_function, literal
from sexpgpu.codegen.layout import MANY_LANES
from sexpgpu.codegen.numba_reductions import Reduction

WARP = 32
NO_PLACE = 2**31 - 1
_OPERATORS = {"sum": "+", "prod": "*", "any": "|", "all": "&"}
_UNSIGNED = {"i32": "unsigned", "i64": "unsigned long long"}
# A bool or u8 travels between lanes as an int.
_TRAVELS = {"bool": "int", "u8": "int"}


def neutral(r: Reduction) -> str:
    return literal(r.begin, r.dtype)


def begin(r: Reduction, text: CudaText, value: str = "a", place: str = "j") -> None:
    """The lane's running value: a; its place for argmax and argmin: j."""
    text.add(f"{C_TYPES[r.dtype]} {value}{r.value} = {neutral(r)};")
    if r.picks:
        text.add(f"int {place}{r.value} = {NO_PLACE};")


def is_free_of_order(r: Reduction) -> bool:
    """Whether a lane may take its elements in from the last to the first: choices and sums of integers."""
    return r.dtype != "f32" or r.op not in ("sum", "prod")


def feed(r: Reduction, new: str, place: str, text: CudaText, backward: bool = False) -> None:
    """The lane takes in an element; `place` is its place in the row."""
    join(r, "a", "j", new, place, text, backward)


def join(r: Reduction, value: str, at: str, new: str, place: str, text: CudaText, backward: bool = False) -> None:
    """A running value and its place, begun under these letters, take in another value and its place. Of equals (±0) the
    later one is the maximum, so from the last to the first the new one is the left operand."""
    _call_join(r, text)
    old = f"{value}{r.value}"
    if r.picks:
        text.add(f"{r.op}_{r.dtype}({old}, {at}{r.value}, {new}, {place});")
    else:
        text.add(f"{old} = {r.op}_{r.dtype}({f'{new}, {old}' if backward else f'{old}, {new}'});")


def share(r: Reduction, text: CudaText) -> None:
    """The lane's running value where the whole block sees it, for `join_block` after a barrier."""
    text.add(f"__shared__ {C_TYPES[r.dtype]} s{r.value}[{MANY_LANES}];")
    text.add(f"s{r.value}[lane] = a{r.value};")
    if r.picks:
        text.add(f"__shared__ int t{r.value}[{MANY_LANES}];")
        text.add(f"t{r.value}[lane] = j{r.value};")


def join_block(r: Reduction, text: CudaText) -> None:
    """256 lanes into the first 32, in each warp alike."""
    _call_join(r, text)
    text.call(_block_function(r))
    places = f", j{r.value}, t{r.value}" if r.picks else ""
    text.add(f"block_{r.op}_{r.dtype}(a{r.value}, s{r.value}{places}, lane % {WARP});")


def join_warp(r: Reduction, width: int, mask: str, text: CudaText) -> str:
    """The expression of all lanes' result, in each of the `width` lanes that share a row."""
    _call_join(r, text)
    text.call(_warp_function(r))
    place = f", j{r.value}" if r.picks else ""
    return f"warp_{r.op}_{r.dtype}<{width}>({mask}, a{r.value}{place})"


def _call_join(r: Reduction, text: CudaText) -> None:
    if r.op in ("max", "min"):
        text.call(formula_function(f"k_{r.op}imum", (r.dtype, r.dtype)))
    text.call(_pick_function(r) if r.picks else _join_function(r))


def _join_function(r: Reduction) -> str:
    kind = C_TYPES[r.dtype]
    if r.op in ("max", "min"):
        made = f"k_{r.op}imum(a, b)"
    elif r.dtype in _UNSIGNED:
        # Signed integers wrap as unsigned ones do.
        made = f"({kind})(({_UNSIGNED[r.dtype]})a {_OPERATORS[r.op]} ({_UNSIGNED[r.dtype]})b)"
    else:
        made = f"({kind})(a {_OPERATORS[r.op]} b)"
    return f"__device__ __forceinline__ {kind} {r.op}_{r.dtype}({kind} a, {kind} b) {{ return {made}; }}\n"


def _pick_function(r: Reduction) -> str:
    """(a, j) takes in (x, i): the better value; of equals the lower place; NaN before any number."""
    kind, sign = C_TYPES[r.dtype], ">" if r.op == "argmax" else "<"
    better, equal = f"x {sign} a", "x == a"
    if r.dtype == "f32":
        better, equal = f"({better}) | ((x != x) & (a == a))", f"({equal}) | ((x != x) & (a != a))"
    return (
        f"__device__ __forceinline__ void {r.op}_{r.dtype}({kind}& a, int& j, {kind} x, int i)\n"
        "{\n"
        f"    const bool better = {better};\n"
        f"    const bool equal = {equal};\n"
        "    const bool before = better | (equal & (i < j));\n"
        "    a = before ? x : a;\n"
        "    j = before ? i : j;\n"
        "}\n"
    )


def _warp_function(r: Reduction) -> str:
    kind, join = C_TYPES[r.dtype], f"{r.op}_{r.dtype}"
    travels = _TRAVELS.get(r.dtype, kind)
    other = f"({kind})__shfl_down_sync(mask, ({travels})a, half, W)"
    step = f"{join}(a, j, {other}, __shfl_down_sync(mask, j, half, W))" if r.picks else f"a = {join}(a, {other})"
    result = "__shfl_sync(mask, j, 0, W)" if r.picks else f"({kind})__shfl_sync(mask, ({travels})a, 0, W)"
    return (
        f"template <int W> __device__ __forceinline__ {'int' if r.picks else kind} warp_{join}"
        f"(unsigned mask, {kind} a{', int j' if r.picks else ''})\n"
        "{\n"
        "    #pragma unroll\n"
        f"    for (int half = W / 2; half > 0; half /= 2) {step};\n"
        f"    return {result};\n"
        "}\n"
    )


def _block_function(r: Reduction) -> str:
    kind, join, parts = C_TYPES[r.dtype], f"{r.op}_{r.dtype}", MANY_LANES // WARP
    places = ", int& j, const int* t" if r.picks else ""
    declared = f"{kind} b[{parts}]; int i[{parts}]" if r.picks else f"{kind} b[{parts}]"
    taken = f"b[k] = s[l + {WARP} * k]" + (f", i[k] = t[l + {WARP} * k]" if r.picks else "")
    joined = f"{join}(b[k], i[k], b[k + half], i[k + half])" if r.picks else f"b[k] = {join}(b[k], b[k + half])"
    return (
        f"__device__ __forceinline__ void block_{join}({kind}& a, const {kind}* s{places}, int l)\n"
        "{\n"
        f"    {declared};\n"
        "    #pragma unroll\n"
        f"    for (int k = 0; k < {parts}; ++k) {taken};\n"
        "    #pragma unroll\n"
        f"    for (int half = {parts // 2}; half > 0; half /= 2) {{\n"
        "        #pragma unroll\n"
        f"        for (int k = 0; k < half; ++k) {joined};\n"
        "    }\n"
        f"    a = b[0]{', j = i[0]' if r.picks else ''};\n"
        "}\n"
    )
