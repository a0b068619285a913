"""Columns of test-time methods in tables, exports, the report and the site."""

from __future__ import annotations

import re

import pytest

from ttmbench import simple_evaluate
from ttmbench.cli import main
from ttmbench.report.board import methods_of
from ttmbench.report.html.render import read_report, to_html
from ttmbench.report.load import ThumbnailOptions
from ttmbench.report.terminal import points, print_results
from ttmbench.results.numbers import to_frame
from ttmbench.results.reader import ResultsFile, read_document

T = "shapes_color"
METHODS = ["tent", "dual_softmax", "dn", "zero"]
ORDER = ["raw", "SimpleMatch", "TTM", *METHODS, "placebo", "oracle"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    simple_evaluate(
        "tiny-clip",
        T,
        limit=12,
        methods=[*METHODS, "placebo", "oracle"],
        method_args={"zero": {"views": 6}, "tent": {"images": 8}},
        ttm={"iterations": 1, "epochs": 1},
        seeds=[0, 1],
        log_samples=True,
        output_path=str(folder / "x.json"),
    )
    return folder


@pytest.fixture(scope="module")
def run(folder):
    return ResultsFile(folder / "x.json", read_document(folder / "x.json"))


def test_columns_stand_in_one_order(run):
    numbers = run.document.numbers
    assert list(dict.fromkeys(row.column for row in numbers if row.metric in ("group_score", "group_match"))) == (
        ["raw", *ORDER[2:], "SimpleMatch"]
    )
    frame = to_frame(numbers).set_index(["metric", "method"])
    assert frame.loc["group_score", "dual_softmax"]["track"] == "matching"
    assert frame.loc["group_score", "tent"]["track"] == "test_time"
    assert 0.24 < frame.loc["group_score", "dual_softmax"]["chance"] < 0.26
    assert frame.loc["group_score", "tent"]["chance"] == pytest.approx(1 / 6)
    assert frame.loc["group_match", "zero"]["seeds"] == 2 and frame.loc["group_match", "dn"]["seeds"] == 1


def test_gains_are_over_the_fair_baseline(run, capsys):
    print_results(run.document)
    lines = capsys.readouterr().out.splitlines()
    values = {row.key: row.value for row in run.document.numbers}
    raw, matched = values["group_score,none"], values["group_match,none"]
    for name in METHODS:
        over = {"group_score": matched if name == "dual_softmax" else raw, "group_match": matched}
        for metric, before in over.items():
            line = next(one for one in lines if one.split()[:2] == [metric, name])
            assert points(values[f"{metric},{name}"] - before) in line.split(), line
    gain = values["group_match,ttm"] - matched
    shares = f"relative gain {points(gain / matched, 1)} %, error reduction {points(gain / (1 - matched), 1)} %"
    assert any(f"TTM gains {points(gain)} in group_match" in one and shares in one for one in lines)


def test_the_page_of_a_task_states_chance_where_it_is_another(folder):
    site = folder.with_suffix(".site")
    assert main(["leaderboard", str(folder), "--site", str(site)]) == 0
    page = (site / "tasks" / f"{T}.html").read_text()
    assert all(name in page for name in METHODS)
    test_time = page[page.index('id="test_time"') : page.index('id="oracle"')]
    assert re.search(r"group score</button><small>chance 16\.67</small>", test_time)
    assert len(re.findall(r"<small>chance [0-9.]+</small></td>", test_time)) > 0, "zero's own, in its cells"


def test_the_report_sets_methods_beside_their_baseline_and_cost(folder, run):
    rows = {row["method"]: row for row in methods_of(run)}
    numbers = run.document.results[T]
    assert list(rows) == ["TTM", *METHODS, "placebo", "oracle"]
    for name, row in rows.items():
        key = "ttm" if name == "TTM" else name
        baseline = "group_match,none" if name == "dual_softmax" else "group_score,none"
        assert row["score_gain"] == pytest.approx(numbers[f"group_score,{key}"] - numbers[baseline])
        assert row["gain"] == pytest.approx(numbers[f"group_match,{key}"] - numbers["group_match,none"])
    trained = {name: row["parameters"] for name, row in rows.items()}
    assert rows["TTM"]["passes"] > 2 and trained["TTM"] == trained["placebo"] > trained["tent"] > 0
    passes = rows["dn"]["passes"], rows["zero"]["passes"]
    assert passes == (2.0, 2.0 + 5) and trained["dn"] is None, "five views of each image beside the plain one"
    page = to_html(read_report(folder / "x.json", ThumbnailOptions(images="none")))
    assert 'id="methods-table"' in page and all(f"<td>{name}</td>" in page for name in METHODS)
    assert re.search(r'>oracle *<span class="badge">uses labels</span>', page)
