"""Scores, ranks and answers from files: comparable by task, version, shape and group ids; ranked and compared."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest

import ttmbench
from ttmbench.cli import main
from ttmbench.errors import UsageError
from ttmbench.report.board import answer_of, merge
from ttmbench.report.load import gather
from ttmbench.results.numbers import STORED_NOTE

TASK = "shapes_color"
GROUPS = 200


def write_scores(path, seed, groups=GROUPS, ids=None):
    """A file of random scores; with ids as samples lines, else as an array."""
    scores = np.random.default_rng(seed).normal(size=(groups, 2, 2)).astype(np.float32)
    if ids is None:
        np.savez(path, scores=scores)
        return path
    lines = [json.dumps({"group_id": name, "scores": one.tolist()}) for name, one in zip(ids, scores, strict=True)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def scored(folder, path, *words):
    assert main(["score", str(path), "--task", TASK, "-o", str(folder), "--bootstrap_iters", "0", *words]) == 0


@pytest.fixture
def two(tmp_path):
    """Documents of two files of scores, a folder a model."""
    for seed, name in enumerate(("one", "two")):
        scored(tmp_path / "results", write_scores(tmp_path / f"{name}.npz", seed))
    return tmp_path / "results"


def document_of(folder, name):
    (path,) = (folder / name).glob("*.json")
    return path, json.loads(path.read_text())


def test_two_models_scored_from_files_are_ranked_together(two, tmp_path_factory, capsys):
    board = merge(two)
    assert not board.conflicts and {row.origin.from_file for row in board.rows} == {True}
    assert len({row.origin.data for row in board.rows}) == 1
    site = tmp_path_factory.mktemp("site") / "out"
    assert main(["leaderboard", str(two), "--site", str(site)]) == 0
    assert "not the same data" not in capsys.readouterr().out
    page = (site / "tasks" / f"{TASK}.html").read_text().partition('<h2 id="zero_shot"')[2].partition("</table>")[0]
    assert page.count('class="rank" data-value="1"') == 2, "a few groups do not distinguish them"
    assert page.count("scored from a file") == 2


def test_the_row_is_marked_and_the_document_says_it(two, capsys):
    assert main(["leaderboard", str(two)]) == 0
    assert re.search("^one +raw .*scored from a file$", capsys.readouterr().out, re.M)
    _, document = document_of(two, "one")
    assert STORED_NOTE in document["notes"][TASK]
    assert main(["report", str(two), "--images", "none", "-o", str(two / "page.html")]) == 0
    assert STORED_NOTE in (two / "page.html").read_text()
    assert [row.model for row in answer_of(gather(two)[0])] == ["one (scored from a file)", "two (scored from a file)"]
    assert main(["export", str(document_of(two, "one")[0]), "--to", "numbers", "-o", str(two / "x.csv")]) == 0
    assert set(pd.read_csv(two / "x.csv")["from_file"]) == {True}
    source = document["datasets"][TASK]["source"]
    assert source["sha256"] != document["task_hashes"][TASK] and len(source["sha256"]) == 64


def test_compare_takes_two_documents_of_score(two, capsys):
    first, second = document_of(two, "one")[0], document_of(two, "two")[0]
    assert main(["compare", str(first), str(second), "-o", str(two / "c.json")]) == 0
    rows = json.loads((two / "c.json").read_text())["comparisons"][0]["rows"]
    found = {row["metric"]: (row["baseline"], row["other"], row["groups"]) for row in rows}
    for metric in ("group_score", "group_match", "text_score"):
        expected = [document_of(two, name)[1]["results"][TASK][f"{metric},none"] for name in ("one", "two")]
        assert found[metric] == pytest.approx((*expected, GROUPS))
    results = [ttmbench.score(two.parent / f"{name}.npz", TASK, bootstrap_iters=0) for name in ("one", "two")]
    assert ttmbench.compare(*results, bootstrap_iters=10)


@pytest.mark.parametrize(
    ("ids", "same"),
    [
        ([str(99 + number) for number in range(GROUPS)], True),
        ([str(99 + number) for number in reversed(range(GROUPS))], True),
        ([str(100 + number) for number in range(GROUPS)], False),
    ],
)
def test_group_ids_decide_whatever_their_order(tmp_path, ids, same):
    scored(tmp_path / "r", write_scores(tmp_path / "one.jsonl", 0, ids=[str(99 + number) for number in range(GROUPS)]))
    scored(tmp_path / "r", write_scores(tmp_path / "two.jsonl", 1, ids=ids))
    assert bool(merge(tmp_path / "r").conflicts) is not same


def test_another_version_is_not_the_same_data(folder_task, tmp_path):
    folder = folder_task("mine")
    file, path = write_scores(tmp_path / "scores.npz", 0, groups=6), folder / "mine.yaml"
    digests = []
    for version in (1, 2):
        path.write_text(path.read_text().replace("version: 1", f"version: {version}"))
        document = ttmbench.score(file, "mine", include_path=[str(folder)], bootstrap_iters=0)
        digests.append(document["task_hashes"]["mine"])
    assert digests[0] != digests[1]


def test_beside_a_run_the_page_says_that_the_data_are_unknown(two, tmp_path_factory, capsys):
    settings = {"device": "cpu", "bootstrap_iters": 0, "log_samples": True}
    ttmbench.simple_evaluate("tiny-clip", TASK, output_path=str(two / "run.json"), **settings)
    board = merge(two)
    assert not board.conflicts, "the mark says it"
    site = tmp_path_factory.mktemp("site") / "out"
    assert main(["leaderboard", str(two), "--site", str(site)]) == 0
    page = (site / "tasks" / f"{TASK}.html").read_text().partition('<h2 id="zero_shot"')[2].partition("</table>")[0]
    assert page.count('class="rank" data-value="1"') == 1 and 'class="rank" data-value="2"' not in page
    assert 'data-standing="run"' in page and page.count('data-standing="scored from a file"') == 2
    capsys.readouterr()
    assert main(["compare", str(two / "run.json"), str(document_of(two, "one")[0])]) != 0
    assert "one of them was scored from a file" in capsys.readouterr().err


def test_ranks_of_two_files_are_compared(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        for side, count in (("i2t", 1000), ("t2i", 5000)):
            np.save(tmp_path / f"{name}_{side}.npy", rng.integers(0, 20, count))
        files = [str(tmp_path / f"{name}_{side}.npy") for side in ("i2t", "t2i")]
        words = ["--task", "flickr30k_retrieval", "-o", str(tmp_path / f"{name}.json"), "--bootstrap_iters", "0"]
        assert main(["score", *files, *words]) == 0
    documents = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two")]
    command = ["compare", *(str(tmp_path / f"{name}.json") for name in ("one", "two"))]
    assert main([*command, "-o", str(tmp_path / "c.json"), "--bootstrap_iters", "10"]) == 0
    rows = json.loads((tmp_path / "c.json").read_text())["comparisons"][0]["rows"]
    for row in rows:
        expected = [one["results"]["flickr30k_retrieval"][f"{row['metric']},none"] for one in documents]
        assert [row["baseline"], row["other"]] == pytest.approx(expected)
        assert row["clusters"] == 1000
    assert {row["metric"] for row in rows} >= {"i2t_recall_at_1", "t2i_recall_at_10"}


def test_a_file_without_its_task_cannot_be_paired_with_another_shape(tmp_path):
    one, two = (np.zeros((3, 2, 2)), np.zeros((3, 1, 2)))
    with pytest.raises(UsageError, match="data fingerprint"):
        ttmbench.compare(ttmbench.score(one, bootstrap_iters=0), ttmbench.score(two, bootstrap_iters=0))
