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
from functools import cache
from typing import TYPE_CHECKING, Any

from sexpgpu.interp.loading import target_machine
from sexpgpu.processes import while_wanted

if TYPE_CHECKING:
    from sexpgpu.interp.frontend import Frontend


def _with_entry(text: str, function: str, name: str, width: int) -> str:
    """Adds `void NAME(args, lo, hi, scratch)` and hides everything else, so that objects never clash.

    Without `no-builtins` LLVM makes calls of memset from loops, and code that calls nothing can be mapped as it is.
    """
    vectors = f'"prefer-vector-width"="{width}" "no-builtins"' if width else '"no-builtins"'
    # The arguments hold braces themselves; the body's stands alone on its line.
    text = re.sub(rf'define (i32 @"{re.escape(function)}"\(.*)', rf"define internal \1 {vectors}", text)
    text = text.replace("= common global", "= internal global")
    return f"""{text}
define void @{name}(i64 %a, i64 %lo, i64 %hi, i64 %s) {vectors} {{
  %unused = alloca ptr
  call i32 @"{function}"(ptr %unused, ptr %unused, i64 %a, i64 %lo, i64 %hi, i64 %s)
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


@cache
def _frontend() -> Frontend:
    """Made once a process; Numba is imported where a kernel is written for it."""
    from sexpgpu.interp.frontend import Frontend

    return Frontend()


def compile_sources(named: Iterable[tuple[str, str]], done: Callable[[str, bytes], None]) -> None:
    """Compiles (key, source) pairs in order and hands each object to `done`; it exports `k_KEY`.

    A source that begins with `;` is LLVM text already and defines its function as `@kernel`.
    """
    import llvmlite.binding as llvm

    # A second vector loop for what the first leaves over costs a third of the code and helps short loops only.
    llvm.set_option("sexpgpu", "-enable-epilogue-vectorization=false")
    machine, width = target_machine(), _vector_width()
    # Numba leaves much garbage and little of it in cycles; looking for it takes a tenth of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        for key, source in named:
            if source.startswith(";"):
                text = source.replace("@kernel(", f"@k_{key}(")
            else:
                text = _with_entry(*_frontend().lower(source), f"k_{key}", width)
            done(key, machine.emit_object(optimise(text, machine)))
    finally:
        if collects:
            gc.enable()


def main() -> None:
    """The helper process."""
    from sexpgpu.interp.cache import Cache

    request = json.load(sys.stdin)
    cache = Cache(request["folder"])
    pairs = ((key, source) for key, source in request["sources"] if not cache.path(key).exists())
    compile_sources(while_wanted(pairs), cache.write)


if __name__ == "__main__":
    main()
