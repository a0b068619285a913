"""``ttmbench sweep`` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.sweeps import SMALL, TTM, write_plan

from ttmbench.cli import main
from ttmbench.sweep.folder import beside_other_cells, one_driver, read_summary

PLAN = {"models": ["tiny-clip"], "tasks": ["shapes_color", "shapes_place"], "options": SMALL}


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_plan(tmp_path, **PLAN)
    return "plan.yaml"


def test_a_dry_run_lists_cells_and_invents_no_time(plan, tmp_path, capsys):
    write_plan(tmp_path, **(PLAN | {"settings": [{"name": "raw"}, {"name": "ttm", **TTM}]}))
    assert main(["sweep", plan, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["1", "raw/tiny-clip/shapes_color", "12", "24", "24", "-", "1", "-"]
    assert lines[3].split() == ["2", "ttm/tiny-clip/shapes_color", "12", "24", "24", "4", "x", "1", "3", "-"]
    assert "4 cells, 4 to run" in lines and lines[-1].startswith(
        "no estimate for 4 of them: no results of their models"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["plan.yaml"]


def test_runs_of_a_sweep_can_be_compared_unless_the_plan_leaves_samples_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_plan(tmp_path, models=["tiny-clip", "tiny-clip-seed1"], tasks=["shapes_color"], options=SMALL)
    for cell in "12":
        assert main(["sweep", "plan.yaml", "-o", "board", "--cell", cell]) == 0
    capsys.readouterr()
    assert main(["compare", "board", "--bootstrap_iters", "20"]) == 0
    printed = capsys.readouterr()
    assert "tiny-clip -> tiny-clip-seed1: percent" in printed.out and printed.err == ""
    write_plan(tmp_path, options={**SMALL, "log_samples": False})
    assert main(["sweep", "plan.yaml", "-o", "bare", "--cell", "1"]) == 0
    assert not list(Path("bare").rglob("*samples*"))


def test_cells_one_by_one_make_the_same_board_and_the_sweep_finds_them_done(plan, tmp_path, capsys):
    assert main(["sweep", plan, "-o", "board", "--cell", "2"]) == 0
    said = capsys.readouterr().out
    assert "shapes_place" in said and "shapes_color" not in said
    summary = read_summary(Path("board/sweep.json"))
    assert [one.state for one in summary.cells] == ["waiting", "done"] and summary.status == "running"
    assert main(["sweep", plan, "-o", "board", "--cell", "1"]) == 0
    summary = read_summary(Path("board/sweep.json"))
    assert [one.state for one in summary.cells] == ["done", "done"] and summary.status == "done"
    capsys.readouterr()
    assert main(["sweep", plan, "-o", "board", "--cell", "1"]) == 0
    assert capsys.readouterr().out == "cell 1 is already done: board/tiny-clip/shapes_color/results.json\n"
    assert main(["sweep", plan, "-o", "board"]) == 0
    said = capsys.readouterr()
    assert "2 of 2 cells are already done" in said.err and "2 cells: 2 done" in said.out
    assert not Path("board/.sweep/logs").exists()  # nothing to do, so nobody was asked to
    assert main(["sweep", plan, "-o", "board", "--dry_run"]) == 0
    said = capsys.readouterr().out
    assert "2 cells, 0 to run" in said and said.count(" done ") == 2
    documents = {path.as_posix(): json.loads(path.read_text()) for path in Path("board").glob("*/*/results.json")}
    assert {name: list(one["results"]) for name, one in documents.items()} == {
        "board/tiny-clip/shapes_color/results.json": ["shapes_color"],
        "board/tiny-clip/shapes_place/results.json": ["shapes_place"],
    }
    assert all(one["command"].startswith("ttmbench") for one in documents.values())


def test_a_cell_that_fails_alone_says_so_in_the_summary(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    models = [{"model": "hf", "name": "gone", "model_args": {"pretrained": "./nowhere"}}]
    write_plan(tmp_path, models=models, tasks=["shapes_color"])
    assert main(["sweep", "plan.yaml", "-o", "board", "--cell", "1"]) != 0
    (one,) = read_summary(Path("board/sweep.json")).cells
    assert one.state == "failed" and "nowhere" in one.error
    assert "nowhere" in capsys.readouterr().err


def test_a_damaged_summary_does_not_stop_a_cell(plan, capsys):
    Path("board").mkdir()
    Path("board/sweep.json").write_text("{")
    assert main(["sweep", plan, "-o", "board", "--cell", "1"]) == 0
    assert [one.state for one in read_summary(Path("board/sweep.json")).cells] == ["done", "waiting"]


def test_a_cell_beside_a_sweep_is_refused_and_beside_other_cells_is_not(plan, capsys):
    with one_driver(Path("board")):
        assert main(["sweep", plan, "-o", "board", "--cell", "1"]) == 2
    said = capsys.readouterr()
    assert said.err == ("ttmbench: a sweep is writing to board and runs this cell too; wait until it is done\n")
    assert not said.out and [one.name for one in Path("board").iterdir()] == [".sweep"]
    with beside_other_cells(Path("board")):
        assert main(["sweep", plan, "-o", "board", "--cell", "1"]) == 0
        capsys.readouterr()
        assert main(["sweep", plan, "-o", "board"]) == 2
    said = capsys.readouterr().err
    assert said == "ttmbench: cells of board are being run with --cell; wait until they are done\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan.yaml"], "--output_path DIR is needed"),
        (["plan.yaml", "-o", "x.json"], "must be a directory for a sweep"),
        (["plan.yaml", "-o", "x", "--cell", "3"], "--cell must be at most 2"),
        (["plan.yaml", "-o", "x", "--cell", "0"], "must be at least 1"),
        (["other.yaml", "-o", "x"], "other.yaml"),
        (["plan.yaml", "-o", "x", "--executor_args", "address=auto"], "unknown key 'address'; known: stall"),
        (["plan.yaml", "-o", "x", "--executor_args", "stall=1"], "must be greater than or equal to 10, got 1"),
        (["plan.yaml", "-o", "x", "--executor", "dask"], "invalid choice"),
        (["plan.yaml", "-o", "x", "--on_error", "never"], "invalid choice"),
        (["plan.yaml", "-o", "x", "--batch_size", "auto", "--deterministic"], "batch_size must be a number"),
    ],
)
def test_wrong_usage_is_one_line_and_writes_nothing(plan, tmp_path, capsys, words, message):
    assert main(["sweep", *words]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
    assert not list(tmp_path.glob("x/**/results*"))
