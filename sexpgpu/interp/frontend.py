"""Kernel sources to LLVM's text by Numba, without what a loop over raw pointers never needs.

Numba is general: at every operator and call it searches among NumPy's functions, tries constants of Python, inspects
implementations, loads what was registered since; then it parses, verifies and links what it wrote. Generated kernels are
one function each of numbers, ranges and our intrinsics, so one search for each kind of call is enough, and its text is
taken as it was written.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numba.core import cgutils, compiler, funcdesc, typed_passes, types, untyped_passes
from numba.core.compiler_machinery import LoweringPass, PassManager, register_pass
from numba.core.cpu import CPUContext
from numba.core.lowering import Lower
from numba.core.typing import Context

from sexpgpu.interp.intrinsics import intrinsic_of

_SCALARS = {"f32": np.float32, "i32": np.int32, "i64": np.int64, "u8": np.uint8, "u32": np.uint32, "bool_": np.bool_}


class _Typing(Context):  # type: ignore[misc]
    """Types of calls, each found once."""

    def __init__(self) -> None:
        self.known: dict[Any, Any] = {}
        self.is_filled = False
        super().__init__()

    def refresh(self) -> None:
        """Once everything; later what intrinsics registered."""
        if self.is_filled:
            for registry in list(self._registries):
                self.install_registry(registry)
        else:
            super().refresh()
            self.is_filled = True

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        key = (func, args, tuple(kws.items()))
        if key not in self.known:
            self.known[key] = super().resolve_function_type(func, args, kws)
        return self.known[key]


class _Target(CPUContext):  # type: ignore[misc]
    """Implementations of calls, each found once a kernel (they hold the kernel's own copy of this)."""

    def __init__(self, typing: _Typing) -> None:
        self.found: dict[Any, Any] = {}
        self.is_filled = False
        super().__init__(typing, "cpu")

    def refresh(self) -> None:
        """Once everything; later what intrinsics registered."""
        if self.is_filled:
            for registry in list(self._registries):
                self.install_registry(registry)
        else:
            super().refresh()
            self.is_filled = True

    def add_linking_libs(self, libs: Any) -> None:
        assert not tuple(libs), f"a kernel calls another module: {libs}"

    def post_lowering(self, mod: Any, library: Any) -> None:
        """Nothing is linked: a kernel counts no references."""

    def get_function(self, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
        key = (fn, sig)
        if key not in self.found:
            self.found[key] = super().get_function(fn, sig, _firstcall)
        return self.found[key]


class _Lowering(Lower):  # type: ignore[misc]
    """Instructions of one kernel."""

    def init(self) -> None:
        super().init()
        self.context.found = {}

    def lower_binop(self, resty: Any, expr: Any, op: Any) -> Any:
        """As Numba does for operands that are no constants of Python; those are numbers like any other."""
        operator = self.context.typing_context.resolve_value_type(op)
        signature = self.fndesc.calltypes[expr]
        operands = [
            self.context.cast(self.builder, self.loadvar(variable.name), self.typeof(variable.name), type_)
            for variable, type_ in zip((expr.lhs, expr.rhs), signature.args, strict=True)
        ]
        result = self.context.get_function(operator, signature)(self.builder, operands)
        return self.context.cast(self.builder, result, signature.return_type, resty)

    def alloca_lltype(self, name: str, lltype: Any, datamodel: Any = None) -> Any:
        """Without the size that only a debugger asks for, found by parsing a module."""
        return cgutils.alloca_once(self.builder, lltype, name=name, zfill=False)


class _Written:
    """What Numba takes for its library: it keeps the module's text."""

    def __init__(self, target: _Target, name: str) -> None:
        self.name = name
        self.codegen = target.codegen()
        self.text = ""

    def create_ir_module(self, name: str) -> Any:
        return self.codegen._create_empty_module(name)

    def add_ir_module(self, module: Any) -> None:
        self.text = str(module)


@register_pass(mutates_CFG=True, analysis_only=False)
class _Write(LoweringPass):  # type: ignore[misc]
    """The last pass: (text, name of the function)."""

    _name = "sexpgpu_write"

    def __init__(self) -> None:
        LoweringPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        flags = state.flags
        description = funcdesc.PythonFunctionDescriptor.from_specialized_function(
            state.func_ir, state.typemap, state.return_type, state.calltypes, mangler=state.targetctx.mangler,
            inline=flags.forceinline, noalias=flags.noalias, abi_tags=[flags.get_mangle_string()],
        )  # fmt: skip
        written = _Written(state.targetctx, state.func_id.func_qualname)
        _Lowering(state.targetctx, written, description, state.func_ir, metadata=state.metadata).lower()
        state.cr = written.text, description.llvm_func_name
        return True


class _Passes(compiler.CompilerBase):  # type: ignore[misc]
    """The passes that straight loops over raw pointers need."""

    def define_pipelines(self) -> list[Any]:
        manager = PassManager("sexpgpu")
        for pass_ in (
            untyped_passes.TranslateByteCode,
            untyped_passes.FixupArgs,
            untyped_passes.IRProcessing,
            typed_passes.NopythonTypeInference,
            _Write,
        ):
            manager.add_pass(pass_, pass_.__name__)
        manager.finalize()
        return [manager]


class Frontend:
    """Numba as far as LLVM's text; made once, because its first use costs 0.2 s."""

    def __init__(self) -> None:
        self.typing = _Typing()
        self.target = _Target(self.typing)
        self.target.refresh()
        self.signature = (types.int64,) * 4
        self.flags = compiler.Flags()
        self.flags.no_compile = True
        self.flags.no_cpython_wrapper = True
        self.flags.no_cfunc_wrapper = True
        self.flags.error_model = "numpy"
        self.flags.nrt = False
        self.names: dict[str, Any] = dict(_SCALARS)

    def _namespace(self, source: str) -> dict[str, Any]:
        """The names that a source uses, as Numba knows them; an intrinsic is made once."""
        called = set(re.findall(r"\b([a-z]\w*)\(", source)) - {"range", "float", "kernel"}
        for name in sorted(called - set(self.names)):
            self.names[name] = intrinsic_of(name)
        return dict(self.names)

    def lower(self, source: str) -> tuple[str, str]:
        """The LLVM text of a source's `kernel`, and the name of its function there."""
        namespace = self._namespace(source)
        exec(compile(source, "<kernel>", "exec"), namespace)
        made: tuple[str, str] = compiler.compile_extra(
            self.typing,
            self.target,
            namespace["kernel"],
            self.signature,
            types.void,
            self.flags,
            {},
            pipeline_class=_Passes,
        )
        return made
