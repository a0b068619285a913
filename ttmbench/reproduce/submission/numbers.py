"""Every number of a submission, computed again from its scores, ranks or answers by the functions that a run uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench._util.arrays import read_arrays
from ttmbench._util.text import read_json_lines
from ttmbench.errors import TtmbenchError
from ttmbench.reproduce.submission.findings import Findings
from ttmbench.reproduce.submission.lines import check_choice_lines, check_rank_lines, check_sample_lines, choices_of
from ttmbench.reproduce.submission.tasks import MOST_RESAMPLES, OfTask
from ttmbench.results.breakdown import breakdowns
from ttmbench.results.labels import CHOICE, HOLDOUT_RAW, RAW, numbers_in, split_key
from ttmbench.results.ranks import summarise_ranks
from ttmbench.results.ranks_file import read_saved
from ttmbench.results.scores_file import StoredScores, read_scores
from ttmbench.results.summary import Summary, summarise
from ttmbench.results.tag_means import tag_means
from ttmbench.scoring.data_identity import groups_digest
from ttmbench.scoring.forced_choice.summary import summarise_choices
from ttmbench.types import Group, MetricSpec


def check_numbers(one: OfTask, findings: Findings) -> StoredScores | None:
    """Computes the numbers of a task again.

    Args:
        one: the task.
        findings: takes what differs, and what cannot be checked.

    Returns:
        The scores of a task that has some.
    """
    if one.config.bootstrap_iters > MOST_RESAMPLES:
        findings.refuse(
            "config.bootstrap_iters", f"is {one.config.bootstrap_iters}, at most {MOST_RESAMPLES} are taken"
        )
        return None
    try:
        if one.spec.kind != "groups":
            _check_ranks(one, findings)
            return None
        if all(name == CHOICE for _, name in numbers_in(one.document["results"][one.spec.task])):
            _check_choices(one, findings)
            return None
        return _check_scores(one, findings)
    except TtmbenchError as error:
        findings.refuse(f"results.{one.spec.task}", str(error))
        return None


def _check_scores(one: OfTask, findings: Findings) -> StoredScores | None:
    task, file, samples = one.spec.task, one.file("scores"), one.file("samples")
    stored = None if file is None else read_scores(file, one.spec.shape)
    if file is not None:
        _check_metadata(one, file, findings)
    if samples is not None:
        lines = read_scores(samples, one.spec.shape)
        if stored is not None:
            _check_alike(stored, lines, samples.name, findings)
        check_sample_lines(one, samples, lines, findings)
        stored = lines if stored is None else stored
    if stored is None:
        findings.leave_open(f"results.{task}", "there is neither a file of scores (--save_scores) nor one of samples")
        return None
    if not _is_whole(one, stored, findings):
        return None
    lacking = _lacking(one, stored)
    for name in lacking:
        what = "all pairs" if name in lacking and one.registry.metric(name).scope == "global" else "pairs of captions"
        findings.leave_open(f"results.{task}.{name}", f"it needs the scores of {what}; --save_scores keeps them")
    metrics = [metric for metric in one.metrics if metric.name not in lacking]
    summary = summarise(stored.scores, metrics, *one.resampling, stored.clusters, stored.subsets)
    _compare(one.document, task, summary, lacking, findings)
    counts = one.document["n-samples"][task]
    if "clusters" in counts:
        among = counts["effective"] if stored.clusters is None else stored.clusters.count
        findings.same(f"n-samples.{task}.clusters", counts["clusters"], among, "its scores have")
    _check_by_tag(one, stored, metrics, findings)
    return stored


def _check_metadata(one: OfTask, file: Path, findings: Findings) -> None:
    """What a file of scores says of itself: it is of this run and of no other."""
    about, task = read_arrays(file).about, one.spec.task
    expected = {
        "task": task,
        "task_version": str(one.document["versions"][task]),
        "model": one.document["model_name"],
        "data_sha256": one.document["datasets"][task]["fingerprint"],
    }
    for key, value in expected.items():
        findings.same(f"{file.name}.{key}", about.get(key), value, "the document says")
    seeds = str(about.get("seeds", "")).replace(" ", "")
    findings.same(f"{file.name}.seeds", seeds, str(one.config.run_seeds).replace(" ", ""), "config.seeds says")


def _check_alike(stored: StoredScores, lines: StoredScores, name: str, findings: Findings) -> None:
    """Samples and scores of one run hold the same scores, bit for bit."""
    if lines.group_ids != stored.group_ids:
        findings.refuse(name, "its groups are not those of the file of scores, in this order")
        return
    if lines.scores.keys() != stored.scores.keys() or lines.subsets != stored.subsets:
        findings.refuse(name, "its filters and held-out groups are not those of the file of scores")
        return
    for filter_, arrays in stored.scores.items():
        if len(arrays) != len(lines.scores[filter_]):
            findings.refuse(
                name, f"has filter {filter_} for {len(lines.scores[filter_])} seeds, the scores {len(arrays)}"
            )
            continue
        for seed, (one, other) in enumerate(zip(arrays, lines.scores[filter_], strict=True)):
            findings.compared += one.groups.size
            differs = (one.groups != other.groups).any(axis=(1, 2))
            if differs.any():
                first = int(np.argmax(differs))
                findings.refuse(
                    name,
                    f"filter {filter_}, seed index {seed}: {int(differs.sum())} groups have other scores than the file "
                    f"of scores, the first is {stored.group_ids[first]}",
                )


def _is_whole(one: OfTask, stored: StoredScores, findings: Findings) -> bool:
    """As many groups, filters and seeds as the document says."""
    task = one.spec.task
    effective = one.document["n-samples"][task]["effective"]
    whole = findings.same(f"n-samples.{task}.effective", effective, len(stored.group_ids), "its scores have")
    found = set(stored.scores)
    stated = {name for _, name in numbers_in(one.document["results"][task])}
    for name in sorted(stated - found):
        findings.refuse(f"results.{task}", f"has numbers with filter {name}, of which there are no scores")
    for name in sorted(found - stated):
        findings.refuse(f"results.{task}", f"has no numbers with filter {name}, of which there are scores")
    for name in sorted(found & stated):
        seeds = 1 if name in (RAW, HOLDOUT_RAW) else len(one.config.run_seeds)
        if len(stored.scores[name]) != seeds:
            findings.refuse(
                f"results.{task}", f"filter {name} has scores of {len(stored.scores[name])} seeds, config.seeds {seeds}"
            )
            whole = False
    return whole and found == stated


def _lacking(one: OfTask, stored: StoredScores) -> set[str]:
    """Metrics that need more than the scores inside groups, where there is no more."""
    raw = stored.scores[RAW][0]
    there = {"group": True, "global": raw.all_pairs is not None, "captions": raw.caption_pairs is not None}
    stated = {name for name, _ in numbers_in(one.document["results"][one.spec.task])}
    return {metric.name for metric in one.metrics if metric.name in stated and not there.get(metric.scope, False)}


def _compare(
    document: Mapping[str, Any], task: str, summary: Summary, lacking: set[str], findings: Findings, by: str = "scores"
) -> None:
    """Holds a summary against the numbers of a document, or of a part of one that has the same keys."""

    def told(numbers: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in numbers.items() if not _is_of(key, lacking)}

    for key, expected in (("results", summary.results), ("ci", summary.ci), ("ties", summary.ties)):
        findings.same(f"{key}.{task}", told(document[key][task]), expected, f"its {by} give")
    findings.same(f"chance.{task}", told(document["chance"][task]), summary.chance, "the task's shape gives")


def _is_of(key: str, metrics: set[str]) -> bool:
    name = split_key(key)[0] if key.count(",") == 1 else key
    return any(name in (one, f"{one}_stderr", f"{one}_seed_std") for one in metrics)


def _check_by_tag(one: OfTask, stored: StoredScores, metrics: Sequence[MetricSpec], findings: Findings) -> None:
    """Numbers by tag and means over tags, from the tags of the data, else of the samples."""
    task, document = one.spec.task, one.document
    by_tag, means = (document.get(key, {}).get(task, {}) for key in ("breakdowns", "tag_means"))
    digest = document["datasets"][task].get("groups_sha256")
    if one.groups is not None:
        groups = list(one.groups)
        if [group.group_id for group in groups] != stored.group_ids:
            findings.refuse(f"results.{task}", "its groups are not those of the task's data, in their order")
            return
    elif stored.tags is not None or one.file("samples") is not None:
        stated = stored.tags or _tags_of_lines(one, stored.group_ids)
        groups = [Group(name, (), (), tags) for name, tags in zip(stored.group_ids, stated, strict=True)]
    elif by_tag or means:
        findings.leave_open(
            f"breakdowns.{task}", "tags are in the samples (--log_samples) or in the data; neither is here"
        )
        return
    else:
        return
    if digest is not None:
        findings.same(
            f"datasets.{task}.groups_sha256", digest, groups_digest(groups), "ids and tags of its groups give"
        )
    expected = breakdowns(groups, stored.scores, metrics, stored.subsets, one.spec.means)
    findings.same(f"breakdowns.{task}", by_tag, expected, "its scores give")
    expected = tag_means(groups, stored.scores, metrics, stored.subsets, one.spec.means, stored.clusters)
    findings.same(f"tag_means.{task}", means, expected, "its scores give")


def _tags_of_lines(one: OfTask, group_ids: Sequence[str]) -> list[dict[str, str]]:
    samples = one.file("samples")
    found = dict[str, dict[str, str]]()
    for _, line in read_json_lines(samples) if samples is not None else ():
        tags = line.get("tags")
        found[str(line.get("group_id"))] = tags if isinstance(tags, dict) else {}
    return [{str(tag): str(value) for tag, value in found.get(group, {}).items()} for group in group_ids]


def _check_choices(one: OfTask, findings: Findings) -> None:
    """Forced choices: the answers are in the samples."""
    task, samples = one.spec.task, one.file("samples")
    record = one.document.get("choice", {}).get(task)
    if record is None:
        findings.refuse(f"choice.{task}", "is missing; it says how forced choices were asked")
        return
    if samples is None:
        findings.leave_open(f"results.{task}", "answers are in the samples (--log_samples), and there are none")
        return
    choices, clusters = choices_of(samples, one.spec.shape, record)
    effective = one.document["n-samples"][task]["effective"]
    if findings.same(f"n-samples.{task}.effective", effective, len(choices), "its samples have"):
        summary = summarise_choices(choices, one.spec.shape, record["orders"], *one.resampling, clusters)
        _compare(one.document, task, summary, set(), findings, by="answers")
        check_choice_lines(samples, choices, findings)


def _check_ranks(one: OfTask, findings: Findings) -> None:
    """Retrieval and classification: recall and accuracy from the ranks."""
    task, file = one.spec.task, one.file("ranks")
    if file is None:
        findings.leave_open(f"results.{task}", "there is no file of ranks (--save_scores)")
        return
    content = read_arrays(file)
    stored = read_saved(file, content)
    if stored is None:
        findings.refuse(file.name, "is no file of ranks")
        return
    expected = {"task": task, "model": one.document["model_name"]}
    expected["data_sha256"] = one.document["datasets"][task]["fingerprint"]
    for key, value in expected.items():
        findings.same(f"{file.name}.{key}", content.about.get(key), value, "the document says")
    record = one.document.get("ranking", {}).get(task, {})
    queries = {scope: len(ranks) for scope, ranks in stored.ranks.items()}
    candidates = {scope: ranks.candidates for scope, ranks in stored.ranks.items()}
    findings.same(f"ranking.{task}.queries", record.get("queries"), queries, "its ranks have")
    findings.same(f"ranking.{task}.candidates", record.get("candidates"), candidates, "its ranks have")
    images = queries.get("class", queries.get("i2t"))
    effective = one.document["n-samples"][task]["effective"]
    findings.same(f"n-samples.{task}.effective", effective, images, "its ranks have")
    summary = summarise_ranks(stored.ranks, one.metrics, *one.resampling, stored.of_query)
    _compare(one.document, task, summary, set(), findings, by="ranks")
    samples = one.file("samples")
    if samples is not None:
        check_rank_lines(samples, stored, one.metrics, findings)
