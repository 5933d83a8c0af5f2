"""E-DP-001 and E-DP-005 as a user meets them: exit code 1, one message, the fix of the devices page, nothing begun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_bitwise import HERE

DEVICES_FIX = "list visible ordinals once each, SEXPGPU_DEVICES=0,1"
NODES_FIX = "on every node, with SEXPGPU_DEVICE=cuda"
NODE = {"SEXPGPU_NODES": "2", "SEXPGPU_NODE_RANK": "0", "SEXPGPU_RENDEZVOUS": "node0:29500", "SEXPGPU_DEVICE": "cuda"}

CONDITIONS: dict[str, tuple[dict[str, str], str, str]] = {
    "devices do not parse": ({"SEXPGPU_DEVICES": "0;1"}, "E-DP-001", DEVICES_FIX),
    "devices repeat an ordinal": ({"SEXPGPU_DEVICES": "1,1"}, "E-DP-001", DEVICES_FIX),
    "nodes is no count": ({**NODE, "SEXPGPU_NODES": "two"}, "E-DP-005", NODES_FIX),
    "nodes is zero": ({**NODE, "SEXPGPU_NODES": "0"}, "E-DP-005", NODES_FIX),
    "node rank beyond the nodes": ({**NODE, "SEXPGPU_NODE_RANK": "2"}, "E-DP-005", NODES_FIX),
    "node rank below zero": ({**NODE, "SEXPGPU_NODE_RANK": "-1"}, "E-DP-005", NODES_FIX),
    "rendezvous is not host:port": ({**NODE, "SEXPGPU_RENDEZVOUS": "node0"}, "E-DP-005", NODES_FIX),
    "gradients of another dtype": ({**NODE, "SEXPGPU_NODE_GRADIENTS": "f16"}, "E-DP-005", NODES_FIX),
    "the device is not cuda": ({**NODE, "SEXPGPU_DEVICE": "cpu"}, "E-DP-005", NODES_FIX),
    "the device is auto": ({**NODE, "SEXPGPU_DEVICE": "auto"}, "E-DP-005", NODES_FIX),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_wrong_launch_stops_with_its_code_before_anything_runs(condition: str, tmp_path: Path) -> None:
    variables, code, fix = CONDITIONS[condition]
    file = HERE / "experiments" / "mlp.sexp"
    command = [sys.executable, "-m", "sexpgpu", "run", str(file), "--out", str(tmp_path / "runs")]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count("error[") == 1 and f"error[{code}]" in done.stderr
    assert fix in done.stderr
    assert done.stdout == "" and not (tmp_path / "runs").exists()
