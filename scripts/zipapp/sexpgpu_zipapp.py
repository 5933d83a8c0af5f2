"""What the zipapp starts once it is unpacked: shows mpi4py the MPI library inside, then runs sexpgpu, or its mpirun."""

from __future__ import annotations

import os
import sys
from pathlib import Path

MPI = Path(__file__).parent / "mpi_runtime"
# What the unpacking leaves behind: it is this archive's business and would confuse another one that we start.
OURS = ("SHIV_ROOT",)


def main() -> None:
    """`mpirun …` as the first word runs the launcher inside; anything else is sexpgpu's own command line."""
    for name in OURS:
        os.environ.pop(name, None)
    if sys.argv[1:2] == ["mpirun"]:
        mpirun = str(MPI / "bin" / "mpirun")
        os.execv(mpirun, [mpirun, *sys.argv[2:]])
    # The user's own choice wins, and a launcher of his comes first on the PATH.
    os.environ.setdefault("MPI4PY_LIBMPI", str(MPI / "lib" / "libmpi.so.12"))
    os.environ["PATH"] = os.pathsep.join(filter(None, (os.environ.get("PATH", os.defpath), str(MPI / "bin"))))
    from sexpgpu.__main__ import main as command

    command()
