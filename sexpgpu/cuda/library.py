"""Where the CUDA libraries of pip's wheels are, and how they are loaded: by their own path, what they need first."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sexpgpu.errors import Error

DRIVER = "libcuda.so.1"


@dataclass(frozen=True)
class Library:
    """A distribution of the extra [cuda]: its least version, and whether a run can do without it."""

    distribution: str
    least: str
    optional: bool = False
    objects: tuple[str, ...] = ()

    @property
    def install(self) -> str:
        """The command that brings it."""
        return f"pip install {self.distribution}=={self.least}"


# A name always has its version: an unversioned one may be any toolkit's.
BUILTINS, NVRTC = "libnvrtc-builtins.so.13.*", "libnvrtc.so.13"
CUBLAS_LT, CUBLAS = "libcublasLt.so.13", "libcublas.so.13"
CUDNN = "libcudnn.so.9"

LIBRARIES = (
    Library("nvidia-cuda-nvrtc", "13.0.88", objects=(BUILTINS, NVRTC)),
    Library("nvidia-cublas", "13.1.0.3", objects=(CUBLAS_LT, CUBLAS)),
    Library("nvidia-cudnn-cu13", "9.13.0.50", optional=True, objects=(CUDNN,)),
)
# What is loaded before an object. They have no RUNPATH, and find what is loaded already by its name: without its
# builtins, NVRTC fails at every compile.
BEFORE = {
    BUILTINS: (),
    NVRTC: (BUILTINS,),
    CUBLAS_LT: (),
    CUBLAS: (CUBLAS_LT,),
    CUDNN: (BUILTINS, NVRTC, CUBLAS_LT, CUBLAS),
}


@dataclass(frozen=True)
class Found:
    """A shared object's file, and the version of the distribution that brought it ('': no distribution names it)."""

    path: Path
    version: str = ""


def library_of(name: str) -> Library:
    (library,) = [library for library in LIBRARIES if name in library.objects]
    return library


def find(name: str, folders: Sequence[str] | None = None) -> Found | None:
    """A shared object among the installed distributions (`folders` None: of sys.path), or in a folder `nvidia`.

    A distribution that was unpacked without its record, as installers other than pip do, still has its files.
    """
    from importlib import metadata

    folders = sys.path if folders is None else folders
    for distribution in metadata.distributions(name=library_of(name).distribution, path=list(folders)):
        for file in distribution.files or ():
            path = Path(str(file.locate()))
            if path.match(name) and path.is_file():
                return Found(path.resolve(), distribution.version)
    for folder in folders:
        for path in sorted(Path(folder or ".").glob(f"nvidia/*/lib/{name}")):
            return Found(path.resolve())
    return None


def load(name: str, folders: Sequence[str] | None = None) -> ctypes.CDLL:
    """A shared object, after those that it needs. One that is loaded already is the same one.

    Raises E-DEV-003 where a file is not installed and E-DEV-004 where it does not load.
    """
    for needed in BEFORE[name]:
        _load(needed, folders)
    return _load(name, folders)


def _load(name: str, folders: Sequence[str] | None) -> ctypes.CDLL:
    library = library_of(name)
    found = find(name, folders)
    if found is None:
        raise Error("E-DEV-003", f"the CUDA library {name} is not installed", notes=[library.install])
    try:
        return ctypes.CDLL(str(found.path), mode=ctypes.RTLD_GLOBAL)
    except OSError as problem:
        notes = [f"pip install --force-reinstall {library.distribution}=={library.least}"]
        raise Error("E-DEV-004", f"the CUDA library {found.path} does not load: {problem}", notes=notes) from None
