"""Mutants of our CUDA kernels: one small fault each (a barrier removed, an index off by one, a mask dropped), which the
simulator's detectors or a comparison with the kernel as it is must find."""

from __future__ import annotations

import multiprocessing
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from sexpgpu.cuda.nvrtc import SourceRejected
from tests import cuda_corpus
from tests.cuda_corpus import Case

LIMIT_S = 60.0
SITES = 3  # of one operator in one kernel
LEAST_MUTANTS, LEAST_CAUGHT = 60, 0.95

# A fault's name, what it replaces and by what.
OPERATORS: tuple[tuple[str, str, str | Callable[[re.Match[str]], str]], ...] = (
    ("barrier removed", r"__syncthreads\(\);", ";"),
    ("warp's barrier removed", r"__syncwarp\([^)]*\);", ";"),
    ("guard dropped", r"if \(\w+ >= \w+\) return;", ";"),
    ("guard one too late", r"(if \(\w+ )>=( \w+\) (?:return|break|continue))", r"\1>\2"),
    # Not of unrolled loops: beyond an array of registers C has no meaning, and the compiler leaves the round out.
    ("loop one too far", r"(?<!#pragma unroll\n)(^ *for \([^;]*; \w+ )<( [^;]*;)", r"\1<=\2"),
    ("bound one too far", r"(if \([^)]*\w )<( \w+)", r"\1<=\2"),
    ("index off by one", r"\[(o\d+)\b", r"[\1 + 1"),
    ("stride off by one", r"(o\d+ = [^;]*\* )(\d+)", lambda m: f"{m[1]}{int(m[2]) + 1}"),
    ("place off by one", r"% (\d+)u\b", lambda m: f"% {max(int(m[1]) - 1, 1)}u"),
    ("shuffle from elsewhere", r"(__shfl_\w+\([^,]+, [^,]+, )(\d+)", lambda m: f"{m[1]}{max(int(m[2]) // 2, 0)}"),
    ("mask dropped", r"= \(?(\w+ [<>]=? \w+)\)? \? ([^:;]+) : [^;]+;", r"= \2;"),
    ("sum turned", r"(const \w+ \w+ = \(?\w+) \+ (\w+\)?;)", r"\1 - \2"),
    ("sum's beginning", r"= -0\.0f;|= __int_as_float\(0x80000000\);", "= 1.0f;"),
)


@dataclass(frozen=True)
class Mutant:
    """`original`: the kernel's definition or a template that it is an instance of; `text`: the same with the fault;
    `line`: the line that holds it."""

    case: Case
    fault: str
    line: str
    original: str
    text: str


def mutants_of(case: Case) -> Iterator[Mutant]:
    """The mutants of every kernel of a case and of its templates."""
    for kernel in cuda_corpus.kernels_of(case):
        for text in (kernel.text, *(function for function in kernel.functions if "template" in function)):
            yield from mutants_in(text, case)


def mutants_in(original: str, case: Case) -> Iterator[Mutant]:
    """Of each fault at most so many, spread over the text."""
    code = re.sub(r"(?m)^\s*//.*$", lambda m: " " * len(m[0]), original)
    for fault, pattern, replacement in OPERATORS:
        sites = list(re.finditer(pattern, code, re.M))
        for site in sites[:: max(-(-len(sites) // SITES), 1)]:
            new = site.expand(replacement) if isinstance(replacement, str) else replacement(site)
            if new == site[0]:
                continue
            text = original[: site.start()] + new + original[site.end() :]
            start = original.rfind("\n", 0, site.start()) + 1
            line = original[start : original.find("\n", site.start())].strip()
            yield Mutant(case, fault, line, original, text)


def verdict(mutant: Mutant, expected: list[np.ndarray]) -> str:
    """How the fault shows: `found`, `different`, `fault`; `rejected` where it is no CUDA C; `survives`."""
    try:
        findings, outputs = cuda_corpus.run(mutant.case, lambda source: source.replace(mutant.original, mutant.text))
    except SourceRejected:
        return "rejected"
    except Exception as problem:
        return f"fault: {type(problem).__name__}"
    if findings:
        return f"found: {findings[0].kind}"
    same = all(cuda_corpus.equal(mutant.case, a, b) for a, b in zip(outputs, expected, strict=True))
    return "survives" if same else "different"


def _child(answer: Connection, mutant: Mutant, expected: list[np.ndarray]) -> None:
    answer.send(verdict(mutant, expected))


def verdicts(mutants: list[tuple[Mutant, list[np.ndarray]]], processes: int) -> list[tuple[Mutant, str]]:
    """Each in a process of its own, which has a limit: a mutant may never end."""
    context = multiprocessing.get_context("fork")
    waiting, running, made = list(reversed(mutants)), [], []
    while waiting or running:
        while waiting and len(running) < processes:
            mutant, expected = waiting.pop()
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(there, mutant, expected), daemon=True)
            process.start()
            there.close()
            running.append((mutant, process, here, time.monotonic()))
        for entry in list(running):
            mutant, process, here, began = entry
            late = time.monotonic() - began > LIMIT_S
            if here.poll(0.01) or not process.is_alive() or late:
                made.append((mutant, _answer(here, late)))
                process.kill()
                process.join()
                running.remove(entry)
    return made


def _answer(here: Connection, late: bool) -> str:
    if here.poll():
        try:
            return str(here.recv())
        except EOFError:
            return "fault: its process ended"
    return "never ends" if late else "fault: its process ended"


def check(found: Any, processes: int) -> None:
    """Runs all mutants; `found` is scripts/verify's record of what held."""
    # The first case of a template, or of a kernel, is where its faults must show.
    first: dict[tuple[str, str], tuple[Mutant, list[np.ndarray]]] = {}
    for case in cuda_corpus.cases():
        findings, outputs = cuda_corpus.run(case)
        found.check(not findings, f"{case.name}: nothing is found in the kernels as they are", str(findings))
        for mutant in mutants_of(case):
            first.setdefault((mutant.original, mutant.text), (mutant, outputs))
    todo = list(first.values())
    rows = [(mutant, how) for mutant, how in verdicts(todo, processes) if how != "rejected"]
    survivors = [mutant for mutant, how in rows if how == "survives"]
    for mutant in survivors:
        found.note(f"survives: {mutant.case.name}, {mutant.fault}: {mutant.line}")
    faults = Counter(mutant.fault for mutant, _ in rows)
    found.note("; ".join(f"{fault} {count}" for fault, count in faults.items()))
    found.note("; ".join(f"{how} {count}" for how, count in Counter(how for _, how in rows).most_common()))
    caught = len(rows) - len(survivors)
    share = caught / max(len(rows), 1)
    found.check(len(rows) >= LEAST_MUTANTS, f"{len(rows)} mutants ({len(todo) - len(rows)} more are no CUDA C)")
    found.check(share >= LEAST_CAUGHT, f"{caught} of {len(rows)} caught, {share:.1%}")
