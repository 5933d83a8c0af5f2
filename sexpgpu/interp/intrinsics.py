"""The vocabulary of generated kernels as Numba intrinsics, made by name: `intrinsic_of("load_f32_3")`.

word(args, k)                     the k-th i64 at args          least, quotient, remainder   of i64
load_D_G(p, i)  store_D_G(p, i, v)  element i at address p, memory group G
cast_D_E(x)  as_E(x)              the language's cast; an integer's low bits
k_NAME(…)                         a formula of ops/formulas.py
argmax_D(x, i, y, j)  argmin_D    whether x at place i goes before y at place j
narrow_OP_D(a)  join_OP_D(a)      256 lanes at a into the first 32; 32 lanes into one value
join_argmax_D(a, b, lanes)        values at a and places at b into one place
sgemm(…)  scaled_sgemm(…)         a call of cblas_sgemm by its address
small_gemm(…)                     a call of our own product of small blocks
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sexpgpu.interp.tracer import BITS, TYPES, Emitted
from sexpgpu.ops import formulas
from sexpgpu.ops.arithmetic import Traced
from sexpgpu.ops.formulas import FORMULAS

NUMBA: dict[str, Any] = {
    "f32": types.float32,
    "i32": types.int32,
    "i64": types.int64,
    "u8": types.uint8,
    "u32": types.uint32,
    "bool": types.boolean,
}
NAMES = {type_: name for name, type_ in NUMBA.items()}
I64 = ir.IntType(64)
# What an element is in memory, and the dtype of the register that it is loaded into.
MEMORY: dict[str, Any] = {**TYPES, "bool": ir.IntType(8), "bf16": ir.IntType(16), "f16": ir.HalfType()}
REGISTER = {"bf16": "f32", "f16": "f32"}
# Accesses of a later group carry no promise.
GROUPS = 24


def _i64(value: int) -> Any:
    return ir.Constant(I64, value)


def _simple(result: Any, arguments: tuple[Any, ...], build: Callable[[Any, list[Any]], Any]) -> Any:
    """An intrinsic of one signature; `build` gets the builder and the operands and gives the result (None: void)."""

    def generate(context: Any, builder: Any, signature: Any, operands: list[Any]) -> Any:
        made = build(builder, list(operands))
        return context.get_dummy_value() if made is None else made

    return _declared(len(arguments), lambda *given: (result(*arguments), generate))


def _declared(count: int, typing: Callable[..., Any]) -> Any:
    """Numba reads an intrinsic's parameters from its signature, so each count has its own."""
    match count:
        case 1:
            return intrinsic(lambda typingctx, a: typing(a))
        case 2:
            return intrinsic(lambda typingctx, a, b: typing(a, b))
        case 3:
            return intrinsic(lambda typingctx, a, b, c: typing(a, b, c))
        case 4:
            return intrinsic(lambda typingctx, a, b, c, d: typing(a, b, c, d))
        case 6:
            return intrinsic(lambda typingctx, a, b, c, d, e, f: typing(a, b, c, d, e, f))
    raise AssertionError(count)


def _element(builder: Any, pointer: Any, index: Any, type_: Any) -> Any:
    base = builder.inttoptr(pointer, type_.as_pointer())
    return builder.gep(base, [index])


def _promise(builder: Any, instruction: Any, group: int) -> None:
    """Different groups never overlap: LLVM then vectorises without comparing addresses first."""
    if group >= GROUPS:
        return
    own, others = _scopes(builder.module, group)
    instruction.set_metadata("alias.scope", own)
    instruction.set_metadata("noalias", others)


@lru_cache(maxsize=GROUPS)
def _scopes(module: Any, group: int) -> tuple[Any, Any]:
    """A module's lists of the group's own scope and of all others; only the module that is being written is of use."""
    domain = module.add_metadata([ir.MetaDataString(module, "sexpgpu")])
    scopes = [module.add_metadata([ir.MetaDataString(module, f"group {g}"), domain]) for g in range(GROUPS)]
    own = module.add_metadata([scopes[group]])
    return own, module.add_metadata([s for g, s in enumerate(scopes) if g != group])


