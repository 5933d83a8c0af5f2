"""Kernel sources to object code: Numba types and lowers, LLVM optimises, and the ELF object is kept.

Run as a module (`python -m sexpgpu.interp.compiling`) it is a helper process: it reads a list of sources on standard
input and writes objects into the cache, so that a cold start uses a second core.
"""

from __future__ import annotations

import gc
import json
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

from sexpgpu.interp.loading import target_machine


def _pipeline() -> type:
    """Numba's compiler with the passes that straight loops over raw pointers need: half of its usual time."""
    from numba.core import typed_passes, untyped_passes
    from numba.core.compiler import CompilerBase
    from numba.core.compiler_machinery import PassManager

    class Lean(CompilerBase):  # type: ignore[misc]
        def define_pipelines(self) -> list[Any]:
            manager = PassManager("sexpgpu")
            for pass_ in (
                untyped_passes.TranslateByteCode,
                untyped_passes.FixupArgs,
                untyped_passes.IRProcessing,
                typed_passes.NopythonTypeInference,
                typed_passes.NativeLowering,
                typed_passes.NoPythonBackend,
            ):
                manager.add_pass(pass_, pass_.__name__)
            manager.finalize()
            return [manager]

    return Lean


def _contexts() -> tuple[Any, Any]:
    """Numba's typing and target contexts, ours alone, that remember the types of calls.

    Of a kernel's time in Numba half is the search for the type of `float32 * float32` among NumPy's, again for every
    product. Nothing that kernels call changes its mind, so one search for each kind of call is enough.
    """
    from numba.core.cpu import CPUContext
    from numba.core.typing import Context

    class Typing(Context):  # type: ignore[misc]
        known: dict[Any, Any]

        def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
            key = (func, args, tuple(kws.items()))
            if key not in self.known:
                self.known[key] = super().resolve_function_type(func, args, kws)
            return self.known[key]

    typing = Typing()
    typing.known = {}
    return typing, CPUContext(typing, "cpu")


class Frontend:
    """Numba as far as LLVM's text; made once, because its first use costs 0.2 s."""

    def __init__(self) -> None:
        import numpy as np
        from numba.core import compiler, types

        self.compiler = compiler
        self.typing, self.target = _contexts()
        self.typing.refresh()
        self.target.refresh()
        self.pipeline = _pipeline()
        self.signature = (types.int64,) * 4
        self.void = types.void
        self.flags = compiler.Flags()
        self.flags.no_compile = True
        self.flags.no_cpython_wrapper = True
        self.flags.no_cfunc_wrapper = True
        self.flags.error_model = "numpy"
        self.flags.nrt = False
        self.scalars = {"f32": np.float32, "i32": np.int32, "i64": np.int64, "u8": np.uint8, "u32": np.uint32}
        self.names: dict[str, Any] = {**self.scalars, "bool_": np.bool_}

    def _namespace(self, source: str) -> dict[str, Any]:
        """The names that a source uses, as Numba knows them; an intrinsic is made once."""
        from sexpgpu.interp.intrinsics import intrinsic_of

        called = set(re.findall(r"\b([a-z]\w*)\(", source)) - {"range", "float", "kernel"}
        for name in sorted(called - set(self.names)):
            self.names[name] = intrinsic_of(name)
        return dict(self.names)

    def lower(self, source: str) -> tuple[str, str]:
        """The LLVM text of a source's `kernel`, and the name of its function there."""
        namespace = self._namespace(source)
        exec(compile(source, "<kernel>", "exec"), namespace)
        made = self.compiler.compile_extra(
            self.typing,
            self.target,
            namespace["kernel"],
            self.signature,
            self.void,
            self.flags,
            {},
            pipeline_class=self.pipeline,
        )
        return made.library.get_llvm_str(), made.fndesc.llvm_func_name


def _without_optimisation() -> Callable[[], None]:
    """Numba's own passes off: all optimisation happens in `optimise`. Gives the call that puts them on again."""
    from numba import config

    before = config.OPT
    config.OPT = type(before)(0)

    def restore() -> None:
        config.OPT = before

    return restore


def _with_entry(text: str, function: str, name: str, width: int) -> str:
    """Adds `void NAME(args, lo, hi, scratch)` and hides everything else, so that objects never clash.

    Without `no-builtins` LLVM makes calls of memset from loops, and code that calls nothing can be mapped as it is.
    """
    vectors = f'"prefer-vector-width"="{width}" "no-builtins"' if width else '"no-builtins"'
    text = re.sub(rf"define (i32 @{re.escape(function)}\([^{{]*){{", rf"define internal \1 {vectors} {{", text)
    text = text.replace("= common global", "= internal global")
    return f"""{text}
define void @{name}(i64 %a, i64 %lo, i64 %hi, i64 %s) {vectors} {{
  %unused = alloca ptr
  call i32 @{function}(ptr %unused, ptr %unused, i64 %a, i64 %lo, i64 %hi, i64 %s)
  ret void
}}
"""


def _vector_width() -> int:
    """LLVM would use half of AVX-512's width, which costs transcendentals a third of their speed."""
    import llvmlite.binding as llvm

    return 512 if llvm.get_host_cpu_features().get("avx512f") else 0


def optimise(text: str, machine: Any) -> Any:
    """An LLVM module, vectorised. Interleaving and unrolling are off: chunks and lanes are short, and text stays small."""
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(text)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = True
    options.slp_vectorization = False
    options.loop_interleaving = False
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


def compile_sources(named: Iterable[tuple[str, str]], done: Callable[[str, bytes], None]) -> None:
    """Compiles (key, source) pairs in order and hands each object to `done`; it exports `k_KEY`.

    A source that begins with `;` is LLVM text already and defines its function as `@kernel`.
    """
    import llvmlite.binding as llvm

    # A second vector loop for what the first leaves over costs a third of the code and helps short loops only.
    llvm.set_option("sexpgpu", "-enable-epilogue-vectorization=false")
    machine, width = target_machine(), _vector_width()
    restore = _without_optimisation()
    # Numba leaves much garbage and little of it in cycles; looking for it takes a tenth of the time.
    collects = gc.isenabled()
    gc.disable()
    frontend: Frontend | None = None
    try:
        for key, source in named:
            if source.startswith(";"):
                text = source.replace("@kernel(", f"@k_{key}(")
            else:
                frontend = frontend or Frontend()
                text = _with_entry(*frontend.lower(source), f"k_{key}", width)
            done(key, machine.emit_object(optimise(text, machine)))
    finally:
        restore()
        if collects:
            gc.enable()


def main() -> None:
    """The helper process."""
    from sexpgpu.interp.cache import Cache

    request = json.load(sys.stdin)
    cache = Cache(request["folder"])
    pairs = ((key, source) for key, source in request["sources"] if not cache.path(key).exists())
    compile_sources(pairs, cache.write)


if __name__ == "__main__":
    main()
