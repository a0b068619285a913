"""Numbers by tag, and means over the subsets of a dataset."""

from __future__ import annotations

import numpy as np
import pytest

import ttmbench
from ttmbench.data.catalog import find_task
from ttmbench.plugins.registry import build_registry
from ttmbench.results.breakdown import aggregates, breakdowns, mean_of_tasks, shared_images_note
from ttmbench.types import Group, Scores

METRICS = [build_registry().metric(name) for name in ("group_match", "image_score", "global_assignment_accuracy")]


def groups(*tags: dict[str, str]) -> list[Group]:
    return [Group(str(number), (), (), tag) for number, tag in enumerate(tags)]


def scores(right: list[bool]) -> Scores:
    return Scores(
        np.array([[[1.0, 0.0], [0.0, 1.0]] if one else [[0.0, 1.0], [1.0, 0.0]] for one in right], np.float32)
    )


def test_a_group_counts_for_each_of_its_values():
    tagged = groups({"kind": "a, b"}, {"kind": "b"}, {"kind": ""}, {"kind": "a"})
    found = breakdowns(tagged, {"none": [scores([True, False, True, True])]}, METRICS, {})["kind"]
    assert {value: row["groups"] for value, row in found.items()} == {"(none)": 1, "a": 2, "b": 2}
    assert {value: row["group_match,none"] for value, row in found.items()} == {"(none)": 1.0, "a": 1.0, "b": 0.5}
    assert "global_assignment_accuracy,none" not in found["a"]


def test_tags_that_tell_nothing_are_left_out():
    tagged = groups(*({"all": "same", "name": str(number), "half": str(number % 2)} for number in range(30)))
    assert list(breakdowns(tagged, {"none": [scores([True] * 30)]}, METRICS, {})) == ["half"]
    assert breakdowns(groups({}, {}), {"none": [scores([True, True])]}, METRICS, {}) == {}


@pytest.mark.parametrize("task", ["aro_vg_attribution", "hard_positives_swap"])
def test_pairs_of_attributes_that_count_are_told_however_many_they_are(task):
    (mean,) = find_task(build_registry(), task).spec.means.values()
    pairs = [f"a{number}_b" for number in range(117) for _ in range(25)] + ["rare_b"] * 24
    tagged = groups(*({mean.by[0]: pair} for pair in pairs))
    assert mean.problem(tagged) is None
    right = [scores([number % 25 < 10 for number in range(len(pairs))])]
    found = breakdowns(tagged, {"none": right}, METRICS, {}, {"m": mean})["attributes"]
    assert len(found) == 117 and "rare_b" not in found
    assert found["a0_b"] == {"groups": 25, "group_match,none": 0.4, "image_score,none": 0.4}


def test_held_out_groups_and_seeds():
    tagged = groups({"k": "x"}, {"k": "y"}, {"k": "x"}, {"k": "z"})
    arrays = {"none": [scores([True] * 4)], "holdout": [scores([True, False]), scores([False, False])]}
    found = breakdowns(tagged, arrays, METRICS, {"holdout": [0, 2]})["k"]
    assert found["x"]["group_match,holdout"] == 0.25 and found["y"]["group_match,holdout"] is None


def test_undefined_metrics_have_no_number():
    single = Scores(np.array([[[1.0, 0.0]], [[1.0, 0.0]]], np.float32))
    found = breakdowns(groups({"k": "x"}, {"k": "y"}), {"none": [single]}, METRICS, {})
    assert set(found["k"]["x"]) == {"groups", "group_match,none"}


def test_a_mean_over_tasks_that_may_share_images_says_so():
    configs = {
        "a": {"images_from": ["coco"], "source": {"images": "val2017"}},
        "b": {"images_from": [], "source": {"images": ["other", "val2017"]}},
        "c": {"images_from": ["coco"], "source": {"path": "owner/data"}},
        "d": {"source": {"path": "owner/more"}},
    }
    (note,) = shared_images_note(configs, ["a", "b", "c", "d"])
    assert "independent tasks, and 3 of 4 may share images" in note and "too small" in note
    assert shared_images_note(configs, ["b", "c"]) == shared_images_note(configs, ["a", "d", "gone"]) == []


def test_means_need_every_task():
    results = {"a": {"m,none": 0.2, "m_stderr,none": 0.3}, "b": {"m,none": 0.4, "m_stderr,none": 0.4, "n,none": 1.0}}
    assert aggregates(results, {"set": ["a", "b", "c"]}) == {}
    (found,) = aggregates(results, {"set": ["a", "b"]}).values()
    assert found == {"m,none": pytest.approx(0.3), "m_stderr,none": pytest.approx(0.25)}
    assert mean_of_tasks([{"m,none": None}, {"m,none": 0.5}]) == {}


def test_a_run_breaks_its_numbers_down():
    run = ttmbench.simple_evaluate("tiny-clip", "shapes_spatial", limit=40, device="cpu", bootstrap_iters=0)
    rows = run["breakdowns"]["shapes_spatial"]["relation"].values()
    assert sum(row["groups"] for row in rows) == 40
    mean = sum(row["groups"] * row["group_score,none"] for row in rows) / 40
    assert mean == pytest.approx(run.results["shapes_spatial"]["group_score,none"])
    assert run["groups"] == {}