def _load(dtype: str, group: int) -> Any:
    def build(builder: Any, operands: list[Any]) -> Any:
        value = builder.load(
            _element(builder, operands[0], operands[1], MEMORY[dtype]), align=BITS.get(dtype, 16) // 8 or 1
        )
        _promise(builder, value, group)
        if dtype == "bool":
            return builder.icmp_unsigned("!=", value, ir.Constant(ir.IntType(8), 0))
        if dtype == "f16":
            return builder.fpext(value, TYPES["f32"])
        if dtype == "bf16":
            high = builder.shl(builder.zext(value, ir.IntType(32)), ir.Constant(ir.IntType(32), 16))
            return builder.bitcast(high, TYPES["f32"])
        return value

    return _simple(NUMBA[REGISTER.get(dtype, dtype)], (types.int64, types.int64), build)


def _store(dtype: str, group: int) -> Any:
    def build(builder: Any, operands: list[Any]) -> None:
        pointer, index, value = operands
        if dtype == "bool":
            value = builder.zext(value, ir.IntType(8))
        elif dtype == "f16":
            value = builder.fptrunc(value, ir.HalfType())
        elif dtype == "bf16":
            rounded = formulas.k_round_bf16(Emitted(builder, value, "f32"))
            pattern = builder.bitcast(rounded.value, ir.IntType(32))
            value = builder.trunc(builder.lshr(pattern, ir.Constant(ir.IntType(32), 16)), ir.IntType(16))
        address = _element(builder, pointer, index, MEMORY[dtype])
        _promise(builder, builder.store(value, address, align=BITS.get(dtype, 16) // 8 or 1), group)

    return _simple(types.void, (types.int64, types.int64, NUMBA[REGISTER.get(dtype, dtype)]), build)


def _word(builder: Any, operands: list[Any]) -> Any:
    return builder.load(_element(builder, operands[0], operands[1], I64), align=8)


def _least(builder: Any, operands: list[Any]) -> Any:
    return builder.select(builder.icmp_signed("<", *operands), *operands)


def _formula(name: str) -> Any:
    """A traced formula: its types are those of its operands."""
    formula = FORMULAS[name]
    count = formula.__code__.co_argcount

    def typing(*given: Any) -> Any:
        dtypes = [NAMES[types.unliteral(g)] for g in given]
        result = "bool" if name in ("k_isfinite", "k_not") else dtypes[1] if name == "k_select" else dtypes[0]
        result = "f32" if name == "k_random" else result

        def generate(context: Any, builder: Any, signature: Any, operands: list[Any]) -> Any:
            values = [Emitted(builder, v, d) for v, d in zip(operands, dtypes, strict=True)]
            made = formula(*values)
            assert isinstance(made, Emitted) and made.dtype == result, (name, dtypes, made)
            return made.value

        return NUMBA[result](*(NUMBA[d] for d in dtypes)), generate

    return _declared(count, typing)


def _cast(source: str, target: str) -> Any:
    register, result = REGISTER.get(source, source), REGISTER.get(target, target)

    def build(builder: Any, operands: list[Any]) -> Any:
        return _value(formulas.cast(Emitted(builder, operands[0], register), source, target))

    return _simple(NUMBA[result], (NUMBA[register],), build)


def _value(traced: Traced) -> Any:
    assert isinstance(traced, Emitted)
    return traced.value


def _low_bits(dtype: str) -> Any:
    """From whatever integer Numba computed with."""

    def typing(given: Any) -> Any:
        given = types.unliteral(given)
        width = given.bitwidth

        def generate(context: Any, builder: Any, signature: Any, operands: list[Any]) -> Any:
            if width > BITS[dtype]:
                return builder.trunc(operands[0], TYPES[dtype])
            return (
                operands[0]
                if width == BITS[dtype]
                else (builder.sext if given.signed else builder.zext)(operands[0], TYPES[dtype])
            )

        return NUMBA[dtype](given), generate

    return _declared(1, typing)


def _combine(op: str, a: Traced, b: Traced) -> Any:
    if op in ("max", "min"):
        return _value(FORMULAS[f"k_{op}imum"](a, b))
    return _value({"sum": a.__add__, "prod": a.__mul__, "any": a.__or__, "all": a.__and__}[op](b))


def _vectors(builder: Any, pointer: Any, dtype: str) -> tuple[Any, Callable[[int], Any]]:
    """The type of 32 lanes and where the k-th 32 lie."""
    vector = ir.VectorType(MEMORY[dtype], 32)
    return vector, lambda k: builder.gep(builder.inttoptr(pointer, vector.as_pointer()), [_i64(k)])


def _narrow(op: str, dtype: str) -> Any:
    """256 lanes: l takes in l + 128, then l + 64, then l + 32."""

    def build(builder: Any, operands: list[Any]) -> None:
        _, place = _vectors(builder, operands[0], dtype)
        parts = [builder.load(place(k), align=8) for k in range(8)]
        kind = "u8" if dtype == "bool" else dtype
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [
                _combine(op, Emitted(builder, parts[k], kind), Emitted(builder, parts[k + half], kind))
                for k in range(half)
            ]
        builder.store(parts[0], place(0), align=8)

    return _simple(types.void, (types.int64,), build)


def _join(op: str, dtype: str) -> Any:
    """32 lanes, by halves."""

    def build(builder: Any, operands: list[Any]) -> Any:
        _, place = _vectors(builder, operands[0], dtype)
        value = builder.load(place(0), align=8)
        kind = "u8" if dtype == "bool" else dtype
        width = 32
        while width > 1:
            width //= 2
            nothing = ir.Constant(value.type, ir.Undefined)
            halves = []
            for first in (0, width):
                mask = ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(first, first + width)))
                halves.append(Emitted(builder, builder.shuffle_vector(value, nothing, mask), kind))
            value = _combine(op, *halves)
        value = builder.extract_element(value, ir.Constant(ir.IntType(32), 0))
        return builder.icmp_unsigned("!=", value, ir.Constant(ir.IntType(8), 0)) if dtype == "bool" else value

    return _simple(NUMBA[dtype], (types.int64,), build)


