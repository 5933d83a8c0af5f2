"""Run by build_zipapp with the tools' Python: shiv's archive of a folder, started by our launcher and not by shiv's.

pack.py SITE_PACKAGES TARGET EPOCH BUILD_ID
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from shiv import __version__, builder
from shiv.bootstrap.environment import Environment
from shiv.constants import BUILD_AT_TIMESTAMP_FORMAT


def pack(packages: Path, target: Path, epoch: int, build_id: str) -> None:
    """Writes the archive. `build_id` names the folder that it is unpacked to."""
    built_at = datetime.fromtimestamp(epoch, UTC).strftime(BUILD_AT_TIMESTAMP_FORMAT)
    environment = Environment(
        built_at=built_at, shiv_version=__version__, entry_point="sexpgpu_zipapp:main", build_id=build_id,
        compile_pyc=False, reproducible=True,
    )  # fmt: skip
    builder.create_archive([packages], target, "/bin/sh", "launcher:main", environment)


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
