"""The records of the test-time stage: every seed and iteration, thresholds, counts, audit, and what they end in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import ValidationError

from ttmbench._util.text import read_json_lines
from ttmbench._util.third_party_errors import describe
from ttmbench.config import TTMConfig
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.matching import match_global, match_groups
from ttmbench.reproduce.submission.findings import Findings, agree
from ttmbench.reproduce.submission.tasks import OfTask, is_count
from ttmbench.results.clusters import held_out
from ttmbench.results.labels import HOLDOUT, ORACLE, RAW, SIMPLE_MATCH, TTM, key_of, seed_std_key
from ttmbench.results.scores_file import StoredScores
from ttmbench.results.summary import metric_mean
from ttmbench.stats import seed_std
from ttmbench.ttm.selection import PseudoLabels, first_threshold, select

MOST_ITERATIONS = 10_000
"""Of one seed; a schedule is computed for so many."""


def check_adaptation(one: OfTask, stored: StoredScores | None, findings: Findings) -> None:
    """Checks what a document records of TTM, its controls, held-out groups, the oracle and SimpleMatch's step.

    Args:
        one: the task.
        stored: its scores, where they are there.
        findings: takes what is wrong.
    """
    document, task = one.document, one.spec.task
    filters = {key.partition(",")[2] for key in document["results"][task]}
    for name in (TTM, SIMPLE_MATCH, ORACLE):
        record = document.get(name, {}).get(task)
        if (record is None) == (name in filters):
            findings.refuse(f"{name}.{task}", f"{'is missing' if record is None else 'is there'}, its numbers "
                            f"{'are there' if record is None else 'are not'}")  # fmt: skip
    simple, oracle, ttm = (document.get(name, {}).get(task) for name in (SIMPLE_MATCH, ORACLE, TTM))
    if simple is not None:
        _check_seeds(one, f"{SIMPLE_MATCH}.{task}", simple, findings)
        findings.same(f"{SIMPLE_MATCH}.{task}.restarts", len(simple["restarts"]), len(simple["seeds"]), "seeds are")
    if ttm is not None:
        settings = _settings(one, ttm, findings)
        _check_ttm(one, ttm, settings, stored, findings)
    if oracle is not None:
        settings = _settings(one, ttm or {"hyperparameters": {}}, Findings()) if ttm or simple is None else None
        _check_course(one, f"{ORACLE}.{task}", ORACLE, oracle, settings if ttm else None, stored, findings)


def _settings(one: OfTask, record: Mapping[str, Any], findings: Findings) -> TTMConfig | None:
    place = f"{TTM}.{one.spec.task}.hyperparameters"
    try:
        settings = TTMConfig(**record["hyperparameters"])
    except (ValidationError, TypeError) as error:
        why = describe(error) if isinstance(error, ValidationError) else str(error)
        findings.refuse(place, f"are no settings of TTM: {why}")
        return None
    if settings.iterations > MOST_ITERATIONS:
        findings.refuse(f"{place}.iterations", f"is {settings.iterations}, at most {MOST_ITERATIONS} are taken")
        return None
    for key, value in one.config.ttm_args.items():
        if key in record["hyperparameters"]:
            findings.same(f"{place}.{key}", record["hyperparameters"][key], value, "config.ttm_args says")
    return settings


def _check_ttm(
    one: OfTask, record: Mapping[str, Any], settings: TTMConfig | None, stored: StoredScores | None, findings: Findings
) -> None:
    task = one.spec.task
    place = f"{TTM}.{task}"
    findings.same(f"{place}.variant", record["variant"], one.spec.matching, "the task says")
    findings.same(f"{place}.preset", record["preset"], one.config.ttm_preset, "config.ttm_preset says")
    _check_course(one, place, TTM, record, settings, stored, findings)
    _check_audit(one, place, record, settings, findings)
    _check_lines(one, record, findings)
    if stored is not None and settings is not None and RAW in stored.scores:
        _check_first_iteration(one, place, record, settings, stored, findings)
    for name, control in record.get("controls", {}).items():
        _check_course(one, f"{place}.controls.{name}", name, control, settings, stored, findings)
    stated = sorted(record.get("controls", {}))
    findings.same(f"{place}.controls", stated, sorted(one.config.ttm_controls), "config.ttm_controls says")
    holdout = record.get(HOLDOUT)
    findings.same(f"{place}.holdout", holdout and holdout["share"], one.config.ttm_holdout, "config.ttm_holdout says")
    if holdout is not None:
        _check_course(one, f"{place}.holdout", HOLDOUT, holdout, settings, None, findings)
        _check_split(one, f"{place}.holdout", holdout, stored, findings)


def _check_split(
    one: OfTask, place: str, record: Mapping[str, Any], stored: StoredScores | None, findings: Findings
) -> None:
    """The two parts are all groups, and those that the seed draws where it is known which groups share images."""
    count = one.document["n-samples"][one.spec.task]
    total = count["effective"]
    if sorted([*record["adapted_groups"], *record["scored_groups"]]) != list(range(total)):
        findings.refuse(place, f"its two parts are not the {total} groups, each once")
        return
    known = None if stored is None or stored.clusters is None else stored.clusters.groups
    clusters = np.arange(total) if count["clusters"] == total else known
    if clusters is not None and one.config.ttm_holdout is not None:
        try:
            drawn = held_out(clusters, one.config.ttm_holdout, one.config.seed)
        except UsageError as error:
            findings.refuse(place, str(error))
            return
        findings.same(
            f"{place}.scored_groups", record["scored_groups"], np.flatnonzero(drawn).tolist(), "the seed draws"
        )


def _check_seeds(one: OfTask, place: str, record: Mapping[str, Any], findings: Findings) -> bool:
    return findings.same(f"{place}.seeds", record["seeds"], one.config.run_seeds, "config.seeds says")


def _check_audit(
    one: OfTask, place: str, record: Mapping[str, Any], settings: TTMConfig | None, findings: Findings
) -> None:
    audit = record.get("audit_labels")
    if audit is None:
        findings.refuse(f"{place}.audit_labels", "is missing; test-time numbers are submitted with --audit_labels")
        return
    findings.same(f"{place}.audit_labels.seeds", audit["seeds"], record["seeds"], "the seeds are")
    if settings is not None:
        findings.same(f"{place}.audit_labels.iterations", audit["iterations"], settings.iterations, "the settings say")
    findings.same("config.audit_labels", one.config.audit_labels, True, "the audit's record says")


def _check_lines(one: OfTask, record: Mapping[str, Any], findings: Findings) -> None:
    """The file of iterations has those of the document, without their seconds."""
    file = one.file(TTM)
    if file is None:
        findings.leave_open(
            f"{TTM}.{one.spec.task}.iterations", "there is no file of TTM's iterations beside the document"
        )
        return
    try:
        lines = [line for _, line in read_json_lines(file)]
    except TtmbenchError as error:
        findings.refuse(file.name, str(error))
        return
    stated = [{key: value for key, value in line.items() if key != "seconds"} for line in record["iterations"]]
    if len(lines) != len(stated):
        findings.refuse(file.name, f"has {len(lines)} iterations, the document {len(stated)}")
        return
    for number, (line, expected) in enumerate(zip(lines, stated, strict=True), start=1):
        findings.compared += 1
        if not agree(line, expected):
            keys = [key for key in {**expected, **line} if not agree(line.get(key), expected.get(key))]
            findings.refuse(
                file.name, f"line {number} differs from the document in {', '.join(sorted(map(str, keys)))}"
            )
            return


def _check_course(
    one: OfTask,
    place: str,
    name: str,
    record: Mapping[str, Any],
    settings: TTMConfig | None,
    stored: StoredScores | None,
    findings: Findings,
) -> None:
    """One variant: its seeds, their iterations in order, and the numbers of the last ones."""
    _check_seeds(one, place, record, findings)
    by_seed: dict[int, list[Mapping[str, Any]]] = {}
    for line in record["iterations"]:
        by_seed.setdefault(line["seed"], []).append(line)
    findings.same(f"{place}.iterations", list(by_seed), record["seeds"], "the seeds are")
    for seed, lines in by_seed.items():
        here = f"{place}.iterations of seed {seed}"
        count = len(lines) if settings is None else settings.iterations
        if not findings.same(here, [line["iteration"] for line in lines], list(range(1, count + 1)), "all of them are"):
            continue
        for line in lines:
            _check_iteration(one, f"{here}, {line['iteration']}", name, record, line, settings, findings)
        if settings is not None:
            _check_thresholds(one, here, lines, settings, findings)
    last = [by_seed[seed][-1]["metrics"] for seed in record["seeds"] if by_seed.get(seed)]
    if name != HOLDOUT and len(last) == len(record["seeds"]):
        _check_ends(one, place, name, last, stored, findings)


def _check_iteration(
    one: OfTask,
    place: str,
    name: str,
    record: Mapping[str, Any],
    line: Mapping[str, Any],
    settings: TTMConfig | None,
    findings: Findings,
) -> None:
    """What an iteration says of itself: shares are of counts, counts are whole, and it trained if it selected."""
    groups = len(record["adapted_groups"]) if name == HOLDOUT else one.document["n-samples"][one.spec.task]["effective"]
    images = one.spec.shape.images
    units = groups * images if one.spec.is_global else groups
    findings.same(f"{place}, candidates", line["candidates"], units, "the groups give")
    findings.same(
        f"{place}, coverage", line["coverage"], line["selected"] / line["candidates"], "selected / candidates is"
    )
    if line["selected"] + (line["tied"] if name != ORACLE else 0) > line["candidates"]:
        findings.refuse(
            f"{place}, selected", f"is {line['selected']} with {line['tied']} tied, of {line['candidates']}"
        )
    right = line["pseudo_label_accuracy"]
    if (right is None) != (line["selected"] == 0):
        findings.refuse(f"{place}, pseudo_label_accuracy", f"is {right}, and {line['selected']} were selected")
    elif right is not None and not math.isclose(
        right * line["selected"], round(right * line["selected"]), abs_tol=1e-6
    ):
        findings.refuse(f"{place}, pseudo_label_accuracy", f"is {right}, which is no share of {line['selected']}")
    if settings is not None:
        trained = settings.epochs if line["selected"] else 0
        findings.same(f"{place}, loss", len(line["loss"]), trained, "epochs that selected units give are")
        rate = (settings.lr or 0.0) * settings.lr_restart ** (line["iteration"] - 1)
        findings.same(f"{place}, learning_rate", line["learning_rate"], rate, "the settings give")
    for metric, value in line["metrics"].items():
        if not is_count(metric, value, groups * images):
            findings.refuse(f"{place}, metrics.{metric}", f"is {value}, which {groups} groups cannot give")


def _check_thresholds(
    one: OfTask, place: str, lines: Sequence[Mapping[str, Any]], settings: TTMConfig, findings: Findings
) -> None:
    """The thresholds follow the schedule, from the stated tau_1 or from the one that was chosen."""
    found = [line["threshold"] for line in lines]
    upwards = settings.schedule == "ascending"
    start = settings.tau_start if settings.tau_start is not None else found[-1] if upwards else found[0]
    try:
        schedule = one.registry.schedule(settings.schedule)
        expected = np.asarray(schedule.compute(start, settings.tau_end, settings.iterations)).tolist()
    except (TtmbenchError, ValueError) as error:
        findings.refuse(f"{place}, threshold", f"follows no schedule that this package has ({error})")
        return
    findings.same(f"{place}, threshold", found, expected, f"schedule {settings.schedule} gives")


def _check_ends(
    one: OfTask,
    place: str,
    name: str,
    last: Sequence[Mapping[str, Any]],
    stored: StoredScores | None,
    findings: Findings,
) -> None:
    """The numbers are the mean of the seeds' last iterations, and these are those of the scores."""
    results = one.document["results"][one.spec.task]
    for metric in dict.fromkeys(metric for line in last for metric in line):
        values = [line.get(metric) for line in last]
        known = np.array([value for value in values if value is not None])
        mean = float(np.mean(known)) if len(known) == len(values) else None
        if key_of(metric, name) in results:
            key = f"results.{one.spec.task}.{key_of(metric, name)}"
            findings.same(key, results[key_of(metric, name)], mean, "the last iterations give")
            if mean is not None:
                spread = results.get(seed_std_key(metric, name))
                findings.same(
                    f"results.{one.spec.task}.{seed_std_key(metric, name)}", spread, seed_std(known), "the seeds give"
                )
    arrays = () if stored is None else stored.scores.get(name, ())
    for spec in one.metrics if len(arrays) == len(last) else ():
        for index, (scores, line) in enumerate(zip(arrays, last, strict=True)):
            if spec.scope == "group" or (spec.scope == "global" and scores.all_pairs is not None):
                expected = metric_mean(spec, scores)
                where = f"{place}.iterations, the last of seed index {index}, metrics.{spec.name}"
                findings.same(where, line.get(spec.name), expected, "its scores give")