def _goes_before(op: str, dtype: str, builder: Any, operands: list[Any]) -> Any:
    """The greater (or less) value; of equals the lower place; NaN before any number."""
    x, y = (Emitted(builder, operands[k], dtype) for k in (0, 2))
    i, j = (Emitted(builder, operands[k], "i32") for k in (1, 3))
    better: Traced = x > y if op == "argmax" else x < y
    equal: Traced = x == y
    if dtype == "f32":
        x_nan, y_nan = x != x, y != y
        better = better | (x_nan & _negated(y_nan))
        equal = equal | (x_nan & y_nan)
    return _value(better | (equal & (i < j)))


def _negated(x: Traced) -> Traced:
    made = FORMULAS["k_not"](x)
    assert isinstance(made, Traced)
    return made


def _pick(op: str, dtype: str) -> Any:
    return _simple(
        types.boolean, (NUMBA[dtype], types.int32, NUMBA[dtype], types.int32), partial(_goes_before, op, dtype)
    )


def _join_pick(op: str, dtype: str) -> Any:
    """One lane after the other: the order does not matter to a choice."""

    def build(builder: Any, operands: list[Any]) -> Any:
        values, places, lanes = operands
        start = builder.block
        loop, done = builder.append_basic_block("lane"), builder.append_basic_block("joined")
        value0 = builder.load(_element(builder, values, _i64(0), TYPES[dtype]))
        place0 = builder.load(_element(builder, places, _i64(0), TYPES["i32"]))
        builder.branch(loop)
        builder.position_at_end(loop)
        lane, value, place = builder.phi(I64), builder.phi(TYPES[dtype]), builder.phi(TYPES["i32"])
        for phi, first in ((lane, _i64(1)), (value, value0), (place, place0)):
            phi.add_incoming(first, start)
        new = builder.load(_element(builder, values, lane, TYPES[dtype]))
        at = builder.load(_element(builder, places, lane, TYPES["i32"]))
        before = _goes_before(op, dtype, builder, [new, at, value, place])
        following = builder.add(lane, _i64(1))
        best = builder.select(before, at, place)
        for phi, later in ((lane, following), (value, builder.select(before, new, value)), (place, best)):
            phi.add_incoming(later, loop)
        builder.cbranch(builder.icmp_signed("<", following, lanes), loop, done)
        builder.position_at_end(done)
        return best

    return _simple(types.int32, (types.int64, types.int64, types.int64), build)


