"""Ranks on the CPU: sums with the bits of one rank, and failures that are said once and leave nothing behind."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rank_program import ELEMENTS, gradient

from sexpgpu.dist.exchange import SingleRank
from sexpgpu.dist.failure import PeerFailed, start_guard
from sexpgpu.dist.gradients import lanes_for, lanes_line
from sexpgpu.dist.waiting import wait_until
from sexpgpu.dist.world import Launch, family_of, launch_of, short_name, threads_of, without_launcher
from sexpgpu.errors import Error

PROGRAM = Path(__file__).with_name("rank_program.py")
REPOSITORY = PROGRAM.parents[1]
MARK = "SEXPGPU_TEST_LAUNCH"


def mpirun() -> str:
    """The launcher of the environment that the tests run in."""
    found = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
    if found is None:
        pytest.skip("there is no mpirun here; the extra [mpi] brings one")
    return found


def environment(**more: str) -> dict[str, str]:
    found = without_launcher(os.environ) | {"PYTHONPATH": str(REPOSITORY)} | more
    # Open MPI's launcher asks for both where the tests run as root, and for the last where they have few CPUs.
    return found | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }


def start(ranks: int, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [mpirun(), "-n", str(ranks), sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(
        command, env=environment(**more), capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False
    )  # fmt: skip


def reports(ranks: int, *arguments: str, **more: str) -> list[dict[str, Any]]:
    """What each rank printed, of rank 0 first."""
    done = start(ranks, *arguments, **more)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == ranks, done.stdout
    return sorted(found, key=lambda report: int(report["world"]["rank"]))


def tree(low: int, high: int) -> NDArray[np.float32]:
    """T[low, high) by its definition: the sum of T[low, m) and T[m, high), m = low + the largest power of two below."""
    if high - low == 1:
        return gradient(low)
    power = 1
    while power * 2 < high - low:
        power *= 2
    total: NDArray[np.float32] = tree(low, low + power) + tree(low + power, high)
    return total


def digest(array: NDArray[np.float32]) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_sum_of_gradients_has_the_bits_of_the_tree_for_every_number_of_ranks(ranks: int) -> None:
    # One call leaves ranks without any, five divide over no number of ranks but one.
    found = reports(ranks, "sums", "12,6,1,5")
    expected = [digest(tree(0, calls)) for calls in (12, 6, 1, 5)]
    for report in found:
        assert report["hashes"][:4] == expected
        assert report["hashes"] == found[0]["hashes"], "in later steps"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_rank_runs_its_share_of_the_calls_and_they_are_complete(ranks: int) -> None:
    found = reports(ranks, "sums", "12,5,1")
    for step, calls in enumerate((12, 5, 1)):
        ran = [call for report in found for call in report["ran"][step]]
        assert ran == list(range(calls))
    assert all(len(report["ran"][0]) == 12 // ranks for report in found)
    assert all(report["losses"] == found[0]["losses"] for report in found)
    # Integers and words reach every rank.
    assert all(report["count"] == ranks * (ranks + 1) // 2 and report["largest"] == ranks - 1 for report in found)
    assert all(report["told"]["from"] == 0 for report in found)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ranks", [2, 4])
def test_two_nodes_have_the_bits_of_one_rank(ranks: int) -> None:
    found = reports(ranks, "sums", "6,1,5", MPIR_CVAR_NUM_CLIQUES="2")
    if found[0]["world"]["nodes"] != 2:
        pytest.skip("only MPICH can take one machine for two nodes")
    expected = [digest(tree(0, calls)) for calls in (6, 1, 5)]
    assert all(report["hashes"][:3] == expected for report in found)
    places = [(report["world"]["node"], report["world"]["local_rank"]) for report in found]
    assert places == sorted(places), "ranks count node by node"


def launch(*arguments: str) -> tuple[int, str, float]:
    """Exit code, words on stderr, seconds; afterwards no process of the launch is left."""
    mark = uuid.uuid4().hex
    begin = time.monotonic()
    done = start(3, *arguments, **{MARK: mark})
    seconds = time.monotonic() - begin
    while left := processes_with(mark):
        assert time.monotonic() - begin < 10, left
        time.sleep(0.05)
    return done.returncode, done.stderr, seconds


def processes_with(mark: str) -> list[str]:
    """The command lines of all processes that a launch with this mark started."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            # It ended while we looked, or is another user's.
            continue
    return found


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("how", "which", "words"),
    [
        ("error", "0", "error[E-NUM-001]: the loss is nan at step 50\n   = on rank 0 of 3"),
        ("error", "1", "error[E-NUM-001]: the loss is nan at step 50\n   = on rank 1 of 3"),
        ("error", "all", "error[E-NUM-001]: the loss is nan at step 50\n"),
        ("raise", "2", "ZeroDivisionError: a bug\n   = on rank 2 of 3"),
        ("exit", "0", "error[E-DP-008]: rank"),
        ("exit", "2", "error[E-DP-008]: rank"),
        ("kill", "0", "error[E-DP-008]: rank"),
        ("kill", "1", "error[E-DP-008]: rank"),
    ],
)
def test_a_rank_that_fails_ends_the_run_with_one_message(how: str, which: str, words: str) -> None:
    code, stderr, seconds = launch("fail", how, which)
    assert code != 0
    assert seconds < 10
    assert stderr.count("error[") + stderr.count("Traceback") == 1, stderr
    assert words in stderr
    if how in ("exit", "kill"):
        named = stderr.partition("E-DP-008]: rank")[2].partition(" of 3 on")[0]
        assert which in named, "a launcher that is faster than the guard makes it name several"
        assert "during step 50" in stderr


