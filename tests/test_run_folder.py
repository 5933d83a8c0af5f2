"""The run folder, its records and its status."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from msgspec.structs import replace

from sexpgpu.errors import Error
from sexpgpu.train.folder import RunFolder, create_run_folder, writing
from sexpgpu.train.metrics import MetricsWriter, cut_torn_line, read_metrics
from sexpgpu.train.status import Status, StatusWriter, read_status

NOON = datetime(2026, 1, 31, 12, 5, 9, tzinfo=UTC)


def test_a_folder_is_named_by_utc_time_and_the_experiments_hash(tmp_path: Path) -> None:
    folder = create_run_folder(tmp_path / "runs", "pretrain", "0123456789abcdef", NOON)
    assert folder.path == tmp_path / "runs" / "pretrain" / "20260131-120509-01234567"
    assert folder.path.is_dir()
    elsewhere = NOON.astimezone(timezone(timedelta(hours=9)))
    assert create_run_folder(tmp_path, "x", "ab" * 8, elsewhere).path.name == "20260131-120509-abababab"


def test_a_taken_name_gets_the_next_number(tmp_path: Path) -> None:
    names = [create_run_folder(tmp_path, "r", "f" * 64, NOON).path.name for _ in range(3)]
    assert names == [
        "20260131-120509-ffffffff",
        "20260131-120509-ffffffff-2",
        "20260131-120509-ffffffff-3",
    ]


def test_a_folder_that_cannot_be_made_is_an_error_with_a_code(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Error, match="E-STORE-003"):
        create_run_folder(tmp_path / "file", "r", "f" * 64, NOON)
    for name in ("../up", "a/b", "", ".hidden"):
        with pytest.raises(Error, match="E-STORE-003"):
            create_run_folder(tmp_path, name, "f" * 64, NOON)


def test_a_second_writer_is_refused_and_told_who_holds_the_folder(
    tmp_path: Path,
) -> None:
    folder = RunFolder(tmp_path)
    StatusWriter(folder.status).update(Status("running", 1, 10, pid=4242, host="here"))
    with (
        writing(folder),
        pytest.raises(Error, match="in use by process 4242 on here") as caught,
        writing(folder),
    ):
        pass
    assert caught.value.code == "E-STORE-001"
    with writing(folder):
        pass


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    program = "import os, sys; from pathlib import Path; from sexpgpu.train.folder import RunFolder, writing\n"
    program += "with writing(RunFolder(Path(sys.argv[1]))): print('held', flush=True); os.kill(os.getpid(), 9)"
    root = Path(__file__).parent.parent
    environment = os.environ | {"PYTHONPATH": str(root)}
    found = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        check=False,
        capture_output=True,
        env=environment,
    )
    assert found.stdout == b"held\n" and found.returncode == -9
    with writing(RunFolder(tmp_path)):
        pass


def test_records_are_appended_one_object_a_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2):
        with MetricsWriter(path) as writer:
            writer.write(
                {
                    "kind": "step",
                    "step": step,
                    "train/loss": 2.5,
                    "runtime/peak_bytes": 1 << 40,
                }
            )
    lines = path.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"kind": "step", "step": step, "train/loss": 2.5, "runtime/peak_bytes": 1 << 40} for step in (1, 2)
    ]


def test_floats_come_back_with_the_same_bits(tmp_path: Path) -> None:
    values = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, 3.0]
    with MetricsWriter(tmp_path / "m") as writer:
        writer.write({"values": values})
    (record,) = read_metrics(tmp_path / "m")
    assert [float(value).hex() for value in record["values"]] == [value.hex() for value in values]


def test_non_finite_numbers_are_strings_in_the_file_and_floats_for_the_reader(
    tmp_path: Path,
) -> None:
    with MetricsWriter(tmp_path / "m") as writer:
        writer.write({"kind": "step", "a": math.nan, "b": [math.inf, {"c": -math.inf}]})
    strict = json.loads((tmp_path / "m").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert strict == {"kind": "step", "a": "NaN", "b": ["Infinity", {"c": "-Infinity"}]}
    (record,) = read_metrics(tmp_path / "m")
    assert math.isnan(record["a"]) and record["b"] == [math.inf, {"c": -math.inf}]


def test_each_record_reaches_the_file_by_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    real = os.write

    def noted(file: int, data: bytes) -> int:
        written.append(data)
        return real(file, data)

    monkeypatch.setattr(os, "write", noted)
    with MetricsWriter(tmp_path / "m") as writer:
        writer.write({"step": 1})
        writer.write({"step": 2, "text": "x" * 100_000})
    assert [(data[:9], data[-1:]) for data in written] == [
        (b'{"step":1', b"\n"),
        (b'{"step":2', b"\n"),
    ]


def test_a_torn_last_line_is_cut_when_the_file_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "m"
    for torn in ('{"step":2,"tr', "x" * 200_000):
        path.write_text('{"step":1}\n' + torn)
        assert read_metrics(path) == [{"step": 1}]
        with MetricsWriter(path) as writer:
            writer.write({"step": 2})
        assert path.read_text() == '{"step":1}\n{"step":2}\n'


@pytest.mark.parametrize(("content", "kept"), [("", ""), ("torn", ""), ("a\n", "a\n"), ("a\nb\nc", "a\nb\n")])
def test_only_what_follows_the_last_line_end_is_cut(tmp_path: Path, content: str, kept: str) -> None:
    path = tmp_path / "m"
    path.write_text(content)
    file = os.open(path, os.O_RDWR)
    cut_torn_line(file)
    os.close(file)
    assert path.read_text() == kept


def test_a_full_disk_leaves_whole_lines_and_is_an_error_with_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    with MetricsWriter(tmp_path / "m") as writer:
        writer.write({"step": 1})
        monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:5]))
        with pytest.raises(Error, match="E-STORE-003.*No space left"):
            writer.write({"step": 2})
    assert (tmp_path / "m").read_text() == '{"step":1}\n'


def test_records_after_the_resumed_step_are_superseded(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "m") as writer:
        writer.write({"kind": "annotation", "name": "lowering"})
        for step in range(1, 6):
            writer.write({"kind": "step", "step": step, "try": 1})
        writer.write({"kind": "annotation", "name": "resume", "from": 2})
        for step in range(3, 7):
            writer.write({"kind": "step", "step": step, "try": 2})
        writer.write({"kind": "annotation", "name": "resume", "from": 4})
        writer.write({"kind": "step", "step": 5, "try": 3})
    steps = [(record["step"], record["try"]) for record in read_metrics(tmp_path / "m") if record["kind"] == "step"]
    assert steps == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)]
    assert read_metrics(tmp_path / "m")[0] == {"kind": "annotation", "name": "lowering"}
    assert len((tmp_path / "m").read_text().splitlines()) == 13


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "m").write_text('{"step":1}\n{"step"\n{"step":3}\n')
    with pytest.raises(Error, match="E-STORE-004.*line 2"):
        read_metrics(tmp_path / "m")


def test_a_status_is_written_once_a_second_and_at_every_change_of_state(
    tmp_path: Path,
) -> None:
    path, times = tmp_path / "status.json", [0.0]
    writer = StatusWriter(path, clock=lambda: times[0])
    running = Status("running", 1, 100, pid=1, host="here", loss=2.5)

    def seen_after(seconds: float, status: Status) -> int:
        times[0] = seconds
        writer.update(status)
        found = read_status(path)
        assert found is not None
        return found.step

    assert seen_after(0.0, replace(running, state="starting", step=0)) == 0
    assert seen_after(0.1, running) == 1
    assert seen_after(0.5, replace(running, step=2)) == 1
    assert seen_after(1.1, replace(running, step=3)) == 3
    assert seen_after(1.2, replace(running, state="done", step=4)) == 4


def test_a_status_reads_back_whole_and_leaves_no_other_file(tmp_path: Path) -> None:
    status = Status(
        "failed",
        3,
        10,
        pid=7,
        host="here",
        ranks=2,
        loss=math.inf,
        eta=None,
        code="E-NUM-001",
    )
    StatusWriter(tmp_path / "status.json").update(status)
    assert read_status(tmp_path / "status.json") == status
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]
    assert read_status(tmp_path / "none.json") is None