def _sgemm_parts() -> tuple[Any, Any]:
    e, p, f = ir.IntType(32), I64, TYPES["f32"]
    kind = ir.FunctionType(ir.VoidType(), [e, e, e, I64, I64, I64, f, p, I64, p, I64, f, p, I64])
    return kind, f


def _call_sgemm(builder: Any, operands: list[Any], alpha: Any) -> None:
    address, flags, m, n, k, a, lda, b, ldb, c, ldc = operands
    kind, real = _sgemm_parts()
    narrow = ir.IntType(32)

    def is_set(bit: int) -> Any:
        return builder.icmp_unsigned("!=", builder.and_(flags, _i64(bit)), _i64(0))

    def transposed(bit: int) -> Any:
        return builder.select(is_set(bit), ir.Constant(narrow, 112), ir.Constant(narrow, 111))

    beta = builder.select(is_set(4), ir.Constant(real, 1.0), ir.Constant(real, 0.0))
    row_major = ir.Constant(narrow, 101)
    arguments = [row_major, transposed(1), transposed(2), m, n, k, alpha, a, lda, b, ldb, beta, c, ldc]
    builder.call(builder.inttoptr(address, kind.as_pointer()), arguments)


@intrinsic
def sgemm(  # type: ignore[no-untyped-def]
    typingctx, call, flags, m, n, k, a, lda, b, ldb, c, ldc
):
    """cblas_sgemm, row-major, with 64-bit integers: flag 1 transposes a, flag 2 b, flag 4 adds to c; alpha 1."""

    def generate(context: Any, builder: Any, signature: Any, operands: list[Any]) -> Any:
        _call_sgemm(builder, operands, ir.Constant(TYPES["f32"], 1.0))
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 11), generate


@intrinsic
def scaled_sgemm(  # type: ignore[no-untyped-def]
    typingctx, call, flags, alpha, m, n, k, a, lda, b, ldb, c, ldc
):
    """The same with an alpha."""

    def generate(context: Any, builder: Any, signature: Any, operands: list[Any]) -> Any:
        _call_sgemm(builder, [*operands[:2], *operands[3:]], operands[2])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32, *(types.int64,) * 9), generate


@intrinsic
def small_gemm(  # type: ignore[no-untyped-def]
    typingctx, call, flags, alpha, m, n, k, a, lda, b, ldb, c, ldc
):
    """Our own product of small blocks (codegen/gemm_small.py) by its address."""

    def generate(context: Any, builder: Any, signature: Any, operands: list[Any]) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [I64, TYPES["f32"], *[I64] * 9])
        builder.call(builder.inttoptr(operands[0], kind.as_pointer()), operands[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32, *(types.int64,) * 9), generate


_FIXED: dict[str, Callable[[], Any]] = {
    "word": lambda: _simple(types.int64, (types.int64, types.int64), _word),
    "least": lambda: _simple(types.int64, (types.int64, types.int64), _least),
    "quotient": lambda: _simple(types.int64, (types.int64, types.int64), lambda b, o: b.sdiv(*o)),
    "remainder": lambda: _simple(types.int64, (types.int64, types.int64), lambda b, o: b.srem(*o)),
    "scaled_sgemm": lambda: scaled_sgemm,
    "small_gemm": lambda: small_gemm,
    "sgemm": lambda: sgemm,
}


def intrinsic_of(name: str) -> Any:
    """The intrinsic of this name."""
    if name in _FIXED:
        return _FIXED[name]()
    if name.startswith("k_"):
        return _formula(name)
    match name.split("_"):
        case ["load", dtype, group]:
            return _load(dtype, int(group))
        case ["store", dtype, group]:
            return _store(dtype, int(group))
        case ["cast", source, target]:
            return _cast(source, target)
        case ["as", dtype]:
            return _low_bits(dtype)
        case ["argmax" | "argmin" as op, dtype]:
            return _pick(op, dtype)
        case ["narrow", op, dtype]:
            return _narrow(op, dtype)
        case ["join", "argmax" | "argmin" as op, dtype]:
            return _join_pick(op, dtype)
        case ["join", op, dtype]:
            return _join(op, dtype)
    raise AssertionError(name)
