"""Numbers by tag; means over values of tags (weights, errors, the published ones of ARO) and over tasks."""

from __future__ import annotations

import csv
import json
from fractions import Fraction
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from support.documents import schema

import ttmbench
from ttmbench.cli import main
from ttmbench.data.loader import check_groups
from ttmbench.data.task_file import find_task
from ttmbench.errors import AssertionNotMet, DataError
from ttmbench.plugins.registry import build_registry
from ttmbench.report.terminal import print_results
from ttmbench.results.comparison import compare_runs, read_run
from ttmbench.results.document import ResultsDocument
from ttmbench.results.summary import (
    Clusters,
    MethodScores,
    TagMean,
    aggregates,
    breakdowns,
    group_rows,
    mean_of_tasks,
    shared_images_note,
    summarise,
    tag_means,
    weights_of,
)
from ttmbench.types import Group, Scores

SHARED = Path(__file__).resolve().parents[3] / "shared"
TEXT_SCORE = [build_registry().metrics["text_score"]]
METRICS = [build_registry().metrics[name] for name in ("group_match", "image_score", "global_assignment_accuracy")]


def tagged(*tags: dict[str, str]) -> list[Group]:
    return [Group(str(number), (), ("x", "y"), tag) for number, tag in enumerate(tags)]


def square(right: list[bool]) -> Scores:
    """Scores of 2x2 groups that are right or wrong."""
    blocks = np.array([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]], np.float32)
    return Scores(blocks[np.array(right, int)])


def of(tags: list[dict[str, str]], right: list[bool], clusters: Clusters | None = None, **how) -> dict:
    """The text score's mean of means, of groups that are right or wrong."""
    scores = Scores(np.array([[[1.0, 0.0] if one else [0.0, 1.0]] for one in right], np.float32))
    return means_of(tagged(*tags), {"none": [scores]}, {"macro": TagMean(**how)}, clusters)["macro"]


def means_of(groups, scores, means, clusters=None):
    return tag_means(groups, group_rows(scores, TEXT_SCORE), means, clusters)


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
    found = of(kinds("aabbbb"), [True, False, True, True, False, True], by=["kind"])["numbers"]
    errors = [np.std(part, ddof=1) / np.sqrt(len(part)) for part in ([1, 0], [1, 1, 0, 1])]
    assert found["text_score_stderr,none"] == pytest.approx(np.hypot(*errors) / 2)
    assert of(kinds("aab"), [True, False, True], by=["kind"])["numbers"]["text_score_stderr,none"] is None


def test_groups_that_share_images_vary_together():
    right = [True, True, False, False]
    numbers = np.array([0, 0, 1, 1])
    alone = of(kinds("abab"), right, by=["kind"])["numbers"]["text_score_stderr,none"]
    shared = of(kinds("abab"), right, Clusters(numbers, numbers[:, None]), by=["kind"])["numbers"]
    assert shared["text_score_stderr,none"] == pytest.approx(alone * np.sqrt(2))


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
    groups = tagged(*kinds("aab"))
    assert TagMean(**how).problem(groups) == problem
    spec = find_task(build_registry(), "shapes_replace").spec
    spec = spec.model_copy(
        update={"means": {"m": TagMean(**how)}, "group": spec.group.model_copy(update={"n_groups": 3})}
    )
    with pytest.raises(DataError, match=f"means.m {problem}"):
        check_groups(spec, groups)
    assert TagMean(by=["kind"], only={"kind": ["a"]}, cells=1).problem(groups) is None


