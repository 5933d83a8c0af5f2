"""PTX text → kernels: the module's level; `body.py` reads what stands between the braces."""

from __future__ import annotations

import re
import struct

from tests.simulator.body import Body
from tests.simulator.dtypes import DTYPES
from tests.simulator.program import Function, Kernel, Parameter, Text, Variable
from tests.simulator.report import Fault

VARIABLE = re.compile(
    r"^[ \t]*(?P<linkage>(?:\.(?:visible|extern|weak|common)\s+)*)\.(?P<space>global|const|shared)\s+"
    r"(?:\.attribute\([^)]*\)\s+)?(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+(?P<name>[\w$]+)"
    r"(?:\[(?P<count>\d*)\])?\s*(?:=\s*(?P<values>[^;]*))?;",
    re.M,
)
ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^()]*)\)([^{;]*)\{")
FUNCTION = re.compile(r"\.func\s+(?:\((?P<results>[^()]*)\)\s*)?(?P<name>[\w$]+)\s*\((?P<parameters>[^()]*)\)[^;{]*\{")
PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\s+(?:\.(?:global|shared|const|local)\s+)?"
    r"(?:\.align\s+\d+\s+)?)?([\w$]+)(?:\[(\d+)\])?"
)


def parse(text: str | bytes) -> Text:
    if isinstance(text, bytes):
        text = text.decode()
    text = clean(text.rstrip("\0"))
    variables = {found["name"]: variable(found) for found in VARIABLE.finditer(outside_bodies(text))}
    functions = {found["name"]: function(text, found) for found in FUNCTION.finditer(text)}
    kernels = [kernel(text, found, variables, functions) for found in ENTRY.finditer(text)]
    return Text({one.name: one for one in kernels}, variables)


def clean(text: str) -> str:
    """Comments and debug directives blanked; the lines keep their numbers."""

    def blank(found: re.Match[str]) -> str:
        return "\n" * found.group(0).count("\n")

    text = re.sub(r"//[^\n]*|/\*.*?\*/", blank, text, flags=re.S)
    text = re.sub(r"^\s*\.section\s+[^{]*\{.*?\}", blank, text, flags=re.S | re.M)
    return re.sub(r"^[ \t]*\.(loc|file)\b[^\n]*", "", text, flags=re.M)


def closing(text: str, start: int) -> int:
    """Where the brace closes that was opened just before `start`."""
    depth = 1
    for found in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if found.group(0) == "{" else -1
        if depth == 0:
            return found.start()
    raise Fault("unsupported", "a brace of the PTX is never closed")


def outside_bodies(text: str) -> str:
    """The text without the bodies of its functions: the module's own variables are left."""
    parts, end = [], 0
    for found in re.finditer(r"\.(?:entry|func)\b[^;{]*\{", text):
        if found.start() >= end:
            parts.append(text[end : found.start()])
            end = closing(text, found.end()) + 1
    return "".join([*parts, text[end:]])


def variable(found: re.Match[str]) -> Variable:
    count = 1 if found["count"] is None else int(found["count"] or 0)
    dtype = DTYPES[found["type"]]
    values = b"".join(literal(word, dtype.itemsize) for word in re.findall(r"[^\s,{}]+", found["values"] or ""))
    return Variable(
        found["name"],
        found["space"],
        int(found["align"] or dtype.itemsize),
        found["type"],
        count,
        values,
        ".extern" in found["linkage"],
    )


def literal(word: str, n_bytes: int) -> bytes:
    """An initial value's bytes."""
    if word[:2] in ("0f", "0F"):
        return struct.pack("<I", int(word[2:], 16))
    if word[:2] in ("0d", "0D"):
        return struct.pack("<Q", int(word[2:], 16))
    try:
        return (int(word.rstrip("U"), 0) % (1 << 8 * n_bytes)).to_bytes(n_bytes, "little")
    except ValueError:
        raise Fault("unsupported", f"the initial value {word} of a variable of the module") from None


def function(text: str, found: re.Match[str]) -> Function:
    body = text[found.end() : closing(text, found.end())]
    results, parameters = (
        tuple(one[2] for one in PARAMETER.findall(found[part] or "")) for part in ("results", "parameters")
    )
    return Function(found["name"], results, parameters, body, text.count("\n", 0, found.end()) + 1)


def parameters(text: str) -> dict[str, Parameter]:
    made: dict[str, Parameter] = {}
    offset = 0
    for align, kind, name, count in PARAMETER.findall(text):
        width = DTYPES[kind].itemsize
        offset = -(-offset // int(align or width)) * int(align or width)
        made[name] = Parameter(name, offset, width * int(count or 1))
        offset += width * int(count or 1)
    return made


def threads_of(directives: str, name: str) -> tuple[int, int, int] | None:
    found = re.search(rf"\.{name}\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", directives)
    if not found:
        return None
    x, y, z = (int(number or 1) for number in found.groups())
    return x, y, z


def kernel(text: str, found: re.Match[str], variables: dict[str, Variable], functions: dict[str, Function]) -> Kernel:
    name, declared, directives = found.groups()
    body = Body(variables, functions)
    body.read(text[found.end() : closing(text, found.end())], text.count("\n", 0, found.end()) + 1)
    limit = threads_of(directives, "maxntid")
    return Kernel(
        name=name,
        parameters=parameters(declared),
        registers=body.registers,
        register_types=body.register_types,
        symbols=body.symbols(),
        code=body.code,
        labels=body.labels,
        tables=body.tables,
        shared_bytes=body.shared.end,
        local_bytes=body.local.end,
        passed=body.passed,
        maximum_threads=None if limit is None else limit[0] * limit[1] * limit[2],
        exact_threads=threads_of(directives, "reqntid"),
        narrowest=body.narrowest(),
    )
