"""One name for one number: README, terminal, report, leaderboard and every export of one run agree."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
import yaml

from ttmbench.report import board as formats
from ttmbench.report.board import as_document, merge
from ttmbench.report.exporters import export_lm_eval, export_model_index, export_numbers
from ttmbench.report.html.render import read_report, to_html
from ttmbench.report.load import ThumbnailOptions
from ttmbench.report.paper_table import paper_table
from ttmbench.report.terminal import print_results
from ttmbench.reproduce.tables import load_table
from ttmbench.results import numbers as labels
from ttmbench.results.numbers import to_frame
from ttmbench.results.reader import ResultsFile, read_document

ROOT = Path(__file__).resolve().parents[2]
MAIN = ROOT / "results" / "reference" / "builtin.json"
TASK = "shapes_color"
FOUR = ("raw", "SimpleMatch", "overfit", "TTM")


@pytest.fixture(scope="module")
def document():
    return read_document(MAIN)


@pytest.fixture(scope="module")
def readme() -> dict[str, str]:
    """Column -> value of the task, as the README prints it."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
        if line.startswith(("| task", f"| {TASK} "))
    ]
    head, values = rows[0], rows[1]
    return {name: value.split(" ")[0] for name, value in zip(head, values, strict=True) if name in FOUR}


def shown(name: str) -> str:
    """The metric of the README's column on 2x2 groups."""
    return "group_match" if name in ("SimpleMatch", "TTM") else "group_score"


def agree(readme: dict[str, str], found: dict[tuple[str, str], float]) -> None:
    """(column, metric) -> fraction holds the README's numbers under its names."""
    assert {name: f"{100 * found[name, shown(name)]:.2f}" for name in FOUR} == readme


def test_the_readme_has_four_columns(readme):
    assert tuple(readme) == FOUR and len(set(readme.values())) == 4


def test_numbers_and_their_table(document, readme):
    frame = to_frame(document.numbers)
    mine = frame[frame["task"] == TASK]
    agree(readme, {(one.method_name, one.metric): one.value for one in mine.itertuples()})
    assert len(frame) == len(document.numbers) and frame["seeds"].dtype == "Int64"
    raw = mine[mine["method"] == "none"]
    assert raw["seeds"].isna().all() and raw["seed_std"].isna().all() and str(raw["value"].dtype) == "float64"


def test_terminal(document, readme, capsys):
    print_results(document.to_dict())
    summary, every = capsys.readouterr().out.split("every metric, percent")
    block = summary[summary.index(TASK) :]
    for name in FOUR:
        line = re.search(rf"{name}: {shown(name).replace('_', ' ')} +([0-9.]+)", block)
        assert line is not None and line[1] == readme[name]
    rows = [line.split() for line in every[every.index(TASK) :].splitlines()]
    found: dict[tuple[str, str], str] = {}
    for row in rows:
        cells = row[1:] if row and row[0] == TASK else row
        if len(cells) > 2:
            found.setdefault((cells[1], cells[0]), cells[2])
    assert {name: found[name, shown(name)] for name in FOUR} == readme


def test_report(readme, monkeypatch):
    monkeypatch.setattr("ttmbench.report.html.render._chart", lambda *_: "")
    page = to_html(read_report(MAIN, ThumbnailOptions(images="none")))
    rows = re.findall(rf'<tr[^>]*data-task="{TASK}"[^>]*>.*?</tr>', page, re.S)
    cells = [
        [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<t[dh].*?</t[dh]>", row, re.S)] for row in rows
    ]
    found = {
        (row[2], row[1].replace(" ", "_")): float(row[3].partition(" ")[0]) / 100
        for row in cells
        if re.match("[0-9.]+", row[3])
    }
    agree(readme, found)


def test_leaderboard(tmp_path, readme):
    (tmp_path / MAIN.name).write_bytes(MAIN.read_bytes())
    board = merge(tmp_path)
    rows = [row for row in as_document(board)["rows"] if row["task"] == TASK]
    agree(readme, {(row["method_name"], row["metric"]): row["value"] for row in rows})
    rows = [row for row in csv.DictReader(io.StringIO(formats.to_csv(board))) if row["task"] == TASK]
    agree(readme, {(row["method_name"], row["metric"]): float(row["value"]) for row in rows})


def test_exports(document, readme):
    run = ResultsFile(MAIN, document)
    rows = [row for row in csv.DictReader(io.StringIO(export_numbers([run], None)[0][None])) if row["task"] == TASK]
    agree(readme, {(row["method_name"], row["metric"]): float(row["value"]) for row in rows})
    table = paper_table([run], columns=["shapes_color"])
    cells = dict(zip(table.names, (text for text, _ in table.rows[0]), strict=True))
    assert {name: cells[name].split(" ")[0] for name in FOUR} == readme
    values = json.loads(export_lm_eval([run], None)[0][None])["results"][TASK]
    agree(readme, {(one.column, one.metric): values[one.key] for one in document.numbers if one.task == TASK})


def test_exports_for_the_hub(document, readme):
    copied = document.model_copy(deep=True)
    copied.datasets[TASK].source = {"kind": "huggingface", "path": "owner/colours"}
    run = ResultsFile(MAIN, copied)
    index = yaml.safe_load(export_model_index([run], None, None)[0][None])["model-index"]
    metrics = [one for of in index[0]["results"] if of["dataset"]["name"] == TASK for one in of["metrics"]]
    pairs = {re.fullmatch(r"(\w+) \(([^)]+)\)", one["type"]): one["value"] for one in metrics}
    agree(readme, {(match[2], match[1]): value / 100 for match, value in pairs.items() if match})


def test_reproduce(readme):
    numbers = [one for one in load_table("builtin").numbers if (one.task, one.model) == (TASK, "tiny-clip")]
    agree(readme, {(one.column, one.metric): one.value for one in numbers})


def test_the_table_of_columns_is_whole():
    assert labels.TRACK_ORDER == ("zero_shot", "forced_choice", "matching", "test_time", "supervised", "oracle")
    assert labels.UNRANKED == ("placebo", "shuffle")
    of_filter = {"ttm": "test_time", "overfit": "test_time", "oracle": "oracle", "choice": "forced_choice"}
    assert {name: labels.track_of(name, "matching") for name in of_filter} == of_filter
    assert labels.name_of("mine") == "mine" and labels.name_of("none", "oracle") == "raw"
    assert set(labels.PUBLISHED) == {"raw", "simple_match", "overfit", "ttm", "oracle"}
