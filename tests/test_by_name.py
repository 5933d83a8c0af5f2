"""`(by-name (GLOB OPTIMIZER)… (else OPTIMIZER))`: the first match has a parameter; what no part has is an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from elaborating import elaborated, errors_of, run_of
from resumed import assert_a_resume_is_exact
from safetensors.numpy import load_file

from sexpgpu.cli.check import check_request
from sexpgpu.train.request import Request

LOSS = '(linear (linear x 3 :name "up") 2 :name "down")'


def states(optimizer: str) -> set[tuple[str, str]]:
    return {(state.parameter, state.name) for state in elaborated(run_of(LOSS, optimizer=optimizer)).states}


def test_the_first_part_that_matches_has_a_parameter() -> None:
    made = states('(by-name ("up.*" (lion)) ("*.weight" (sgd :momentum 0.9)) (else (adam)))')
    of_up = {("up.weight", "m"), ("up.bias", "m")}
    assert made == of_up | {("down.weight", "buffer"), ("down.bias", "m"), ("down.bias", "v")}


def test_no_else_is_needed_where_every_parameter_has_an_optimizer() -> None:
    made = elaborated(run_of(LOSS, optimizer='(by-name ("*.weight" (adam)) ("*.bias" (sgd :lr 0.5)))'))
    assert {state.parameter for state in made.states} == {"up.weight", "down.weight"}
    assert made.learning_rate is None


def test_a_parameter_that_no_part_matches_is_an_error_at_the_form() -> None:
    (error,) = errors_of(run_of(LOSS, optimizer='\n  (by-name ("*.weight" (adam)))'))
    assert (error.code, error.span and (error.span.line, error.span.column)) == ("E-NAME-009", (4, 3))
    assert error.message == "by-name has no optimizer for the parameter up.bias"
    assert error.notes == ["add (else OPTIMIZER), or a part whose glob matches it"]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ("", "by-name has no part"),
        ('(else (sgd)) ("*" (adam))', "by-name: (else OPTIMIZER) is the last of its parts"),
        ('("*" (adam) 3)', 'by-name: a part is ("GLOB" OPTIMIZER)'),
        ('"*"', 'by-name: a part is ("GLOB" OPTIMIZER)'),
    ],
)
def test_parts_that_are_not_well_formed_are_refused(parts: str, message: str) -> None:
    (error,) = errors_of(run_of(LOSS, optimizer=f"(by-name\n{parts})"))
    assert (error.code, error.message) == ("E-SYN-001", message)


def test_what_is_in_place_of_an_optimizer_is_named() -> None:
    (error,) = errors_of(run_of(LOSS, optimizer='(by-name ("*.bias" 0.1) (else (sgd)))'))
    assert error.code == "E-TYPE-001" and "is an optimizer, not" in error.message


def test_a_glob_that_is_for_no_parameter_is_a_warning_with_the_nearest_name() -> None:
    parts = '("up.wieght" (sgd))\n("up.*" (lion))\n("up.bias" (sgd))\n(else (adam))'
    made = elaborated(run_of(LOSS, optimizer=f"(by-name\n{parts})", rest=":steps 1"))
    assert made.warnings == (
        "e.sexp:4:2: by-name: no trained parameter matches up.wieght; did you mean up.weight?",
        "e.sexp:6:2: by-name: parts before up.bias have all that it matches",
    )


def test_frozen_parameters_need_no_optimizer() -> None:
    made = elaborated(run_of(LOSS, optimizer='(by-name ("*.weight" (adam)))', rest=':steps 1 :freeze ["*.bias"]'))
    assert {state.parameter for state in made.states} == {"up.weight", "down.weight"}


def example(folder: Path, optimizer: str) -> Path:
    path = folder / "named.sexp"
    path.write_text(
        '(defloader digits (builtin "digits" :batch 8))\n'
        '(defrun named :data digits :steps 6 :checkpoint (every 1)\n'
        '  :loss (cross-entropy (linear (relu (linear x 16 :name "up")) 10 :name "down") y)\n'
        f"  :optimizer {optimizer})\n"
    )
    return path


OPTIMIZER = '(by-name ("up.*" (muon)) ("down.weight" (adafactor)) ("*bias" (lion)) ("nothing" (sgd)) (else (sgd)))'


def test_check_and_run_say_what_matches_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    request = Request(example(tmp_path, OPTIMIZER))
    warning = "by-name: no trained parameter matches nothing"
    assert f"warning: {request.file}:4:" in check_request(request, False)
    assert warning in check_request(request, False)
    from sexpgpu.train.launch import run
    from sexpgpu.train.progress import Progress

    flags = {"out": str(tmp_path / "runs"), "steps": 1}
    for _ in range(2):  # the second start finds what the first one kept
        run(Request(request.file, flags=flags), Progress())
        assert warning in capfd.readouterr().err


def test_states_of_each_kind_go_on_bit_for_bit(tmp_path: Path) -> None:
    whole = assert_a_resume_is_exact(example(tmp_path, OPTIMIZER), tmp_path, 6, (1, 4))
    saved = load_file(whole / "checkpoints" / "step-00000006" / "optimizer.safetensors")
    of_up = {"up.weight:m", "up.bias:m", "up.bias:v"}
    assert set(saved) == of_up | {"down.weight:rows", "down.weight:columns", "down.bias:m"}
    assert json.loads((whole / "checkpoints" / "step-00000006" / "state.json").read_text())["step"] == 6
