"""Every number of a submission, computed again from its scores, ranks or answers by the functions that a run uses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench._util.arrays import read_arrays
from ttmbench._util.text import read_json_lines
from ttmbench.data.catalog import find_task
from ttmbench.errors import TtmbenchError
from ttmbench.evaluator.run_key import groups_digest
from ttmbench.reproduce.submission.lines import check_choice_lines, check_rank_lines, check_sample_lines, choices_of
from ttmbench.reproduce.submission.task import MOST_RESAMPLES, SubmittedTask, metrics_of
from ttmbench.results.breakdown import breakdowns
from ttmbench.results.labels import HOLDOUT_RAW, RAW, TTM, base_metric, numbers_in
from ttmbench.results.ranks import summarise_ranks
from ttmbench.results.ranks_file import read_saved
from ttmbench.results.score_lines import StoredScores
from ttmbench.results.scores_file import read_scores
from ttmbench.results.summary import Summary, summarise
from ttmbench.results.tag_means import tag_means
from ttmbench.scoring.forced_choice.arrays import summarise_choices
from ttmbench.types import Group, MetricSpec


def check_numbers(task: SubmittedTask) -> StoredScores | None:
    """Computes the numbers of a task again, and returns the scores of one that has some."""
    asked = task.config.bootstrap_iters
    if asked > MOST_RESAMPLES:
        task.findings.refuse("config.bootstrap_iters", f"is {asked}, at most {MOST_RESAMPLES} are taken")
        return None
    try:
        if task.spec.kind != "groups":
            _check_ranks(task)
            return None
        if task.is_choice:
            _check_choices(task)
            return None
        return _check_scores(task)
    except TtmbenchError as error:
        task.findings.refuse(f"results.{task.name}", str(error))
        return None


def check_transfer(task: SubmittedTask) -> None:
    """Checks what a document says of adapted models on other tasks (``ttm_also``); these numbers rank nowhere."""
    findings = task.findings
    for other, record in task.document.ttm_also.get(task.name, {}).items():
        place = f"ttm_also.{task.name}.{other}"
        if other not in task.registry.task_files:
            findings.refuse(place, "is a task that this package does not have")
            continue
        spec = find_task(task.registry, other).spec
        findings.same(f"{place}.version", record.version, spec.version, "this package has")
        findings.same(f"{place}.seeds", record.seeds, task.config.run_seeds, "config.seeds says")
        file = task.file("also_scores", other)
        if spec.kind != "groups" or file is None:
            findings.leave_open(place, "there is no file of its scores (--save_scores)")
            continue
        try:
            scores = read_scores(file, spec.shape)
            metrics = metrics_of(task.registry, spec)
            summary = summarise(scores.scores, metrics, *task.resampling, scores.clusters, scores.subsets)
        except TtmbenchError as error:
            findings.refuse(place, str(error))
            continue
        if not {RAW, TTM} <= set(scores.scores):
            findings.refuse(place, f"its file of scores lacks filter {RAW} or {TTM}")
            continue
        for key in ("results", "ci", "chance", "ties"):
            findings.same(f"{place}.{key}", getattr(record, key), getattr(summary, key), "its scores give")


def _check_scores(task: SubmittedTask) -> StoredScores | None:
    findings, file, samples = task.findings, task.file("scores"), task.file("samples")
    stored = None if file is None else read_scores(file, task.spec.shape)
    if file is not None:
        about = read_arrays(file).about
        _check_metadata(task, file, about, {"task_version": str(task.document.versions[task.name])})
        seeds = str(about.get("seeds", "")).replace(" ", "")
        run_seeds = str(task.config.run_seeds).replace(" ", "")
        findings.same(f"{file.name}.seeds", seeds, run_seeds, "config.seeds says")
    if samples is not None:
        lines = read_scores(samples, task.spec.shape)
        if stored is not None:
            _check_alike(task, stored, lines, samples.name)
        check_sample_lines(task, samples, lines)
        stored = lines if stored is None else stored
    if stored is None:
        words = "there is neither a file of scores (--save_scores) nor one of samples"
        findings.leave_open(f"results.{task.name}", words)
        return None
    if not _is_whole(task, stored):
        return None
    lacking = _lacking(task, stored)
    for metric, what in lacking.items():
        words = f"it needs the scores of {what}; --save_scores keeps them"
        findings.leave_open(f"results.{task.name}.{metric}", words)
    metrics = [metric for metric in task.metrics if metric.name not in lacking]
    summary = summarise(stored.scores, metrics, *task.resampling, stored.clusters, stored.subsets)
    _compare(task, summary, "scores", lacking)
    if task.counts.clusters is not None:
        among = task.counts.effective if stored.clusters is None else stored.clusters.count
        findings.same(f"n-samples.{task.name}.clusters", task.counts.clusters, among, "its scores have")
    _check_by_tag(task, stored, metrics)
    return stored


def _check_metadata(task: SubmittedTask, file: Path, about: Mapping[str, Any], more: Mapping[str, str]) -> None:
    """What a file of scores or ranks says of itself: it is of this run and of no other."""
    data = task.document.datasets[task.name].fingerprint
    expected = {"task": task.name, **more, "model": task.document.model_name, "data_sha256": data}
    for key, value in expected.items():
        task.findings.same(f"{file.name}.{key}", about.get(key), value, "the document says")


def _check_alike(task: SubmittedTask, stored: StoredScores, lines: StoredScores, name: str) -> None:
    """Samples and scores of one run hold the same scores, bit for bit."""
    findings = task.findings
    if lines.group_ids != stored.group_ids:
        findings.refuse(name, "its groups are not those of the file of scores, in this order")
        return
    if lines.scores.keys() != stored.scores.keys() or lines.subsets != stored.subsets:
        findings.refuse(name, "its filters and held-out groups are not those of the file of scores")
        return
    for filter_, arrays in stored.scores.items():
        others = lines.scores[filter_]
        if len(arrays) != len(others):
            findings.refuse(name, f"has filter {filter_} for {len(others)} seeds, the scores {len(arrays)}")
            continue
        for seed, (scores, other) in enumerate(zip(arrays, others, strict=True)):
            findings.compared += scores.groups.size
            differs = (scores.groups != other.groups).any(axis=(1, 2))
            if differs.any():
                first = stored.group_ids[int(np.argmax(differs))]
                findings.refuse(
                    name,
                    f"filter {filter_}, seed index {seed}: {int(differs.sum())} groups have other scores than the file "
                    f"of scores, the first is {first}",
                )


def _is_whole(task: SubmittedTask, stored: StoredScores) -> bool:
    """As many groups, filters and seeds as the document says."""
    findings, place = task.findings, f"results.{task.name}"
    effective = f"n-samples.{task.name}.effective"
    whole = findings.same(effective, task.counts.effective, len(stored.group_ids), "its scores have")
    given, stated = set(stored.scores), set(task.filters)
    for name in sorted(stated - given):
        findings.refuse(place, f"has numbers with filter {name}, of which there are no scores")
    for name in sorted(given - stated):
        findings.refuse(place, f"has no numbers with filter {name}, of which there are scores")
    for name in sorted(given & stated):
        count, seeds = len(stored.scores[name]), 1 if name in (RAW, HOLDOUT_RAW) else len(task.config.run_seeds)
        if count != seeds:
            findings.refuse(place, f"filter {name} has scores of {count} seeds, config.seeds {seeds}")
            whole = False
    return whole and given == stated


def _lacking(task: SubmittedTask, stored: StoredScores) -> dict[str, str]:
    """Metrics that need more than the scores inside groups, where there is no more -> what they need."""
    raw = stored.scores[RAW][0]
    needs = {"global": "all pairs"} if raw.all_pairs is None else {}
    needs |= {"captions": "pairs of captions"} if raw.caption_pairs is None else {}
    stated = {name for name, _ in numbers_in(task.results)}
    wanted = [metric for metric in task.metrics if metric.name in stated]
    return {metric.name: needs[metric.scope] for metric in wanted if metric.scope in needs}


def _compare(task: SubmittedTask, summary: Summary, by: str, lacking: Collection[str] = ()) -> None:
    """Compares the numbers of a document with a summary, those left out that need what the files lack."""
    for key in ("results", "ci", "ties", "chance"):
        numbers: Mapping[str, Any] = getattr(task.document, key)[task.name]
        stated = {name: value for name, value in numbers.items() if base_metric(name.partition(",")[0]) not in lacking}
        source = "the task's shape gives" if key == "chance" else f"its {by} give"
        task.findings.same(f"{key}.{task.name}", stated, getattr(summary, key), source)


def _check_by_tag(task: SubmittedTask, stored: StoredScores, metrics: Sequence[MetricSpec]) -> None:
    """Numbers by tag and means over tags, from the tags of the data, else of the samples."""
    name, document, findings = task.name, task.document, task.findings
    by_tag, means = document.breakdowns.get(name, {}), document.tag_means.get(name, {})
    if task.groups is not None:
        groups = list(task.groups)
        if [group.group_id for group in groups] != stored.group_ids:
            findings.refuse(f"results.{name}", "its groups are not those of the task's data, in their order")
            return
    elif stored.tags is not None or task.file("samples") is not None:
        stated = stored.tags or _tags_of_lines(task, stored.group_ids)
        groups = [Group(group, (), (), tags) for group, tags in zip(stored.group_ids, stated, strict=True)]
    else:
        if by_tag or means:
            words = "tags are in the samples (--log_samples) or in the data; neither is here"
            findings.leave_open(f"breakdowns.{name}", words)
        return
    digest, by = document.datasets[name].groups_sha256, "ids and tags of its groups give"
    if digest is not None:
        findings.same(f"datasets.{name}.groups_sha256", digest, groups_digest(groups), by)
    rows = {tag: {value: row.model_dump() for value, row in values.items()} for tag, values in by_tag.items()}
    expected = breakdowns(groups, stored.scores, metrics, stored.subsets, task.spec.means)
    findings.same(f"breakdowns.{name}", rows, expected, "its scores give")
    records = {mean: record.model_dump(exclude_unset=True) for mean, record in means.items()}
    of_tags = tag_means(
        groups, stored.scores, metrics, stored.subsets, task.spec.means, stored.clusters, task.resampling
    )
    findings.same(f"tag_means.{name}", records, of_tags, "its scores give")


def _tags_of_lines(task: SubmittedTask, group_ids: Sequence[str]) -> list[dict[str, str]]:
    samples, known = task.file("samples"), dict[str, dict[str, str]]()
    for _, line in read_json_lines(samples) if samples is not None else ():
        tags = line.get("tags")
        known[str(line.get("group_id"))] = tags if isinstance(tags, dict) else {}
    return [{str(tag): str(value) for tag, value in known.get(group, {}).items()} for group in group_ids]


def _check_choices(task: SubmittedTask) -> None:
    """Forced choices: the answers are in the samples."""
    samples, record = task.file("samples"), task.document.choice.get(task.name)
    if record is None:
        task.findings.refuse(f"choice.{task.name}", "is missing; it says how forced choices were asked")
        return
    if samples is None:
        words = "answers are in the samples (--log_samples), and there are none"
        task.findings.leave_open(f"results.{task.name}", words)
        return
    choices, clusters = choices_of(samples, task.spec.shape, record)
    place = f"n-samples.{task.name}.effective"
    if task.findings.same(place, task.counts.effective, len(choices), "its samples have"):
        summary = summarise_choices(choices, task.spec.shape, record.orders, *task.resampling, clusters)
        _compare(task, summary, "answers")
        check_choice_lines(samples, choices, task.findings)


def _check_ranks(task: SubmittedTask) -> None:
    """Retrieval and classification: recall and accuracy from the ranks."""
    name, findings, file, samples = task.name, task.findings, task.file("ranks"), task.file("samples")
    if file is None:
        findings.leave_open(f"results.{name}", "there is no file of ranks (--save_scores)")
        return
    content = read_arrays(file)
    stored = read_saved(file, content)
    if stored is None:
        findings.refuse(file.name, "is no file of ranks")
        return
    _check_metadata(task, file, content.about, {})
    record = task.document.ranking.get(name)
    queries = {scope: len(ranks) for scope, ranks in stored.ranks.items()}
    candidates = {scope: ranks.candidates for scope, ranks in stored.ranks.items()}
    for key, expected in (("queries", queries), ("candidates", candidates)):
        findings.same(f"ranking.{name}.{key}", getattr(record, key, None), expected, "its ranks have")
    images = queries.get("class", queries.get("i2t"))
    findings.same(f"n-samples.{name}.effective", task.counts.effective, images, "its ranks have")
    _compare(task, summarise_ranks(stored.ranks, task.metrics, *task.resampling, stored.of_query), "ranks")
    if samples is not None:
        check_rank_lines(samples, stored, task.metrics, findings)
