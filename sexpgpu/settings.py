"""Every setting, once: its flag, variable, key of a run, parser, default and sentence; and which of its sources wins.

A value's sources, strongest first: flag, environment, `defrun`, `sexpgpu.toml`, default. Settings are read once, at
the start of a command, and passed on; nothing below the command line looks at the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from sexpgpu.errors import Error, nearest

Origin = Literal["flag", "environment", "defrun", "sexpgpu.toml", "default"]
Parser = Callable[[str], Any]
PREFIX = "SEXPGPU_"
FILE_NAME = "sexpgpu.toml"


class _Unfit(ValueError):
    """A text that a parser refuses; its words complete the sentence `NAME is …`."""


def _device(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", text):
        raise _Unfit("not a device: auto, cpu, cuda or cuda:N")
    return text


def _ordinals(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", text):
        raise _Unfit("not a list of ordinals such as 0,1")
    found = tuple(int(part) for part in text.split(","))
    for ordinal in found:
        if found.count(ordinal) > 1:
            raise _Unfit(f"naming ordinal {ordinal} twice")
    return found


SIZE_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?", text)
    if found is None:
        raise _Unfit("not a size such as 40GiB or a number of bytes")
    return int(float(found[1]) * SIZE_UNITS[found[2]])


def _count(least: int) -> Parser:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d+", text):
            raise _Unfit("not a whole number")
        if int(text) < least:
            raise _Unfit(f"below {least}")
        return int(text)

    return parse


def _one_of(*words: str) -> Parser:
    def parse(text: str) -> str:
        if text not in words:
            raise _Unfit(f"not {' or '.join([', '.join(words[:-1]), words[-1]])}")
        return text

    return parse


def _endpoint(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise _Unfit("not host:port")
    return host, int(port)


def _flag(text: str) -> bool:
    if text.lower() not in ("1", "0", "true", "false", "yes", "no", "on", "off"):
        raise _Unfit("neither true nor false")
    return text.lower() in ("1", "true", "yes", "on")


def _folder(text: str) -> Path:
    if not text or "\0" in text:
        raise _Unfit("not a folder")
    if re.match(r"[a-z][a-z0-9+.-]*://", text):
        raise _Unfit("a URL, not a folder")
    return Path(text).expanduser()


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text) or float(text) <= 0:
        raise _Unfit("not a number of seconds above 0")
    return float(text)


def available_threads(_: Mapping[str, str]) -> int:
    """The CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))


def cache_folder(environment: Mapping[str, str]) -> Path:
    """`$XDG_CACHE_HOME/sexpgpu`, else `~/.cache/sexpgpu`."""
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path("~/.cache").expanduser()) / "sexpgpu"


class Setting(msgspec.Struct, frozen=True):
    """One row. `variable`, `run_key` None: the environment, the run do not set it. `code` is of a value refused."""

    name: str
    parse: Parser
    default: Any
    sentence: str
    code: str = "E-RUN-007"
    variable: str | None = None
    run_key: str | None = None

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")