def _check_first_iteration(
    one: OfTask,
    place: str,
    record: Mapping[str, Any],
    settings: TTMConfig,
    stored: StoredScores,
    findings: Findings,
) -> None:
    """Every seed begins with the raw model: tau_1, how many it selects, and how many of these are right."""
    raw = stored.scores[RAW][0]
    if one.spec.is_global:
        if raw.all_pairs is None:
            return
        overall = match_global(raw.all_pairs)
        labels = PseudoLabels(overall.captions[:, None], overall.scores, overall.tie)
        right = overall.captions == raw.truth
    else:
        inside = match_groups(raw.groups)
        labels = PseudoLabels(inside.captions, inside.margin, inside.tie)
        right = (inside.captions == np.arange(inside.captions.shape[1])).all(axis=1)
    by_share = settings.by_share(one.spec.is_global)
    start = first_threshold(settings, labels, by_share)
    for line in record["iterations"]:
        if line["iteration"] != 1:
            continue
        here = f"{place}.iterations of seed {line['seed']}, 1"
        if settings.schedule != "ascending":
            findings.same(f"{here}, threshold", line["threshold"], start, "the raw scores give")
        chosen = select(labels, line["threshold"], by_share, settings.ties)
        count = int(chosen.sum())
        findings.same(f"{here}, selected", line["selected"], count, "the raw scores give")
        findings.same(f"{here}, tied", line["tied"], int(labels.tie.sum()), "the raw scores give")
        if not by_share:  # of equal confidences at the end of a share the order decides
            share = int(right[chosen].sum()) / count if count else None
            findings.same(f"{here}, pseudo_label_accuracy", line["pseudo_label_accuracy"], share, "the raw scores give")
