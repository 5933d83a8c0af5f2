"""The command line of `scripts/bench peers`: which sizes, which peers, whose Python, and where the table goes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from peers.comparison import PEERS, Disagreement, Peer, compare
from peers.table import DOCS, section, write
from peers.tasks import SIZES, Task

PAGES = (DOCS / "benchmarks.md", DOCS / "devices.md", DOCS.parent / "README.md")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="scripts/bench peers", description="Training steps of several programs, in turn."
    )
    made.add_argument("--size", action="append", choices=SIZES, help="what is trained; repeats; default toy")
    made.add_argument("--peers", default=",".join(PEERS), help=f"some of {', '.join(PEERS)}; sexpgpu is always first")
    made.add_argument("--blocks", type=int, default=25, help="blocks of steps of every peer")
    made.add_argument("--block-seconds", type=float, default=0.4, help="how long a block lasts at least")
    made.add_argument("--threads", type=int, default=0, help="cores to run on; default all of this process")
    made.add_argument("--precision", choices=("f32", "bf16"), default="f32", help="bf16: PyTorch's is its autocast")
    made.add_argument("--busy", action="store_true", help="one busy process on the same cores meanwhile")
    made.add_argument(
        "--write", action="store_true", help="put the tables into docs/benchmarks.md and where it is quoted"
    )
    for name in ("torch", "jax", "tinygrad"):
        made.add_argument(
            f"--{name}-python", default=sys.executable, metavar="PATH", help=f"the Python that has {name}"
        )
    return made


def chosen(options: argparse.Namespace) -> list[Peer]:
    """The peers that were asked for, ours first, each with its Python."""
    names = [name.strip() for name in options.peers.split(",")]
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        sys.exit(f"no peer {unknown[0]}; there are {', '.join(PEERS)}")
    pythons = {"pytorch": options.torch_python, "jax": options.jax_python, "tinygrad": options.tinygrad_python}
    found = ["sexpgpu", *(name for name in names if name != "sexpgpu")]
    return [replace(PEERS[name], python=pythons.get(name.partition("-")[0], sys.executable)) for name in found]


def main(arguments: Sequence[str]) -> None:
    options = parser().parse_args(arguments)
    cores = sorted(os.sched_getaffinity(0))
    threads = options.threads or len(cores)
    # Children inherit it, the busy process too.
    os.sched_setaffinity(0, cores[:threads])
    for name in options.size or ["toy"]:
        task = Task(name, options.precision, threads)
        try:
            made = compare(task, chosen(options), options.blocks, options.block_seconds, options.busy, say)
        except Disagreement as problem:
            sys.exit(f"{name}: the peers do not agree: {problem}")
        print(section(made), flush=True)
        if options.write:
            say("written: " + ", ".join(str(page) for page in write(made, PAGES)))


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
