"""Means of means over values of tags: weights, listed values, least counts, errors, and the published ones of ARO."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

import ttmbench
from ttmbench.cli import main
from ttmbench.data.catalog import find_task
from ttmbench.data.checks import check_groups
from ttmbench.errors import DataError
from ttmbench.plugins.registry import build_registry
from ttmbench.results.clusters import Clusters
from ttmbench.results.numbers import tag_means_of
from ttmbench.results.tag_means import TagMean, tag_means, weights_of
from ttmbench.types import Group, Scores

SHARED = Path(__file__).resolve().parents[3] / "shared"
TEXT_SCORE = [build_registry().metric("text_score")]


def of(tags: list[dict[str, str]], right: list[bool], clusters: Clusters | None = None, **how) -> dict:
    """The text score's mean of means, of groups that are right or wrong."""
    groups = [Group(str(number), (), (), one) for number, one in enumerate(tags)]
    scores = Scores(np.array([[[1.0, 0.0] if one else [0.0, 1.0]] for one in right], np.float32))
    return tag_means(groups, {"none": [scores]}, TEXT_SCORE, {}, {"macro": TagMean(**how)}, clusters)["macro"]


def kinds(text: str) -> list[dict[str, str]]:
    return [{"kind": letter} for letter in text]


def test_every_value_counts_the_same():
    found = of(kinds("aaab"), [True, False, False, True], by=["kind"])
    assert found["numbers"]["text_score,none"] == pytest.approx((1 / 3 + 1) / 2)
    assert (found["by"], found["cells"], found["groups"]) == (["kind"], 2, 4)


def test_only_listed_values_or_frequent_ones_count():
    tags, right = kinds("aaabbc"), [True, True, False, True, False, False]
    assert of(tags, right, by=["kind"], only={"kind": ["a", "c"]})["numbers"]["text_score,none"] == pytest.approx(1 / 3)
    frequent = of(tags, right, by=["kind"], at_least=2)
    assert frequent["cells"] == 2 and frequent["numbers"]["text_score,none"] == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_inner_tags_are_averaged_first():
    """As EqBen does: Kubric's three subsets make one of five."""
    tags = [{"family": f, "subset": s} for f, s in (("ag", "ag"), ("ku", "loc"), ("ku", "cnt"), ("ku", "cnt"))]
    found = of(tags, [True, False, True, False], by=["family", "subset"])
    assert found["numbers"]["text_score,none"] == (1 + (0 + 0.5) / 2) / 2
    members = {("ag", "ag"): [0], ("ku", "loc"): [1], ("ku", "cnt"): [2, 3]}
    assert weights_of(members, 4).tolist() == [0.5, 0.25, 0.125, 0.125]


def test_the_error_is_that_of_strata_and_needs_two_groups_each():
    right = [True, False, True, True, False, True]
    found = of(kinds("aabbbb"), right, by=["kind"])["numbers"]
    errors = [np.std(part, ddof=1) / np.sqrt(len(part)) for part in ([1, 0], [1, 1, 0, 1])]
    assert found["text_score_stderr,none"] == pytest.approx(np.hypot(*errors) / 2)
    assert of(kinds("aab"), [True, False, True], by=["kind"])["numbers"]["text_score_stderr,none"] is None


def test_groups_that_share_images_vary_together():
    right = [True, True, False, False]
    numbers = np.array([0, 0, 1, 1])
    alone = of(kinds("abab"), right, by=["kind"])["numbers"]["text_score_stderr,none"]
    shared = of(kinds("abab"), right, Clusters(numbers, numbers[:, None]), by=["kind"])["numbers"]
    assert shared["text_score_stderr,none"] == pytest.approx(alone * np.sqrt(2))


def test_held_out_groups_make_the_mean_of_their_own_cells():
    groups = [Group(str(number), (), (), one) for number, one in enumerate(kinds("aabc"))]
    right, wrong = [[1.0, 0.0]], [[0.0, 1.0]]
    arrays = {"holdout": [Scores(np.array([right, wrong], np.float32))]}
    found = tag_means(groups, arrays, TEXT_SCORE, {"holdout": [0, 2]}, {"m": TagMean(by=["kind"])})["m"]["numbers"]
    assert found["text_score,holdout"] == 0.5


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ({"by": ["sort"]}, "goes by tag 'sort', which no group has"),
        ({"by": ["kind"], "only": {"kind": ["a", "z"]}}, "names 'z' of tag 'kind', which no group has"),
        ({"by": ["kind"], "cells": 3}, "has 2 cells by kind, expected 3"),
        ({"by": ["kind"], "at_least": 9}, "has 0 cells by kind, expected at least 1"),
    ],
)
def test_data_that_do_not_fit_are_told(how, problem):
    groups = [Group(str(number), (), ("x", "y"), one) for number, one in enumerate(kinds("aab"))]
    assert TagMean(**how).problem(groups) == problem
    spec = find_task(build_registry(), "shapes_replace").spec
    spec = spec.model_copy(
        update={"means": {"m": TagMean(**how)}, "group": spec.group.model_copy(update={"n_groups": 3})}
    )
    with pytest.raises(DataError, match=f"means.m {problem}"):
        check_groups(spec, groups)
    assert TagMean(by=["kind"], only={"kind": ["a"]}, cells=1).problem(groups) is None