def test_groups_without_the_tags_have_no_mean_over_them():
    """As those of stored features, which are numbers only."""
    scores = {"none": [Scores(np.zeros((2, 1, 2), np.float32))]}
    assert means_of(tagged({}, {}), scores, {"macro": TagMean(by=["kind"])}) == {}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two runs of a task with a mean over four kinds, with the samples of single groups."""
    place = tmp_path_factory.mktemp("means")
    (place / "mine.yaml").write_text(
        "task: mine\nversion: 1\nsource: {kind: rendered, scene: spatial}\ngroup: {shape: [1, 4], n_groups: 40}\n"
        "metrics: [text_score, group_match]\nmeans: {relations: {by: [relation], at_least: 2}}\n",
        encoding="utf-8",
    )
    words = ["--tasks", str(place / "mine.yaml"), "--device", "cpu", "--bootstrap_iters", "50", "--log_samples"]
    words += ["--use_cache", "off"]
    trained = ["--ttm", "--ttm_args", "iterations=1,epochs=1", "--seeds", "0,1"]
    assert main([*words, *trained, "--model", "tiny-clip", "-o", str(place / "one.json")]) == 0
    asserted = ["--assert", "mine/relations.text_score,none>=0", "--baseline", str(place / "one.json")]
    assert main([*words, *asserted, "--model", "tiny-clip-seed1", "-o", str(place / "two.json")]) == 0
    return place


def document_of(place, name="one.json"):
    return json.loads((place / name).read_text(encoding="utf-8"))


def test_a_run_states_error_spread_and_interval(place):
    document = document_of(place)
    jsonschema.Draft202012Validator(schema("results")).validate(document)
    mean = document["tag_means"]["mine"]["relations"]
    rows = [row for row in document["breakdowns"]["mine"]["relation"].values() if row["groups"] >= 2]
    assert mean["numbers"]["text_score,none"] == pytest.approx(np.mean([row["text_score,none"] for row in rows]))
    assert (mean["cells"], mean["groups"]) == (len(rows), sum(row["groups"] for row in rows))
    for key, (low, high) in mean["ci"].items():
        assert 0 <= low <= mean["numbers"][key] <= high <= 1 and low < high
    assert set(mean["ci"]) == {
        f"{metric},{name}" for metric in ("text_score", "group_match") for name in ("none", "ttm")
    }
    assert mean["numbers"]["text_score_seed_std,ttm"] is not None and "text_score_seed_std,none" not in mean["numbers"]
    numbers = {(one.task, one.key): one for one in ResultsDocument.model_validate(document).numbers}
    one = numbers["mine/relations", "group_match,ttm"]
    assert (one.column, one.track, one.n_seeds, one.parts) == ("TTM", "test_time", 2, mean["cells"])
    raw = numbers["mine/relations", "text_score,none"]
    assert (raw.own_task, raw.track, raw.groups, raw.chance) == ("mine", "zero_shot", mean["groups"], 0.25)
    assert one.interval == tuple(mean["ci"]["group_match,ttm"]) and one.seed_std is not None
    (run,) = ttmbench.read_results(place / "one.json")
    frame = run.to_frame().set_index(["task", "metric", "method"])
    assert frame.loc[("mine/relations", "group_match", "ttm"), "value"] == one.value
    assert frame.loc[("mine/relations", "group_match", "ttm"), "cells"] == mean["cells"]


def test_the_cells_of_a_part_are_not_checked(place):
    text = (place / "mine.yaml").read_text(encoding="utf-8")
    four = place / "four" / "mine.yaml"
    four.parent.mkdir()
    four.write_text(text.replace("at_least: 2", "cells: 4"), encoding="utf-8")
    run = ttmbench.simple_evaluate("tiny-clip", str(four), limit=3, device="cpu", bootstrap_iters=0)
    assert run["tag_means"]["mine"]["relations"]["groups"] == 3
    assert all(one.interval is None for one in ResultsDocument.model_validate(run.document).numbers)


def test_tables_pages_and_exports_name_them(place, tmp_path, capsys):
    document, result = document_of(place), str(place / "one.json")
    mean = document["tag_means"]["mine"]["relations"]
    print_results(document)
    said = " ".join(capsys.readouterr().out.split())
    assert f"mine/relations: mean over {mean['cells']} of relation ({mean['groups']} groups)" in said
    ends = " .. ".join(f"{100 * end:.1f}" for end in mean["ci"]["text_score,none"])
    assert (
        f"mine/relations: 40 groups text_score raw {100 * mean['numbers']['text_score,none']:.2f}" in said
        and ends in said
    )
    assert main(["report", result, "-o", str(tmp_path / "page.html"), "--images", "none"]) == 0
    assert "mine/relations" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert main(["leaderboard", str(place), "-o", str(tmp_path / "board")]) == 0
    board = json.loads((tmp_path / "board" / "leaderboard.json").read_text())
    assert {row["task"] for row in board["rows"]} == {"mine", "mine/relations"} and not board["conflicts"]
    assert main(["export", result, "--to", "numbers", "-o", str(tmp_path / "x.csv")]) == 0
    lines = csv.DictReader((tmp_path / "x.csv").read_text().splitlines())
    rows = {(row["task"], row["metric"], row["method"]): row for row in lines}
    row = rows["mine/relations", "group_match", "ttm"]
    assert float(row["ci_low"]) == mean["ci"]["group_match,ttm"][0] and int(row["cells"]) == mean["cells"]
    assert main(["export", result, "--to", "latex"]) == 0
    assert "mine/relations (n = 40)" in capsys.readouterr().out


def test_runs_are_compared_by_them_group_by_group(place, tmp_path):
    words = ["compare", str(place / "one.json"), str(place / "two.json"), "--bootstrap_iters", "200"]
    assert main([*words, "-o", str(tmp_path / "x.json")]) == 0
    rows = json.loads((tmp_path / "x.json").read_text())["comparisons"][0]["rows"]
    mean = {row["metric"]: row for row in rows if row["task"] == "mine/relations"}["text_score"]
    plain = {row["metric"]: row for row in rows if row["task"] == "mine"}["text_score"]
    for side, name in (("baseline", "one.json"), ("other", "two.json")):
        assert mean[side] == pytest.approx(
            document_of(place, name)["tag_means"]["mine"]["relations"]["numbers"]["text_score,none"]
        )
    assert mean["difference"] == pytest.approx(mean["other"] - mean["baseline"])
    assert mean["ci"][0] <= mean["difference"] <= mean["ci"][1] and 0 < mean["p"] <= 1
    assert (mean["won"], mean["lost"], mean["groups"]) == (plain["won"], plain["lost"], 40)
    assert plain["p_holm"] == plain["p"], "the mean is not a further task of the same family"
    baseline = {(row["task"], row["metric"]): row for row in document_of(place, "two.json")["baseline"]["rows"]}
    row = baseline["mine/relations", "text_score"]
    assert row["paired"] and row["difference"] == pytest.approx(mean["difference"])
    one, other = (read_run(place / name) for name in ("one.json", "two.json"))
    (again,) = [
        row for row in compare_runs(one, other) if (row["task"], row["metric"]) == ("mine/relations", "text_score")
    ]
    assert again["baseline"] == mean["baseline"]


def test_assertions_reach_them(place, capsys):
    document = document_of(place)
    document = ResultsDocument.model_validate(document)
    document.check(["mine/relations.text_score,ttm>=0"])
    with pytest.raises(AssertionNotMet, match=r"mine/relations\.text_score,none>1: it is 0"):
        document.check(["mine/relations.text_score,none>1"])
    words = ["--model", "tiny-clip", "--tasks", str(place / "mine.yaml")]
    assert main([*words, "--assert", "mine/relation.text_score,none>0"]) == 2
    assert "did you mean 'mine/relations'?" in capsys.readouterr().err


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
    groups = tagged(*tags)
    assert all(mean.problem(groups) is None for mean in spec.means.values())


def test_a_group_counts_for_each_of_its_values():
    groups = tagged({"kind": "a, b"}, {"kind": "b"}, {"kind": ""}, {"kind": "a"})
    found = breakdowns(groups, {"none": [square([True, False, True, True])]}, METRICS)["kind"]
    assert {value: row["groups"] for value, row in found.items()} == {"(none)": 1, "a": 2, "b": 2}
    assert {value: row["group_match,none"] for value, row in found.items()} == {"(none)": 1.0, "a": 1.0, "b": 0.5}
    assert "global_assignment_accuracy,none" not in found["a"]


def test_means_over_seeds_are_exact_for_counts():
    """28 of 40 groups are 0.7, also on average over seeds: no assertion fails by a float's last digit."""
    rng = np.random.default_rng(0)
    for groups in (40, 300, 7):
        right = [rng.permutation(groups) < count for count in rng.integers(0, groups, 3)]
        exact, tags = float(Fraction(int(np.sum(right)), 3 * groups)), [{"kind": "ab"[n % 2]} for n in range(groups)]
        columns = [MethodScores("none", [square(right[0])]), MethodScores("ttm", [square(one) for one in right])]
        found = {(one.metric, one.method): one.value for one in summarise(columns, METRICS, (0, 0, "wilson"))}
        assert found["group_match", "ttm"] == exact
        by_tag = breakdowns(tagged(*tags), {"ttm": columns[1].scores}, METRICS)["kind"]["a"]["group_match,ttm"]
        assert by_tag == float(Fraction(int(np.sum([one[::2] for one in right])), 3 * len(right[0][::2])))


