"""``ttmbench sweep``: cells are ordinary runs, whatever runs them and whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from support import processes
from support.checkpoints import finished_iterations
from support.plans import SMALL, TTM, cells_of, forked_children, numbers, write_plan

from ttmbench._util.file_io import take_lock
from ttmbench.cli import main
from ttmbench.evaluator.evaluate import evaluate

PLAN = {"tasks": ["shapes_color", "shapes_place"], "options": {**SMALL, **TTM, "limit": 4, "deterministic": True}}
LONG = {"options": {**SMALL, "limit": 4, "deterministic": True, "ttm": True, "ttm_args": "iterations=40,epochs=10"}}
SWEEP = ["-c", "from ttmbench.cli import command; command()", "sweep", "plan.yaml", "-o", "board"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Every cell as a separate run."""
    cells = cells_of(tmp_path_factory.mktemp("alone"), **PLAN)
    for cell in cells:
        evaluate(cell.config, cell.chosen)
    return {cell.folder: numbers(cell.document) for cell in cells}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(board: Path) -> dict[str, str]:
    return {str(path.parent.relative_to(board)): numbers(path) for path in board.rglob("results.json")}


def wait_for(condition, timeout=600.0):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_cells_equal_single_runs_although_one_is_killed(here, alone, capsys):
    write_plan(here, **PLAN)
    with forked_children() as begun:

        def kill():
            wait_for(lambda: begun and finished_iterations(here))
            os.kill(begun[0].pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        code = main(["sweep", "plan.yaml", "-o", "board", "--workers", "2"])
        killer.join()
    said = capsys.readouterr()
    assert code == 0 and "2 cells: 2 done, 0 failed" in said.out, said.err
    assert found(here / "board") == alone
    with forked_children() as begun:
        assert main(["sweep", "plan.yaml", "-o", "board"]) == 0
    assert not begun and "2 of 2 cells are already done" in capsys.readouterr().err


def test_a_terminated_sweep_ends_while_cells_wait(here):
    write_plan(here, **PLAN)
    process = processes.start(SWEEP, stdout=-1, stderr=-1)
    wait_for(lambda: list(here.rglob("log.txt")))
    process.terminate()
    assert process.wait(60) == 130


@pytest.mark.slow
def test_a_killed_command_resumes_at_the_last_iteration(here):
    write_plan(here, **LONG)
    process = processes.start(SWEEP, stdout=-1, stderr=-1)
    wait_for(lambda: len(finished_iterations(here)) > 1)
    process.kill()
    assert process.wait(60) == -9
    (lock,) = here.rglob("*.state/lock")
    first = finished_iterations(here)
    take_lock(lock, 30).release()  # the cell's process ends with the command
    write_plan(here, **LONG)
    with forked_children() as begun:

        def stop():
            wait_for(lambda: len(finished_iterations(here)) > len(first) + 1)
            begun[0].terminate()

        stopper = threading.Thread(target=stop)
        stopper.start()
        assert main(["sweep", "plan.yaml", "-o", "board"]) == 1
        stopper.join()
    assert finished_iterations(here)[: len(first)] == first


def test_single_cells_make_the_board_of_a_sweep(here, alone, capsys):
    write_plan(here, **PLAN)
    for cell in "21":
        assert main(["sweep", "plan.yaml", "-o", "board", "--cell", cell]) == 0
    assert found(here / "board") == alone
    capsys.readouterr()
    assert main(["sweep", "plan.yaml", "-o", "board", "--cell", "1"]) == 0
    assert "cell 1 is already done" in capsys.readouterr().out
    (here / "board/tiny-clip/shapes_place/results_samples_shapes_place.jsonl.gz").unlink()
    assert main(["sweep", "plan.yaml", "-o", "board", "--dry_run"]) == 0
    out = capsys.readouterr().out
    assert "2 cells, 1 to run" in out and out.index("done") < out.index("to run")
    assert json.loads((here / "board/sweep.json").read_text())["cells"] == list(alone)


def test_a_failed_cell_leaves_the_others(here, capsys):
    gone = {"model": "hf", "name": "gone", "model_args": {"pretrained": "./nowhere"}}
    write_plan(here, models=[gone, "tiny-clip"], options=SMALL)
    with forked_children():
        assert main(["sweep", "plan.yaml", "-o", "board"]) == 1
    said = capsys.readouterr()
    assert "2 cells: 1 done, 1 failed" in said.out and "gone/shapes_color failed: " in said.err
    assert "nowhere" in said.err and "nowhere" in (here / "board/gone/shapes_color/log.txt").read_text()
    assert main(["sweep", "plan.yaml", "-o", "board", "--cell", "1"]) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan.yaml"], "--output_path"),
        (["plan.yaml", "-o", "x.json"], "must be a directory"),
        (["plan.yaml", "-o", "x", "--cell", "3"], "--cell must be at most 2"),
        (["other.yaml", "-o", "x"], "other.yaml"),
        (["plan.yaml", "-o", "x", "--executor_args", "address=auto"], "--executor ray"),
    ],
)
def test_wrong_usage_writes_nothing(here, capsys, words, message):
    write_plan(here, **PLAN)
    assert main(["sweep", *words]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
    assert [path.name for path in here.iterdir()] == ["plan.yaml"]
