"""Cards that need not be here: what is known of each, to plan for it as if it were.

Figures of the makers' data sheets and of the CUDA programming guide's table of compute capabilities; bandwidths and rates
are peaks (bf16 dense, f32 without tensor cores).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

GIB = 1 << 30
MIB = 1 << 20
KIB = 1 << 10


@dataclass(frozen=True)
class KnownCard:
    """One card. Clocks in kHz; `bytes_a_second` of its memory, `…_flops` a second."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    bytes_a_second: float
    bf16_flops: float
    f32_flops: float
    l2_bytes: int
    shared_bytes_opt_in: int
    threads_a_multiprocessor: int
    blocks_a_multiprocessor: int
    clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int


# By the names of `--card`.
CARDS = {
    "a100": KnownCard(
        "NVIDIA A100-SXM4-80GB", (8, 0), 108, 80 * GIB, 2.039e12, 312e12, 19.5e12,
        40 * MIB, 163 * KIB, 2048, 32, 1_410_000, 1_593_000, 5120,
    ),
    "l4": KnownCard(
        "NVIDIA L4", (8, 9), 58, 22_488 * MIB, 0.300e12, 121e12, 30.3e12,
        48 * MIB, 99 * KIB, 1536, 24, 2_040_000, 6_251_000, 192,
    ),
    "h100": KnownCard(
        "NVIDIA H100 80GB HBM3", (9, 0), 132, 81_106 * MIB, 3.35e12, 989e12, 66.9e12,
        50 * MIB, 227 * KIB, 2048, 32, 1_980_000, 2_619_000, 5120,
    ),
    "h200": KnownCard(
        "NVIDIA H200", (9, 0), 132, 143_156 * MIB, 4.8e12, 989e12, 66.9e12,
        50 * MIB, 227 * KIB, 2048, 32, 1_980_000, 3_201_000, 6144,
    ),
    "b200": KnownCard(
        "NVIDIA B200", (10, 0), 148, 182_632 * MIB, 8.0e12, 2250e12, 75e12,
        126 * MIB, 227 * KIB, 2048, 32, 1_965_000, 3_996_000, 8192,
    ),
}  # fmt: skip


def cudnn_properties(card: KnownCard) -> str:
    """The JSON from which cuDNN plans for a card that is not here."""
    major, minor = card.capability
    return json.dumps(
        {
            "deviceName": card.name,
            "deviceVer": 100 * major + 10 * minor,
            "driverVer": 13000,
            "cudaDeviceId": 0,
            "pciDeviceId": 0,
            "isTccDriver": 0,
            "supportCoopLaunch": 1,
            "multiProcessorCount": card.multiprocessors,
            "smCountOrigin": 0,
            "warpSize": 32,
            "maxGridSize": [2**31 - 1, 65535, 65535],
            "maxBlockSize": [1024, 1024, 64],
            "maxThreadsPerBlock": 1024,
            "maxThreadsPerSM": card.threads_a_multiprocessor,
            "maxCtasPerSM": card.blocks_a_multiprocessor,
            "regsPerBlock": 65536,
            "maxRegistersPerSM": 65536,
            "maxSharedMemoryPerBlock": 48 * KIB,
            "maxSharedMemoryPerBlockOptin": card.shared_bytes_opt_in,
            "reservedSharedMemoryPerBlock": KIB,
            "oversizedSharedMemoryPerBlock": 0,
            "totalGlobalMem": card.memory_bytes,
            "l2CacheSize": card.l2_bytes,
            "smClockRateKHz": card.clock_khz,
            "memClockRateKHz": card.memory_clock_khz,
            "memoryBusWidth": card.memory_bus_bits,
        }
    )
