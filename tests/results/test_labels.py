"""One name for one number: what the terminal shows of a run, and the table of names."""

from __future__ import annotations

from pathlib import Path

from ttmbench.report.terminal import print_results
from ttmbench.results import numbers as labels
from ttmbench.results.reader import read_document

MAIN = Path(__file__).resolve().parents[2] / "results" / "reference" / "builtin.json"
TASK = "shapes_color"
SHOWN = {"raw": "group_score", "SimpleMatch": "group_match", "overfit": "group_score", "TTM": "group_match"}


def test_the_terminal_shows_them_under_their_names(capsys):
    document = read_document(MAIN)
    values = {(one.column, one.metric): f"{100 * one.value:.2f}" for one in document.numbers if one.task == TASK}
    print_results(document.to_dict())
    every = capsys.readouterr().out
    rows = [line.removeprefix(TASK).split() for line in every[every.index(TASK) :].splitlines()]
    found: dict[tuple[str, str], str] = {}
    for row in rows:
        if len(row) > 2:
            found.setdefault((row[1], row[0]), row[2])
    for name, metric in SHOWN.items():
        assert found[name, metric] == values[name, metric]


def test_the_table_of_columns_is_whole():
    assert labels.TRACK_ORDER == ("zero_shot", "forced_choice", "matching", "test_time", "supervised", "oracle")
    of_filter = {"ttm": "test_time", "overfit": "test_time", "oracle": "oracle", "choice": "forced_choice"}
    of_filter |= {"placebo": None, "shuffle": None, "mine": "test_time"}
    assert {name: labels.column_of(name).track for name in of_filter} == of_filter
    assert labels.column_of("mine").name == "mine"
    shown = {("none", "matching"): "SimpleMatch", ("none", "oracle"): "raw", ("overfit", "test_time"): "overfit"}
    shown |= {("none", "supervised"): "SimpleMatch", ("none", None): "SimpleMatch"}
    for (method, track), name in shown.items():
        assert labels.Number("t", "group_match", method, None, track=track).column == name
    assert labels.Number("t", "group_score", "none", None, track="supervised").column == "raw"
