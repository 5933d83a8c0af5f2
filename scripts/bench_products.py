"""`scripts/bench products`: our own matrix product against OpenBLAS by shape and order of the operands, on one thread."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sexpgpu.interp import products as choice
from sexpgpu.interp.executor import Engine
from sexpgpu.ir.types import TensorType
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.plan.kernel import Buffer, Matrix, Place, Plan, Product

# Rows, columns and depth of products in a small transformer, in GPT-2 124M, and in what lies between.
SHAPES = (
    *((512, 128, 128), (512, 384, 128), (512, 512, 128), (512, 128, 512), (128, 128, 512), (128, 512, 512)),
    *((64, 64, 32), (64, 32, 64), (2048, 1024, 256), (256, 256, 2048), (1024, 768, 768), (1024, 3072, 768)),
    *((768, 768, 1024), (128, 50257, 768), (50257, 768, 128), (1, 768, 768), (8, 3072, 768), (512, 65, 128)),
)


def main() -> None:
    """GFLOP/s of one thread by each engine; `taken` is what the interpreter chooses."""
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(1, Path(folder))
        blas, chosen = engine.blas, choice.engine_of
        print(f"{'m × n × k':<22} order   own   OpenBLAS  own/OpenBLAS  taken  bf16/f32")
        for m, n, k in SHAPES:
            for order in ("nn", "nt", "tn"):
                launch, bind = product_of(m, n, k, order, "f32")
                runs = {"own": product_run(engine, launch, bind, lambda *_: "own")}
                if blas is not None:
                    runs["blas"] = product_run(engine, launch, bind, lambda *_: "blas")
                narrow, bind_narrow = product_of(m, n, k, order, "bf16")
                runs["bf16"] = product_run(engine, narrow, bind_narrow, lambda *_: "own")
                choice.engine_of = chosen
                # Side by side, so that what disturbs one run disturbs its neighbours: ratios are of runs, their medians.
                rounds = [{name: call() for name, call in runs.items()} for _ in range(15)]
                work = 2e-9 * m * n * k * len(launch.c.starts)
                speed = {name: work / min(times[name] for times in rounds) for name in runs}
                ratio = {name: statistics.median(times["own"] / times[name] for times in rounds) for name in runs}
                sizes = f"{m} × {n} × {k}" + (f" · {len(launch.c.starts)}" if len(launch.c.starts) > 1 else "")
                other = f"{speed['blas']:8.1f} {1 / ratio['blas']:10.2f}" if blas else "       –          –"
                taken = chosen(launch, blas)
                print(f"{sizes:<22} {order} {speed['own']:8.1f} {other}     {taken:<6} {ratio['bf16']:10.2f}", flush=True)


def product_of(m: int, n: int, k: int, order: str, dtype: str) -> tuple[Product, dict[str, Any]]:
    """A launch (a batch of 32 where it is small), and its operands by name."""
    count = 32 if m * n * k < 2**19 and m > 1 else 1
    sizes = {"a": m * k, "b": k * n, "c": m * n}
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=count * size).astype(numpy_dtype(dtype)) for name, size in sizes.items()}
    starts = [tuple(size * entry for entry in range(count)) for size in sizes.values()]
    a, b = (1, m) if order[0] == "t" else (k, 1), (1, k) if order[1] == "t" else (n, 1)
    matrices = [Matrix(Place(p), *s, starts[p]) for p, s in enumerate((a, b, (n, 1)))]
    return Product(dtype, m, n, k, *matrices), arrays


def product_run(engine: Engine, launch: Product, arrays: dict[str, Any], chosen: Any) -> Callable[[], float]:
    """A call that gives the seconds of one product: of as many as take some milliseconds together."""
    choice.engine_of = chosen
    times = max(int(4e7 / (2 * launch.m * launch.n * launch.k * len(launch.c.starts))), 1)
    types = {name: TensorType(launch.dtype, array.shape) for name, array in arrays.items()}
    buffers = tuple(Buffer(name, array.nbytes, "external") for name, array in arrays.items())
    executable = engine.load(Plan((launch,) * times, buffers, 0, types, {}))
    for name, array in arrays.items():
        executable.bind(name, array)
    executable.run({})

    def call() -> float:
        begin = time.thread_time()
        executable.run({})
        return (time.thread_time() - begin) / times

    return call
