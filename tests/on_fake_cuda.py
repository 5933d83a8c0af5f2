"""The CUDA device on the simulated driver: kernels compiled by NVRTC run as the PTX of the same source."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sexpgpu.cuda import cublas, cudnn, kernels, library
from sexpgpu.cuda.binding import bind
from sexpgpu.cuda.cubin_cache import CubinCache, Module
from sexpgpu.cuda.device import CudaDevice, open_cuda
from sexpgpu.cuda.kernels import Modules
from sexpgpu.cuda.nvrtc import Compiled, compile_source
from sexpgpu.private import replace
from sexpgpu.settings import Settings, Sources, resolve
from tests.fake_cublas import FakeCublas
from tests.fake_cuda import FakeCuda
from tests.fake_cudnn.library import FakeCudnn


@cache
def compiled(source: str, arch: str) -> Compiled:
    """What NVRTC makes of a source: once for all processes of a test session."""
    name = hashlib.sha256(f"{arch}\n{source}".encode()).hexdigest()
    path = Path(os.environ["PYTEST_KERNEL_CACHE"]) / f"{name}.simulated"
    if not path.exists():
        made = compile_source(source, arch)
        replace(path, msgspec.msgpack.encode(made))
    return msgspec.msgpack.decode(path.read_bytes(), type=Compiled)


def settings_in(folder: Path, **flags: Any) -> Settings:
    return resolve(Sources({"cache": folder, "out": folder / "runs", **flags}, {}, {}, {}))


def install(driver: FakeCuda, patch: pytest.MonkeyPatch, attention: FakeCudnn | None = None) -> FakeCublas:
    """Whoever opens a CUDA device in this process from now on finds this driver, and a cuBLASLt and a
    cuDNN over it."""
    products = FakeCublas(driver)
    driver.libraries.append(lambda: [type(thing).__name__ for thing in products.held.values()])

    def load_cubins(sources: Mapping[str, str], arch: str, cache: CubinCache, processes: int = 1) -> Modules:
        made = {}
        for name, source in sources.items():
            driver.register(compiled(source, arch))
            made[name] = Module.of(compiled(source, arch))
        return Modules(made, compiled=len(made))

    patch.setattr(kernels, "load_cubins", load_cubins)
    patch.setattr(library, "load_driver", driver.load)
    attention = attention or FakeCudnn(driver)
    driver.libraries.append(lambda: [type(thing).__name__ for thing in attention.held.values()])
    patch.setattr(cudnn, "cudnn", lambda: bind(attention.library, cudnn.TABLE))
    patch.setattr(cublas, "cublas", lambda: bind(products.library, cublas.TABLE))
    return products


def opened(driver: FakeCuda, patch: pytest.MonkeyPatch, folder: Path, **flags: Any) -> CudaDevice:
    install(driver, patch)
    return open_cuda(settings_in(folder, **flags), 0)


def nothing_wrong(driver: FakeCuda) -> bool:
    """Everything was given back, and nothing was found. With a message where it was not."""
    wrong: Sequence[str] = [*driver.findings, *driver.faults, *driver.held()]
    assert list(wrong) == []
    return True