SETTINGS: tuple[Setting, ...] = (
    # name           parser                 default           what it says
    Setting("device", _device, "cpu", "the device kind: auto, cpu, cuda or cuda:N", "E-DEV-001", "SEXPGPU_DEVICE"),
    Setting("devices", _ordinals, None, "CUDA ordinals, one rank each, in rank order; unset uses every visible device",
            "E-DP-001", "SEXPGPU_DEVICES"),
    Setting("memory", _size, None, "plan against this much device memory instead of what is there", "E-RUN-007",
            "SEXPGPU_MEMORY"),
    Setting("threads", _count(1), available_threads, "threads of the CPU device; they never change a bit", "E-RUN-007",
            "SEXPGPU_THREADS"),
    Setting("cache", _folder, cache_folder, "the folder of compiled kernels, plans, starts and prepared data", "E-RUN-007",
            "SEXPGPU_CACHE"),
    Setting("out", _folder, Path("runs"), "the folder that run folders are made in", "E-RUN-007", "SEXPGPU_OUT"),
    Setting("checkpoints", str, None, "where checkpoints go, if not into the run folder", "E-RUN-007",
            "SEXPGPU_CHECKPOINTS"),
    Setting("nodes", _count(1), 1, "the node count; unset or 1 is one node", "E-DP-005", "SEXPGPU_NODES"),
    Setting("node-rank", _count(0), None, "this process's node, 0 to nodes - 1", "E-DP-005", "SEXPGPU_NODE_RANK"),
    Setting("rendezvous", _endpoint, None, "host:port of node 0, where it listens once for the other nodes",
            "E-DP-005", "SEXPGPU_RENDEZVOUS"),
    Setting("node-gradients", _one_of("f32", "bf16"), "bf16", "the dtype in which gradients travel between nodes",
            "E-DP-005", "SEXPGPU_NODE_GRADIENTS"),
    Setting("job-lease", _seconds, None, "seconds of a job's lease, where file locks are local to a host", "E-RUN-007",
            "SEXPGPU_JOB_LEASE"),
    Setting("parallel", _one_of("ddp", "jobs"), None, "what the ranks of a launch do: train together, or take jobs"),
    Setting("precision", _one_of("off", "bfloat16", "float16"), "off", "the dtype of float operations",
            run_key="precision"),
    Setting("allow-tf32", _flag, False, "cuda may round the operands of f32 products to tf32", "E-RUN-007",
            "SEXPGPU_ALLOW_TF32"),
    Setting("products", _one_of("library", "own"), "library",
            "what multiplies on cuda: cuBLASLt where it can, or our own kernels alone", "E-RUN-007", "SEXPGPU_PRODUCTS"),
    Setting("cudnn", _one_of("auto", "on", "off"), "auto",
            "whether cuDNN runs attention on cuda where it can; auto: on architectures of its table", "E-RUN-007",
            "SEXPGPU_CUDNN"),
    Setting("steps", _count(0), None, "the number of optimizer steps, wins over :steps and :epochs", run_key="steps"),
    Setting("seed", _count(0), 0, "the seed of initial values, draws and order", run_key="seed"),
    Setting("keep-values", _flag, False, "one kernel a node, nothing fused, every value kept"),
    Setting("deterministic", _flag, False, "stacking 1, algorithms fixed by shape, nothing measured"),
    Setting("timings", _flag, False, "time every launch: a table at the end, and trace.json in the run folder"),
)  # fmt: skip

BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}


class Settings(msgspec.Struct, frozen=True):
    """The values in force, one field a row of SETTINGS, and where each came from."""

    device: str
    devices: tuple[int, ...] | None
    memory: int | None
    threads: int
    cache: Path
    out: Path
    checkpoints: str | None
    nodes: int
    node_rank: int | None
    rendezvous: tuple[str, int] | None
    node_gradients: str
    job_lease: float | None
    parallel: str | None
    precision: str
    allow_tf32: bool
    products: str
    cudnn: str
    steps: int | None
    seed: int
    keep_values: bool
    deterministic: bool
    timings: bool
    origins: Mapping[str, Origin]

    def plain(self) -> dict[str, Any]:
        """The values as JSON can hold them, each with its origin."""
        made = {}
        for setting in SETTINGS:
            value = getattr(self, setting.field)
            plain = str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
            made[setting.name] = {"value": plain, "from": self.origins[setting.name]}
        return made


class Sources(msgspec.Struct, frozen=True):
    """What the sources say, by the settings' names (the environment by variables). `run` is known after elaboration."""

    flags: Mapping[str, Any]
    environment: Mapping[str, str]
    run: Mapping[str, Any]
    file: Mapping[str, Any]
    file_path: Path | None = None


def resolve(sources: Sources) -> Settings:
    """The value of every setting, strongest source first. Raises Error with the setting's code."""
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for setting in SETTINGS:
        values[setting.field], origins[setting.name] = _value(setting, sources)
    settings = Settings(**values, origins=origins)
    check_nodes(settings)
    return settings


