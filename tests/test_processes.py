"""Helper processes: what they do and when they stop."""

from __future__ import annotations

import os

import pytest

from sexpgpu.processes import start_helper, while_wanted


def test_a_helper_stops_when_the_process_that_wanted_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter([7, 7, 1])
    monkeypatch.setenv("SEXPGPU_HELPER_OF", "7")
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    assert list(while_wanted("abcde")) == ["a", "b"]


def test_a_helper_knows_whose_it_is() -> None:
    request = {"folder": "nowhere", "compiler": "none", "arch": "sm_80", "options": [], "sources": []}
    helper = start_helper("sexpgpu.cuda.kernels", request)
    with open(f"/proc/{helper.pid}/environ", "rb") as file:
        words = file.read().split(b"\0")
    helper.kill()
    helper.wait()
    assert f"SEXPGPU_HELPER_OF={os.getpid()}".encode() in words
