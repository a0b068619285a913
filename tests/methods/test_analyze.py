"""``analyze methods``: gains over the fair baseline, costs, calibration, and what is refused."""

from __future__ import annotations

import json

import pytest

from ttmbench.cli import main
from ttmbench.stats import holm

TASK = "shapes_color"
WORDS = f"analyze methods --model tiny-clip --tasks {TASK} --limit 16 --device cpu --bootstrap_iters 50".split()
SHORT = ["--ttm_args", "iterations=2,epochs=3", "--method_args", "vte.views=4"]


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    folder = tmp_path_factory.mktemp("analysis")
    assert main([*WORDS, "--methods", "ttm,dn,sinkhorn,vte", "--seeds", "0,1", *SHORT, "-o", str(folder)]) == 0
    (file,) = folder.rglob("methods_*.json")
    assert {path.suffix for path in file.parent.iterdir()} == {".json", ".png", ".svg"}
    return json.loads(file.read_text())


def rows(document, metric):
    return {row["name"]: row for row in document["rows"] if row["metric"] == metric}


def test_gains_are_over_the_fair_baseline(document):
    score, match = rows(document, "group_score"), rows(document, "group_match")
    for table in (score, match):
        for name in ("ttm", "dn", "vte"):
            assert table[name]["gain"] == pytest.approx(table[name]["value"] - table["raw"]["value"], abs=1e-12)
    # a score that assumes a matching has to beat SimpleMatch, and inside 2x2 groups cannot
    assert score["sinkhorn"]["value"] == match["raw"]["value"]
    assert (score["sinkhorn"]["gain"], score["sinkhorn"]["baseline"]) == (0.0, "group_match")
    assert score["dn"]["baseline"] == "group_score" and match["dn"]["gain"] == 0.0
    assert len(score["ttm"]["by_seed"]) == 2 and len(score["dn"]["by_seed"]) == 1
    for table in (score, match):
        compared = [row for name, row in table.items() if name != "raw"]
        assert [row["p_holm"] for row in compared] == holm([row["p"] for row in compared])


def test_costs_are_in_units_of_scoring_the_task_once(document):
    methods = rows(document, "group_match")
    assert (methods["raw"]["passes"], methods["dn"]["passes"]) == (2.0, 2.0)
    assert methods["dn"]["text_ece"] is not None
    assert methods["vte"]["passes"] == 2.0 + 3, "three views of each image beside the plain one"
    # each iteration scores the task once, and each epoch takes the selected share of it forward and backward
    assert 2.0 < methods["ttm"]["passes"] <= 2.0 + 2 * (3 * 2 * 3 + 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (WORDS, "'analyze methods' needs --methods"),
        ([*WORDS[:1], "oracle", *WORDS[2:], "--methods", "dn"], "other analyses take none"),
        ([*WORDS, "--methods", "unheard"], "unknown method 'unheard'"),
    ],
)
def test_a_wrong_request_is_one_line(words, message, capsys):
    assert main(words) == 2
    said = capsys.readouterr().err
    assert message in said and len(said.strip().splitlines()) == 1