@pytest.mark.timeout(120)
def test_an_exception_that_all_ranks_raise_together_ends_them_in_good_order() -> None:
    code, stderr, _ = launch("agreed")
    # Hydra joins the exit codes of the ranks by or; all are the same here.
    assert code == 143
    assert "error[" not in stderr


LINKED = """
import os, signal, sys, time
from sexpgpu.dist.failure import Link
link = Link(sys.argv[1], int(sys.argv[2]), os._exit)
link.phase("step 7")
os.write(1, b"here\\n")
if sys.argv[3] == "stop":
    os.kill(os.getpid(), signal.SIGSTOP)
while not link.ended.is_set():
    time.sleep(0.01)
if sys.argv[3] == "ready":
    link.leave(None, 5)
time.sleep(60)
"""


def linked(address: str, rank: int, what: str) -> subprocess.Popen[str]:
    """A process that does as a rank does towards its guard."""
    command = [sys.executable, "-c", LINKED, address, str(rank), what]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_rank(process: subprocess.Popen[str]) -> None:
    """Until the guard knows it."""
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"


@pytest.mark.timeout(60)
def test_a_rank_that_stops_is_found_by_its_silence(capfd: pytest.CaptureFixture[str]) -> None:
    address = start_guard(local_size=2, size=2, node="here", silence_s=2.0)
    with linked(address, 0, "ready") as ready, linked(address, 1, "stop") as stopped:
        assert ready.wait(20) == 5
        # It does not leave by itself.
        assert stopped.wait(20) == -9
    expected = "error[E-DP-008]: rank 1 of 2 on here has not answered for 2 s, during step 7"
    assert capfd.readouterr().err.startswith(expected)


@pytest.mark.timeout(60)
def test_a_rank_that_does_not_come_to_a_wait_is_ended_all_the_same() -> None:
    """Such as one in the middle of a long call: its own thread ends it when the guard says so."""
    address = start_guard(local_size=2, size=2, node="here")
    with linked(address, 0, "busy") as busy, linked(address, 1, "ready") as killed:
        wait_for_rank(busy)
        wait_for_rank(killed)
        killed.kill()
        assert busy.wait(15) == 1


@pytest.mark.timeout(60)
def test_a_guard_that_is_gone_ends_its_ranks() -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        address = f"sexpgpu-test-{uuid.uuid4().hex}"
        listener.bind("\0" + address)
        listener.listen(1)
        with linked(address, 0, "ready") as rank:
            connection, _ = listener.accept()
            connection.sendall(b"h")
            assert connection.recv(8).startswith(b'{"rank"')
            connection.close()
            assert rank.wait(10) == 1
            assert rank.stderr is not None
            assert "E-DP-008" in rank.stderr.read()


def run_alone(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, env=environment(**more), capture_output=True, text=True, timeout=60, check=False)


def test_one_rank_loads_no_mpi() -> None:
    code = (
        "import os, sys\nfrom sexpgpu.dist.exchange import joined\n"
        "with joined(os.environ) as e: e.barrier('x'); e.gather([1.0])\n"
        "print([m for m in ('mpi4py', 'numpy') if m in sys.modules])"
    )
    env = environment(PMI_SIZE="1", PMI_RANK="0")
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_one_rank_is_told_what_it_said() -> None:
    exchange = SingleRank()
    assert exchange.world.first
    assert exchange.gather([1.0, 2.0]) == [1.0, 2.0]
    assert (exchange.count(3), exchange.agree(1), exchange.broadcast("word")) == (3, 1, "word")


