"""The first code of the zipapp to run, on whatever Python: refuses what the libraries inside are not built for.

Kept to what Python 3.6 reads, so that an old one is told which it should be. Nothing is unpacked before `main` is sure.
"""

import os
import sys

if False:  # what only a checker of types reads; `typing` would cost every start some milliseconds
    from collections.abc import Mapping
    from typing import Any

    Machine = dict[str, Any]

MIB = 2**20
# Each launcher's name for a rank: of several, the first one speaks.
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def unfit(needed: "tuple[int, int]", found: "Machine", libc: "tuple[int, int]") -> str:
    """Why this Python or machine cannot run the archive, in a few words; '' where it can."""
    wanted = "python{}.{}".format(*needed)
    version = "{}.{}".format(*found["version"][:2])
    if found["implementation"] != "cpython":
        return "needs {}, this is {} {}".format(wanted, found["implementation"], version)
    if tuple(found["version"][:2]) != tuple(needed):
        return f"needs {wanted}, this is {version}"
    if (found["system"], found["machine"]) != ("Linux", "x86_64"):
        return "needs Linux x86_64, this is {} {}".format(found["system"], found["machine"])
    name, number = found["libc"]
    if name != "glibc" or tuple(int(part) for part in number.split(".")[:2]) < libc:
        return "needs glibc {}.{} or newer, this is {} {}".format(*libc, name or "another libc", number).rstrip()
    return ""


def this_machine() -> "Machine":
    name, _, number = "", "", ""
    try:
        name, _, number = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (AttributeError, ValueError, OSError):
        pass  # no glibc: said by `unfit`
    return {
        "implementation": sys.implementation.name,
        "version": tuple(sys.version_info),
        "system": os.uname()[0],
        "machine": os.uname()[4],
        "libc": (name, number),
    }


def root_of(environment: "Mapping[str, str]") -> str:
    """Where the archive is unpacked: beside the compiled kernels, so that SEXPGPU_CACHE moves both."""
    if environment.get("SHIV_ROOT"):
        return environment["SHIV_ROOT"]
    cache = environment.get("SEXPGPU_CACHE", "")
    if not cache:
        base = environment.get("XDG_CACHE_HOME", "")
        cache = os.path.join(base if base.startswith("/") else os.path.expanduser("~/.cache"), "sexpgpu")
    return os.path.join(os.path.abspath(os.path.expanduser(cache)), "unpacked")


def room_problem(root: str, needed: int) -> str:
    """Why `needed` bytes cannot be unpacked there; '' where they can. Makes the folders, closed to others."""
    old = os.umask(0o077)  # kernels are compiled into the folder above: it must be this user's alone
    try:
        os.makedirs(root, exist_ok=True)
    except OSError as problem:
        return f"cannot make {root}: {problem.strerror}; set SEXPGPU_CACHE to a folder that is yours to write"
    finally:
        os.umask(old)
    if not os.access(root, os.W_OK | os.X_OK):
        return f"cannot write {root}: set SEXPGPU_CACHE to a folder that is yours to write"
    state = os.statvfs(root)
    free = state.f_bavail * state.f_frsize
    if free < needed:
        return f"needs {needed // MIB + 1} MiB in {root}, {free // MIB} MiB are free: set SEXPGPU_CACHE to a folder with room"
    return ""


def folder_of(root: str, build_id: str) -> str:
    """The folder that shiv unpacks this archive to: it takes the file's name and the build's."""
    return os.path.join(root, f"{os.path.basename(os.path.realpath(sys.argv[0]))}_{build_id}")


def unpacking_problem(folder: str, needed: int) -> str:
    """Why the archive cannot be started from, or unpacked to, this folder; '' where it can."""
    if not os.path.isdir(os.path.join(folder, "site-packages")):
        problem = room_problem(os.path.dirname(folder), needed)
        if not problem and all(os.environ.get(name, "0") == "0" for name in RANKS):
            sys.stderr.write(f"unpacking to {folder}, once\n")
        return problem
    owner = os.stat(folder).st_uid
    if owner not in (os.getuid(), 0):
        return f"{folder} belongs to user {owner}: set SEXPGPU_CACHE to a folder that is yours"
    return ""


def main() -> None:
    import built_for  # type: ignore[import-not-found]  # written by build_zipapp

    root = root_of(os.environ)
    problem = unfit(built_for.PYTHON, this_machine(), built_for.LIBC)
    problem = problem or unpacking_problem(folder_of(root, built_for.BUILD_ID), built_for.UNPACKED_BYTES)
    if problem:
        sys.stderr.write(f"sexpgpu: {problem}\n")
        sys.exit(1)
    os.environ["SHIV_ROOT"] = root
    from _bootstrap import bootstrap  # type: ignore[import-not-found]  # shiv's

    bootstrap()
