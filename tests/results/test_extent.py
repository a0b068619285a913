"""How many groups of how many a number is of: limits, samples, tasks of unknown size, stored scores."""

from __future__ import annotations

import numpy as np
import pytest
from support.documents import whole_document

import ttmbench
from ttmbench.cli import main
from ttmbench.results.document import ResultsDocument
from ttmbench.results.numbers import Extent
from ttmbench.results.reader import read_document


def document(scored, total, *, size=None, source="folder", **config):
    """A run of a task whose file states a size or none."""
    made = whole_document({"t": {"group_match,none": 0.5}}, config=config, configs={"t": {"group": {"n_groups": size}}})
    made["n-samples"] = {"t": {"original": total, "effective": scored}}
    made["datasets"]["t"]["source"] = {"kind": source}
    return made


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (document(200, 200, size=200), Extent(200, 200, False)),
        (document(8, 200, size=200, limit=8), Extent(8, 200, True)),
        (document(8, 200, size=200, samples="x.json"), Extent(8, 200, True)),
        (document(200, 200, size=200, limit=500), Extent(200, 200, False)),
        (document(200, 200, size=200, samples="all.json"), Extent(200, 200, False)),
        # The task file states no size: both counts are what was scored.
        (document(30, 30), Extent(30, 30, False)),
        (document(8, 8, limit=8), Extent(8, None, True)),
        (document(30, 30, limit=50), Extent(30, 30, False)),
        (document(8, 8, samples="x.json"), Extent(8, None, True)),
        (document(400, 400, size=400, limit=None, source="stored_scores"), Extent(400, 400, False)),
        (document(8, 8, size="many", limit="8"), Extent(8, 8, False)),
    ],
)
def test_documents_say_how_much_they_are_of(made, expected):
    assert ResultsDocument.model_validate(made).extent("t") == expected


def test_a_mean_of_which_one_part_is_limited_is_limited():
    made = whole_document({"a": {"group_match,none": 0.5}, "b": {"group_match,none": 1.0}})
    made["n-samples"] = {"a": {"original": 9, "effective": 9}, "b": {"original": 200, "effective": 50}}
    made |= {"groups": {"d": {"group_match,none": 0.75}}, "group_subtasks": {"d": ["a", "b"]}}
    made = ResultsDocument.model_validate(made)
    (mean,) = made.means
    assert (mean.limited, mean.extent.words) == (True, "59 of 209")
    assert [one.limited for one in made.numbers] == [False, True]


def test_runs_and_stored_scores_are_marked(tmp_path):
    run = ttmbench.simple_evaluate("tiny-clip", "shapes_color", limit=4, bootstrap_iters=0, device="cpu")
    frame = run.to_frame()
    assert frame["limited"].all() and set(frame["groups_of_task"]) == {200}
    scores = np.random.default_rng(0).normal(size=(200, 2, 2)).astype(np.float32)
    for limit, expected in ((7, Extent(7, 200, True)), (200, Extent(200, 200, False)), (300, Extent(200, 200, False))):
        document = ttmbench.score(scores[:limit], "shapes_color", limit=limit).document
        assert ResultsDocument.model_validate(document).extent("shapes_color") == expected
    np.savez(tmp_path / "s.npz", scores=scores[:5])
    out = tmp_path / "score.json"
    assert main(["score", str(tmp_path / "s.npz"), "--task", "shapes_color", "--limit", "5", "-o", str(out)]) == 0
    assert read_document(out).extent("shapes_color") == Extent(5, 200, True)
