"""Where the CUDA libraries of pip's wheels are, and how they are loaded: by their own path, what they need first."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    def pinned(self) -> str:
        """The version that was tried, as pip writes it."""
        return f"{self.distribution}=={self.least}"

    @property
    def reinstall(self) -> str:
        return f"pip install --force-reinstall {self.pinned}"


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

    Raises E-DEV-003 where a file is not installed, before anything is loaded, and E-DEV-004 where one does not load.
    """
    found = {each: find(each, folders) for each in (*BEFORE[name], name)}
    missing = [each for each, place in found.items() if place is None]
    if missing:
        wanted = dict.fromkeys(library_of(each) for each in missing)
        install = " ".join(["pip install", *(library.pinned for library in wanted)])
        raise Error("E-DEV-003", f"not installed of the CUDA libraries: {', '.join(missing)}", notes=[install])
    loaded = [_load(each, place.path) for each, place in found.items() if place]
    return loaded[-1]


def _load(name: str, path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as problem:
        message = f"the CUDA library {path} does not load: {problem}"
        raise Error("E-DEV-004", message, notes=[library_of(name).reinstall]) from None


def load_driver(name: str) -> Any:
    """The driver's library, which is no distribution's: the system finds it by its name. Raises OSError."""
    return ctypes.CDLL(name)