def _value(setting: Setting, sources: Sources) -> tuple[Any, Origin]:
    if sources.flags.get(setting.name) is not None:
        return _parsed(setting, sources.flags[setting.name], f"--{setting.name}"), "flag"
    # An empty variable counts as unset, as shells and job files often leave one behind.
    if setting.variable and sources.environment.get(setting.variable, ""):
        return _parsed(setting, sources.environment[setting.variable], setting.variable), "environment"
    if setting.run_key and sources.run.get(setting.run_key) is not None:
        return _parsed(setting, sources.run[setting.run_key], f":{setting.run_key}"), "defrun"
    if setting.name in sources.file:
        return _parsed(setting, sources.file[setting.name], f"{setting.name} in {sources.file_path}"), "sexpgpu.toml"
    return (setting.default(sources.environment) if callable(setting.default) else setting.default), "default"


def _parsed(setting: Setting, value: Any, name: str) -> Any:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, list):
        text = ",".join(map(str, value))
    try:
        return setting.parse(text)
    except _Unfit as problem:
        raise Error(setting.code, f"{name}={text} is {problem}", notes=_fix(setting)) from None


def _fix(setting: Setting) -> list[str]:
    return {
        "E-DP-001": ["list visible ordinals once each, SEXPGPU_DEVICES=0,1"],
        "E-DP-005": ["set SEXPGPU_NODES, _NODE_RANK and _RENDEZVOUS on every node, with SEXPGPU_DEVICE=cuda"],
    }.get(setting.code, [f"{setting.name}: {setting.sentence}"])


def check_nodes(settings: Settings) -> None:
    """E-DP-005 where several nodes are asked for and the other variables or the device do not fit."""
    if settings.nodes == 1:
        return
    problem = None
    if not settings.device.startswith("cuda"):
        problem = f"SEXPGPU_NODES={settings.nodes} with device {settings.device}, which is not cuda"
    elif settings.node_rank is None:
        problem = f"SEXPGPU_NODES={settings.nodes} without SEXPGPU_NODE_RANK"
    elif settings.node_rank >= settings.nodes:
        problem = f"SEXPGPU_NODE_RANK={settings.node_rank} is not in 0..{settings.nodes}"
    elif settings.rendezvous is None:
        problem = f"SEXPGPU_NODES={settings.nodes} without SEXPGPU_RENDEZVOUS"
    if problem:
        raise Error("E-DP-005", problem, notes=_fix(BY_NAME["nodes"]))


def read_file(folder: Path) -> tuple[Mapping[str, Any], Path | None]:
    """`[runtime]` of the folder's sexpgpu.toml, and the file's path; nothing where there is no file."""
    path = folder / FILE_NAME
    if not path.is_file():
        return {}, None
    import tomllib

    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise Error("E-RUN-004", f"{path} cannot be read: {problem}") from None
    runtime = content.get("runtime", {})
    for table in content:
        if table != "runtime" or not isinstance(runtime, dict):
            notes = ["settings stand under [runtime]"]
            raise Error("E-RUN-002", f"{path}: {table} is no table of settings", notes=notes)
    for name in runtime:
        if name not in BY_NAME:
            close = nearest(name, list(BY_NAME))
            raise Error("E-RUN-002", f"{path}: no setting {name}", notes=[f"did you mean {close}?"] if close else [])
    return runtime, path


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """A line for every SEXPGPU_ variable that means nothing: most likely a slip of the keyboard."""
    known = [setting.variable for setting in SETTINGS if setting.variable]
    lines = []
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            close = nearest(name, known)
            lines.append(f"{name} is no setting" + (f"; did you mean {close}?" if close else ""))
    return lines


def explain(settings: Settings) -> str:
    """The values in force, as `--explain-config` prints them: name, value, where from, the variable."""
    rows = []
    for setting in SETTINGS:
        value = getattr(settings, setting.field)
        shown = "-" if value is None else ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        rows.append((setting.name, shown, settings.origins[setting.name], setting.variable or "", setting.sentence))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join("  ".join([*(c.ljust(w) for c, w in zip(row, widths)), row[4]]).rstrip() for row in rows)
