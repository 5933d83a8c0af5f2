"""Which MPI is here: the library that ranks would load, the launcher, and whether they fit; nothing is initialised."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sexpgpu.dist.world import library_name, load_library, short_name, without_launcher
from sexpgpu.errors import Error

WAIT_S = 10.0
# Launchers that start each other's programs.
ALIKE = ("MPICH", "Intel MPI", "MVAPICH")


@dataclass(frozen=True)
class Found:
    """A library or a launcher: name with version, and path. An empty name: `problem` says why there is none."""

    name: str
    path: str = ""
    problem: str = ""

    @property
    def family(self) -> str:
        return re.sub(r" [\d.]+$", "", self.name)


def find_library() -> Found:
    """The library that mpi4py loads."""
    try:
        name = library_name(load_library())
    except Error as problem:
        return Found("", problem=problem.message)
    return Found(name, loaded_path())


def loaded_path() -> str:
    """Where the library came from: the file of that name that is mapped into this process."""
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        found = re.search(r"/\S*/libmpi[^/]*\.so[^/\s]*$", line)
        if found:
            return found[0]
    return ""


def find_launcher(environment: Mapping[str, str]) -> Found:
    """`mpirun` as the shell would find it, else the one of this Python's environment."""
    path = shutil.which("mpirun", path=environment.get("PATH", os.defpath))
    beside = Path(sys.executable).with_name("mpirun")
    if path is None and not beside.exists():
        return Found("", problem="no mpirun is on the PATH")
    command = [path or str(beside), "--version"]
    try:
        said = subprocess.run(
            command, env=without_launcher(environment), capture_output=True, text=True, timeout=WAIT_S, check=False
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as problem:
        return Found("", command[0], f"{command[0]} does not run: {problem}")
    if said.returncode:
        return Found("", command[0], f"{command[0]} --version fails with exit code {said.returncode}")
    hidden = "" if path else f"{command[0]} is not on the PATH"
    return Found(short_name(said.stdout + said.stderr), command[0], hidden)


def fit(library: Found, launcher: Found) -> bool:
    return library.family == launcher.family or {library.family, launcher.family} <= set(ALIKE)