def test_tags_that_tell_nothing_are_left_out():
    groups = tagged(*({"all": "same", "name": str(number), "half": str(number % 2)} for number in range(30)))
    assert list(breakdowns(groups, {"none": [square([True] * 30)]}, METRICS)) == ["half"]
    assert breakdowns(tagged({}, {}), {"none": [square([True, True])]}, METRICS) == {}


@pytest.mark.parametrize("task", ["aro_vg_attribution", "hard_positives_swap"])
def test_pairs_of_attributes_that_count_are_told_however_many_they_are(task):
    (mean,) = find_task(build_registry(), task).spec.means.values()
    pairs = [f"a{number}_b" for number in range(117) for _ in range(25)] + ["rare_b"] * 24
    groups = tagged(*({mean.by[0]: pair} for pair in pairs))
    assert mean.problem(groups) is None
    right = [square([number % 25 < 10 for number in range(len(pairs))])]
    found = breakdowns(groups, {"none": right}, METRICS, {"m": mean})["attributes"]
    assert len(found) == 117 and "rare_b" not in found
    assert found["a0_b"] == {"groups": 25, "group_match,none": 0.4, "image_score,none": 0.4}


def test_undefined_metrics_have_no_number():
    single = Scores(np.array([[[1.0, 0.0]], [[1.0, 0.0]]], np.float32))
    found = breakdowns(tagged({"k": "x"}, {"k": "y"}), {"none": [single]}, METRICS)
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
