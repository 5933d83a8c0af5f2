"""What every test shares: the tests' folder on the path, and a kernel cache of its own for the whole session."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

# Workers of one session inherit the folder, so that each kernel is compiled once.
if "PYTEST_KERNEL_CACHE" not in os.environ:
    os.environ["PYTEST_KERNEL_CACHE"] = tempfile.mkdtemp(prefix="sexpgpu-test-")
    atexit.register(shutil.rmtree, os.environ["PYTEST_KERNEL_CACHE"], ignore_errors=True)
os.environ["SEXPGPU_CACHE"] = os.environ["PYTEST_KERNEL_CACHE"]
