"""Results of many runs merged: what is newest, what conflicts, what is left out, and files that others read."""

from __future__ import annotations

import json
import re

import jsonschema
import pandas as pd
import pytest
from support.documents import schema, write_run
from support.pages import Page

import ttmbench
from ttmbench.cli import main
from ttmbench.errors import UsageError
from ttmbench.report.board import as_document, merge


def write(folder, name, model="m", date=0.0, value=0.5, methods=("none",), **more):
    """A results document with the group match under some methods."""
    return write_run(
        folder, name, {f"group_match,{one}": value for one in methods}, model_name=model, date=date, **more
    )


def task_page(runs):
    """The page of the task ``t`` on the site of some runs."""
    site = runs.with_suffix(".site")
    assert main(["leaderboard", str(runs), "--site", str(site)]) == 0
    return (site / "tasks" / "t.html").read_text()


def test_of_a_metric_that_counts_failures_the_smallest_is_first_and_best(tmp_path):
    for model, value in (("a", 0.2), ("b", 0.1), ("c", 0.3)):
        write(tmp_path, f"{model}.json", model=model, value=value, higher_is_better={"t": {"group_match": False}})
    assert [row.model for row in merge(tmp_path).rows] == ["b", "a", "c"]
    assert re.findall(r'<td class="number best" data-value="([0-9.]+)"', task_page(tmp_path)) == ["0.1"]


def test_a_part_of_a_task_is_shown_below_and_replaces_nothing(tmp_path):
    write(tmp_path, "whole.json", date=1.0, value=0.6, groups=(200, 200))
    write(tmp_path, "part.json", date=2.0, value=0.9, groups=(8, 200), data="part")
    write(tmp_path, "newer_and_smaller.json", date=3.0, value=1.0, groups=(4, 200), data="other part")
    write(tmp_path, "another.json", model="z", value=0.5, groups=(200, 200))
    write(tmp_path, "best.json", model="a", value=1.0, groups=(16, 200), data="a third part")
    board = merge(tmp_path)
    rows = [(row.origin.file, row.extent.words, row.limited) for row in board.rows]
    assert rows == [
        ("whole.json", "200", False),
        ("another.json", "200", False),
        ("best.json", "16 of 200", True),
        ("newer_and_smaller.json", "4 of 200", True),
        ("part.json", "8 of 200", True),
    ]
    assert as_document(board)["superseded"] == [], "parts of other groups are rows of their own"
    assert not board.conflicts, "parts are of other data, and marked"
    page = task_page(tmp_path)
    assert re.findall(r'number best".*?>([0-9.]+)<', page) == ["60.00"], "the largest of the whole task is bold"
    assert page.count('<tr class="limited"') == 3
    jsonschema.Draft202012Validator(schema("leaderboard")).validate(as_document(board))


def test_tracks_are_never_mixed(tmp_path, capsys):
    write(tmp_path, "x.json", methods=("none", "ttm", "oracle"))
    assert main(["leaderboard", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"], "nothing is written unasked"
    tables = capsys.readouterr().out.split("All values")[0]
    titles = [line.split(":")[0] for line in tables.splitlines() if re.match("[A-Z]", line)]
    assert titles == ["Matching", "Test-time", "Oracle"] and len(re.findall("^m ", tables, re.M)) == 3


@pytest.mark.parametrize("more", [{"version": 2}, {"data": "e"}])
def test_other_versions_and_data_are_a_conflict(tmp_path, capsys, more):
    for name in "abc":
        write(tmp_path, f"{name}.json", model=name, **(more if name == "b" else {"version": 1}))
    old = ["a.json", "c.json"] if "version" in more else ["b.json"]
    assert merge(tmp_path).conflicts == {"t": old}, "the newest version, then the most frequent data"
    assert main(["leaderboard", str(tmp_path)]) == 0 and f"t: {', '.join(old)}" in capsys.readouterr().out


def test_a_run_without_a_finished_task_is_named(tmp_path):
    write(tmp_path, "a.json")
    write(tmp_path, "unfinished.json", methods=(), status="running")
    assert merge(tmp_path).skipped == {"unfinished.json": "has no finished task (status running)"}


@pytest.mark.parametrize("name", ["x.json", "x.csv", "x.html"])
def test_a_file_is_the_output_that_it_names(tmp_path, name):
    write(tmp_path, "runs/x.json")
    before = {path: path.read_bytes() for path in (tmp_path / "runs").iterdir()}
    assert main(["leaderboard", str(tmp_path / "runs"), "-o", str(tmp_path / name)]) == 0
    assert {path: path.read_bytes() for path in (tmp_path / "runs").iterdir()} == before, "what it reads stays"
    assert {path.name for path in tmp_path.iterdir()} == {"runs", name}
    if name == "x.html":
        page = Page((tmp_path / name).read_text())
        assert page.tables["matching-table"][1][1:3] == ["m SimpleMatch", "50.00 23.7–76.3"]
        assert all(link.startswith("#") for link in page.links), "it is the whole of it"


def test_nothing_to_merge(tmp_path):
    with pytest.raises(UsageError, match="no results document"):
        merge(tmp_path)
    with pytest.raises(UsageError, match="must be a directory"):
        merge(tmp_path / "nowhere")


def test_the_command_on_a_real_run(tmp_path, capsys):
    ttmbench.simple_evaluate(
        "tiny-clip",
        "shapes_color",
        ttm={"iterations": 1, "epochs": 1},
        methods=["oracle", "placebo"],
        seeds=[0, 1],
        limit=8,
        device="cpu",
        bootstrap_iters=0,
        output_path=str(tmp_path / "runs"),
    )
    assert main(["leaderboard", str(tmp_path / "runs"), "-o", str(tmp_path / "board")]) == 0
    out = capsys.readouterr().out
    tables = out.split("All values are in percent")[0]
    assert tables.startswith("Zero-shot") and "placebo" not in out and max(map(len, out.splitlines()[:12])) <= 80
    metrics = [line.split(": ")[1] for line in tables.splitlines() if line.startswith("shapes_")]
    assert metrics == ["group_score", *["group_match"] * 3], "one metric for each task and track"
    assert re.search(r"TTM +\d+\.\d\d (?:± \d+\.\d\d|\(2 seeds, identical\)) +- +50\.00 +8 of 200\n", tables)
    document = json.loads((tmp_path / "board" / "leaderboard.json").read_text())
    jsonschema.Draft202012Validator(schema("leaderboard")).validate(document)
    assert document["tracks"] == ["zero_shot", "matching", "test_time", "oracle"]
    table = pd.read_csv(tmp_path / "board" / "leaderboard.csv")
    adapted = table[(table["track"] == "test_time") & (table["metric"] == "group_match")]
    assert adapted["seeds"].tolist() == [2] and adapted["groups"].tolist() == [8]
    for _ in range(2):
        assert main(["leaderboard", str(tmp_path / "runs"), "-o", str(tmp_path / "runs")]) == 0, "it is not a run"
    assert "skipped" not in capsys.readouterr().out
    assert as_document(merge(tmp_path / "runs"))["rows"] == document["rows"]