def test_unknown_keys_are_told():
    with pytest.raises(ValidationError, match="least"):
        TagMean(by=["a"], least=3)


def test_a_run_states_them(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "include: []\ntask: mine\nversion: 1\nsource: {kind: rendered, scene: spatial}\n"
        "group: {shape: [1, 4], n_groups: 200}\nmetrics: [text_score]\n"
        "means: {relations: {by: [relation], cells: 4}}\n",
        encoding="utf-8",
    )
    run = ttmbench.simple_evaluate("tiny-clip", str(file), device="cpu", bootstrap_iters=0)
    values = run["breakdowns"]["mine"]["relation"].values()
    mean = run["tag_means"]["mine"]["relations"]
    assert mean["numbers"]["text_score,none"] == pytest.approx(np.mean([one["text_score,none"] for one in values]))
    assert (mean["cells"], mean["groups"]) == (4, 200)
    (number,) = tag_means_of(run)
    assert (number.task, number.metric, number.groups, number.chance) == ("mine/relations", "text_score", 200, 0.25)
    limited = ttmbench.simple_evaluate("tiny-clip", str(file), limit=3, device="cpu", bootstrap_iters=0)
    assert limited["tag_means"]["mine"]["relations"]["groups"] == 3, "a part is not checked for its cells"


def test_tables_pages_and_exports_name_them(tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "task: mine\nversion: 1\nsource: {kind: rendered, scene: spatial}\ngroup: {shape: [1, 4], n_groups: 12}\n"
        "metrics: [text_score]\nmeans: {relations: {by: [relation], at_least: 2}}\n",
        encoding="utf-8",
    )
    run = [
        "--model",
        "tiny-clip",
        "--tasks",
        str(file),
        "--device",
        "cpu",
        "--bootstrap_iters",
        "0",
        "--use_cache",
        "off",
    ]
    assert main([*run, "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    document = json.loads(next((tmp_path / "out").rglob("results_*.json")).read_text(encoding="utf-8"))
    mean = document["tag_means"]["mine"]["relations"]
    percent = f"{100 * mean['numbers']['text_score,none']:.2f}"
    line = f"mine/relations, mean over {mean['cells']} of relation ({mean['groups']} groups): text_score {percent}"
    assert line in " ".join(said.split())
    assert main(["report", str(tmp_path / "out"), "-o", str(tmp_path / "page.html")]) == 0
    assert "mine/relations" in (tmp_path / "page.html").read_text(encoding="utf-8")
    result = next((tmp_path / "out").rglob("results_*.json"))
    assert main(["export", str(result), "--to", "lm-eval", "-o", str(tmp_path / "x.json")]) == 0
    assert json.loads((tmp_path / "x.json").read_text())["ttmbench"]["tag_means"]["mine"]["relations"] == mean


def test_stored_results_of_clip_on_aro_give_the_published_means():
    """Right and wrong answers of CLIP ViT-B/32 by relation, through the means of the task file."""
    folder = SHARED / "annotations" / "aro"
    if not folder.is_dir():
        pytest.skip("results of a real model are not at hand")
    with (folder / "VG_Relation_clip_vit_b32_per_relation.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    tags: list[dict[str, str]] = []
    right: list[bool] = []
    for row in rows:
        count = int(row["Count"])
        correct = round(float(row["Accuracy"]) * count)
        tags += [{"relation_name": row["Relation"]}] * count
        right += [True] * correct + [False] * (count - correct)
    spec = find_task(build_registry(), "aro_vg_relation").spec
    assert len(tags) == spec.group.n_groups == 23937 and sum(right) == 12129
    for name, cells, groups, percent in (("macro_48", 48, 21944, "59.18"), ("macro_all", 205, 23937, "63.09")):
        found = of(tags, right, **spec.means[name].model_dump())
        assert (found["cells"], found["groups"]) == (cells, groups)
        assert f"{100 * found['numbers']['text_score,none']:.2f}" == percent
    assert f"{100 * np.mean(right):.2f}" == "50.67"
    groups = [Group(str(number), (), ("x", "y"), one) for number, one in enumerate(tags)]
    assert all(mean.problem(groups) is None for mean in spec.means.values())