@pytest.mark.timeout(60)
def test_a_launcher_that_does_not_fit_the_library_is_an_error_that_names_both() -> None:
    pytest.importorskip("mpi4py")
    found = run_alone("sums", "4", OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="0")
    if "no MPI library" in found.stderr:
        pytest.skip("there is no MPI library here")
    if "the MPI library is Open MPI" in found.stderr or found.returncode == 0:
        pytest.skip("the library is Open MPI")
    assert found.returncode == 1
    assert "error[E-DEV-002]: the launcher is Open MPI's mpirun, the MPI library is MPICH" in found.stderr
    assert "mpich" in found.stderr.splitlines()[-1]
    other = run_alone("sums", "4", OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="1")
    assert (other.returncode, other.stderr) == (1, ""), "only the first rank says it"


@pytest.mark.timeout(60)
def test_no_mpi_library_is_an_error_with_the_fix() -> None:
    found = run_alone("sums", "4", PMI_SIZE="2", PMI_RANK="0", MPI4PY_LIBMPI="/missing/libmpi.so")
    assert found.returncode == 1
    assert "error[E-DEV-002]: no MPI library is found" in found.stderr
    assert "pip install mpich" in found.stderr


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1, 0)),
        ({"PMI_SIZE": "1", "PMI_RANK": "0"}, (0, 1, 0)),
        ({"PMI_SIZE": "4", "PMI_RANK": "3", "MPI_LOCALRANKID": "1"}, (3, 4, 1)),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, (1, 2, 1)),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}, (5, 8, 1)),
        # A job script's own process is no step of several.
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, (0, 1, 0)),
    ],
)
def test_rank_and_size_come_from_the_launchers_variables(
    variables: dict[str, str], expected: tuple[int, int, int]
) -> None:
    found = launch_of(variables)
    assert (found.rank, found.size, found.local_rank) == expected


def test_a_size_without_a_rank_is_an_error() -> None:
    with pytest.raises(Error, match="PMI_SIZE=2 without PMI_RANK"):
        launch_of({"PMI_SIZE": "2"})


def test_a_subprocess_does_not_take_itself_for_a_rank() -> None:
    variables = {"PMI_RANK": "1", "PMIX_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "HYDI_CONTROL_FD": "7", "PATH": "/bin"}
    kept = without_launcher(variables)
    assert kept == {"PATH": "/bin"}
    assert launch_of(kept) == Launch()


@pytest.mark.parametrize(
    ("masks", "threads"),
    [
        ([{0, 1}, {0, 1}], [1, 1]),
        ([{0, 1, 2, 3, 4}] * 2, [3, 2]),  # the rest goes to the lower rank
        ([{0}, {0}, {0}], [1, 1, 1]),  # never none
        ([{0, 1}, {2, 3}], [2, 2]),  # the launcher has shared them out already
        ([{0, 1, 2, 3}, {2, 3}], [3, 1]),
    ],
)
def test_ranks_of_a_node_share_its_cpus(masks: list[set[int]], threads: list[int]) -> None:
    frozen = [frozenset(mask) for mask in masks]
    assert [threads_of(frozen, rank) for rank in range(len(masks))] == threads


@pytest.mark.parametrize(
    ("calls", "ranks", "most", "lanes"),
    [
        (32, 1, 16, 16),
        (32, 4, 16, 16),
        (24, 1, 16, 12),
        (24, 8, 16, 8),  # 12 lanes do not divide over 8 ranks
        (32, 32, 16, 32),
        (4, 2, 1, 2),  # one lane asked for, two ranks
        (5, 2, 16, 5),  # uneven shares keep the lanes of one rank
    ],
)
def test_lanes_are_those_of_one_rank_where_they_divide(calls: int, ranks: int, most: int, lanes: int) -> None:
    assert lanes_for(calls, ranks, most) == lanes
    assert (lanes_line(calls, ranks, most) is None) == (lanes == lanes_for(calls, 1, most))


def test_a_wait_ends_at_its_deadline() -> None:
    with pytest.raises(Error, match=r"E-DP-008: no other rank came to a test within 0\.3 s"):
        wait_until(lambda: False, lambda: None, "a test", 0.3)


def test_a_wait_ends_when_another_rank_has_failed() -> None:
    def check() -> None:
        raise PeerFailed

    with pytest.raises(PeerFailed):
        wait_until(lambda: False, check, "a test")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("MPICH Version:      5.0.2\nMPICH Release date: …", "MPICH 5.0.2"),
        ("Open MPI v5.0.11, package: Open MPI user@localhost Distribution", "Open MPI 5.0.11"),
        ("mpirun (Open MPI) 5.0.11", "Open MPI 5.0.11"),
        ("Intel(R) MPI Library 2021.17 for Linux* OS", "Intel MPI 2021.17"),
        ("HYDRA build details:\n    Version:                                 5.0.2", "MPICH 5.0.2"),
    ],
)
def test_libraries_and_launchers_are_told_apart_by_their_words(words: str, name: str) -> None:
    assert short_name(words) == name
    assert name.startswith(family_of(words))


assert ELEMENTS % 16, "buffers are to end within a cache line"
