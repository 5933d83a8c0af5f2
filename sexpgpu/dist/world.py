"""Who am I: rank and size of this process, from its launcher's environment alone; MPI is loaded only for several ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sexpgpu.errors import Error

# What launchers put into the environment of MPI programs: a subprocess that kept it would take itself for a rank.
LAUNCHER_PREFIXES = ("PMI", "OMPI_", "PRTE", "HYDI_", "HYDRA_", "MPI_LOCAL")
# Defaults that must stand before the library starts; what the user has set wins. `ofi` costs Open MPI's start a second;
# MPICH would announce an MPI_Abort beside our message.
LIBRARY_DEFAULTS = {
    "OMPI_MCA_btl": "^ofi",
    "OMPI_MCA_osc": "^ucx",
    "MPIR_CVAR_SUPPRESS_ABORT_MESSAGE": "1",
}


class Dialect(msgspec.Struct, frozen=True):
    """How one family of launchers tells a process its place. `families` are the libraries that understand it."""

    launcher: str
    size: str
    rank: str
    local_rank: str
    families: tuple[str, ...]
    fix: str


DIALECTS = (
    #       launcher                    size                     rank                    local rank
    Dialect("Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
            ("Open MPI",), "start with the mpirun of the library: for MPICH, the one that pip install mpich brings"),
    Dialect("MPICH's mpirun", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID",
            ("MPICH", "Intel MPI", "MVAPICH"), "start with the mpirun of the library, or pip install mpich"),
    Dialect("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID",
            (), "srun --mpi=pmi2 for MPICH, srun --mpi=pmix for Open MPI"),
)  # fmt: skip


class Launch(msgspec.Struct, frozen=True):
    """What the environment says of this process. `dialect` None: it was started alone."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    dialect: Dialect | None = None


class World(msgspec.Struct, frozen=True):
    """This process among all of a run. Ranks count node by node, on each node by local rank."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    node: int = 0
    nodes: int = 1

    @property
    def first(self) -> bool:
        """Rank zero: it alone prints and writes the run folder."""
        return self.rank == 0


def launch_of(environment: Mapping[str, str]) -> Launch:
    """Rank and size as the launcher's variables give them; a launch of one process counts as none."""
    for dialect in DIALECTS:
        size = environment.get(dialect.size, "")
        if size.isdigit() and int(size) > 1:
            rank, local = environment.get(dialect.rank, ""), environment.get(dialect.local_rank, "0")
            if not rank.isdigit():
                raise Error(
                    "E-DEV-002", f"{dialect.size}={size} without {dialect.rank}: no launcher sets one without the other",
                    notes=[dialect.fix],
                )  # fmt: skip
            return Launch(int(rank), int(size), int(local) if local.isdigit() else 0, dialect)
    return Launch()


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a subprocess: nothing in it makes the process a rank of this launch."""
    return {name: value for name, value in environment.items() if not name.startswith(LAUNCHER_PREFIXES)}


def load_library() -> Any:
    """The module mpi4py.MPI, neither initialised by its import nor finalised at exit. Raises E-DEV-002 without a library."""
    for name, value in LIBRARY_DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        import mpi4py

        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as problem:
        reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise Error("E-DEV-002", f"no MPI library is found: {reason}", notes=["pip install mpich"]) from None
    return MPI


def family_of(version: str) -> str:
    """The library's name out of what it, or its launcher, says of itself."""
    for family, mark in (("Open MPI", "open"), ("Intel MPI", "intel"), ("MVAPICH", "mvapich"), ("MPICH", "")):
        if mark in version.lower():
            return family
    raise AssertionError(version)


def library_name(mpi: Any) -> str:
    """`MPICH 5.0.2`: the library that mpi4py has loaded."""
    return short_name(str(mpi.Get_library_version()))


def short_name(version: str) -> str:
    """Family and number out of a library's long sentence about itself."""
    import re

    number = re.search(r"\d+\.\d+(\.\d+)?", version)
    return family_of(version) + (f" {number[0]}" if number else "")


def start_library(launch: Launch) -> Any:
    """Initialise MPI and make sure that it sees the launch as the environment gives it.

    A library under another's launcher calls itself rank 0 of 1, or ends the process: both are E-DEV-002 here.
    """
    assert launch.dialect is not None, launch
    mpi = load_library()
    name = library_name(mpi)
    if launch.dialect.families and family_of(name) not in launch.dialect.families:
        raise mismatch(launch, name, "and they do not understand each other")
    mpi.Init_thread(mpi.THREAD_MULTIPLE)
    if mpi.COMM_WORLD.Get_size() != launch.size:
        problem = mismatch(launch, name, f"and the library sees {mpi.COMM_WORLD.Get_size()} of {launch.size} ranks")
        mpi.Finalize()
        raise problem
    return mpi


def mismatch(launch: Launch, library: str, words: str) -> Error:
    assert launch.dialect is not None, launch
    message = f"the launcher is {launch.dialect.launcher}, the MPI library is {library}, {words}"
    return Error("E-DEV-002", message, notes=[launch.dialect.fix])


def threads_of(masks: Sequence[frozenset[int]], local_rank: int) -> int:
    """Threads for one rank of a node, from the CPUs that each of the node's ranks may run on.

    A CPU that several ranks may use is shared out among them; what does not divide goes to the lower ranks.
    """
    mine = masks[local_rank]
    sharing = [rank for rank, mask in enumerate(masks) if mask & mine]
    if any(masks[rank] != mine for rank in sharing):
        # Masks that overlap without being equal: a rank's fair part of each of its CPUs.
        return max(1, int(sum(1 / sum(cpu in mask for mask in masks) for cpu in mine)))
    whole, rest = divmod(len(mine), len(sharing))
    return max(1, whole + (sharing.index(local_rank) < rest))
