"""The records of the test-time stage: every seed and iteration, thresholds, counts, audit, and what they end in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import ValidationError

from ttmbench._util.text import read_json_lines
from ttmbench._util.third_party_errors import describe
from ttmbench.config import TTMConfig
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.matching import match_global, match_groups
from ttmbench.reproduce.submission.findings import Findings, agree
from ttmbench.reproduce.submission.task import SubmittedTask, is_count
from ttmbench.results.clusters import held_out
from ttmbench.results.labels import HOLDOUT, ORACLE, RAW, SIMPLE_MATCH, TTM, key_of, seed_std_key
from ttmbench.results.records import Control, Holdout, Iteration, OracleRecord, TtmRecord
from ttmbench.results.score_lines import StoredScores
from ttmbench.results.summary import metric_mean
from ttmbench.stats import seed_std
from ttmbench.ttm.selection import PseudoLabels, first_threshold, select

MOST_ITERATIONS = 10_000
"""Of one seed; a schedule is computed for so many."""


@dataclass(frozen=True)
class _Course:
    """One variant of the test-time stage: TTM itself, a control, held-out groups, or the oracle.

    Attributes:
        task: that it is of.
        place: of its record in the document.
        name: filter of its numbers.
        record: seeds and iterations.
        settings: of TTM; None where they are not known.
        stored: scores of the task, where they are there.
    """

    task: SubmittedTask
    place: str
    name: str
    record: TtmRecord | Control | Holdout | OracleRecord
    settings: TTMConfig | None
    stored: StoredScores | None

    @property
    def findings(self) -> Findings:
        """They take what is wrong."""
        return self.task.findings


def check_adaptation(task: SubmittedTask, stored: StoredScores | None) -> None:
    """Checks what a document records of TTM, its controls, held-out groups, the oracle and SimpleMatch's step."""
    document, name, findings = task.document, task.name, task.findings
    filters = {key.partition(",")[2] for key in task.results}
    for filter_ in (TTM, SIMPLE_MATCH, ORACLE):
        missing = document.training(name, filter_) is None
        if missing == (filter_ in filters):
            words = "is missing, its numbers are there" if missing else "is there, its numbers are not"
            findings.refuse(f"{filter_}.{name}", words)
    simple, ttm, oracle = document.simple_match.get(name), document.ttm.get(name), document.oracle.get(name)
    if simple is not None:
        _check_seeds(task, f"{SIMPLE_MATCH}.{name}", simple.seeds)
        findings.same(f"{SIMPLE_MATCH}.{name}.restarts", len(simple.restarts), len(simple.seeds), "seeds are")
    settings = None if ttm is None else _settings(task, ttm)
    if ttm is not None:
        _check_ttm(_Course(task, f"{TTM}.{name}", TTM, ttm, settings, stored), ttm)
    if oracle is not None:
        _check_course(_Course(task, f"{ORACLE}.{name}", ORACLE, oracle, settings, stored))


def _settings(task: SubmittedTask, record: TtmRecord) -> TTMConfig | None:
    place, findings = f"{TTM}.{task.name}.hyperparameters", task.findings
    try:
        settings = TTMConfig(**record.hyperparameters)
    except (ValidationError, TypeError) as error:
        why = describe(error) if isinstance(error, ValidationError) else str(error)
        findings.refuse(place, f"are no settings of TTM: {why}")
        return None
    if settings.iterations > MOST_ITERATIONS:
        findings.refuse(f"{place}.iterations", f"is {settings.iterations}, at most {MOST_ITERATIONS} are taken")
        return None
    for key, value in task.config.ttm_args.items():
        if key in record.hyperparameters:
            findings.same(f"{place}.{key}", record.hyperparameters[key], value, "config.ttm_args says")
    return settings


def _check_ttm(course: _Course, record: TtmRecord) -> None:
    task, place, findings, config = course.task, course.place, course.findings, course.task.config
    findings.same(f"{place}.variant", record.variant, task.spec.matching, "the task says")
    findings.same(f"{place}.preset", record.preset, config.ttm_preset, "config.ttm_preset says")
    _check_course(course)
    _check_audit(course, record)
    _check_lines(task, record)
    if course.stored is not None and course.settings is not None:
        _check_first_iteration(course, course.settings, course.stored)
    for name, control in record.controls.items():
        at = f"{place}.controls.{name}"
        _check_course(_Course(task, at, name, control, course.settings, course.stored))
    findings.same(f"{place}.controls", sorted(record.controls), sorted(config.ttm_controls), "config.ttm_controls says")
    holdout = record.holdout
    share = None if holdout is None else holdout.share
    findings.same(f"{place}.holdout", share, config.ttm_holdout, "config.ttm_holdout says")
    if holdout is not None:
        _check_course(_Course(task, f"{place}.holdout", HOLDOUT, holdout, course.settings, None))
        _check_split(course, holdout)


def _check_split(course: _Course, record: Holdout) -> None:
    """The two parts are all groups, and those that the seed draws where it is known which groups share images."""
    place, counts, config = f"{course.place}.holdout", course.task.counts, course.task.config
    total, stored = counts.effective, course.stored
    if sorted([*record.adapted_groups, *record.scored_groups]) != list(range(total)):
        course.findings.refuse(place, f"its two parts are not the {total} groups, each once")
        return
    known = None if stored is None or stored.clusters is None else stored.clusters.groups
    clusters = np.arange(total) if counts.clusters == total else known
    if clusters is not None and config.ttm_holdout is not None:
        try:
            drawn = np.flatnonzero(held_out(clusters, config.ttm_holdout, config.seed)).tolist()
        except UsageError as error:
            course.findings.refuse(place, str(error))
            return
        course.findings.same(f"{place}.scored_groups", record.scored_groups, drawn, "the seed draws")


def _check_seeds(task: SubmittedTask, place: str, seeds: Sequence[int]) -> None:
    task.findings.same(f"{place}.seeds", seeds, task.config.run_seeds, "config.seeds says")


def _check_audit(course: _Course, record: TtmRecord) -> None:
    place, findings, audit = f"{course.place}.audit_labels", course.findings, record.audit_labels
    if audit is None:
        findings.refuse(place, "is missing; test-time numbers are submitted with --audit_labels")
        return
    findings.same(f"{place}.seeds", audit.seeds, record.seeds, "the seeds are")
    if course.settings is not None:
        findings.same(f"{place}.iterations", audit.iterations, course.settings.iterations, "the settings say")
    findings.same("config.audit_labels", course.task.config.audit_labels, True, "the audit's record says")


def _check_lines(task: SubmittedTask, record: TtmRecord) -> None:
    """The file of iterations has those of the document, without their seconds."""
    file, findings = task.file(TTM), task.findings
    if file is None:
        words = "there is no file of TTM's iterations beside the document"
        findings.leave_open(f"{TTM}.{task.name}.iterations", words)
        return
    try:
        lines = [line for _, line in read_json_lines(file)]
    except TtmbenchError as error:
        findings.refuse(file.name, str(error))
        return
    stated = [iteration.model_dump(exclude={"seconds"}) for iteration in record.iterations]
    if len(lines) != len(stated):
        findings.refuse(file.name, f"has {len(lines)} iterations, the document {len(stated)}")
        return
    for number, (line, expected) in enumerate(zip(lines, stated, strict=True), start=1):
        findings.compared += 1
        if not agree(line, expected):
            keys = [key for key in {**expected, **line} if not agree(line.get(key), expected.get(key))]
            words = f"line {number} differs from the document in {', '.join(sorted(map(str, keys)))}"
            findings.refuse(file.name, words)
            return


def _check_course(course: _Course) -> None:
    """One variant: its seeds, their iterations in order, and the numbers of the last ones."""
    place, record, settings = course.place, course.record, course.settings
    _check_seeds(course.task, place, record.seeds)
    by_seed: dict[int, list[Iteration]] = {}
    for line in record.iterations:
        by_seed.setdefault(line.seed, []).append(line)
    course.findings.same(f"{place}.iterations", list(by_seed), record.seeds, "the seeds are")
    for seed, lines in by_seed.items():
        here = f"{place}.iterations of seed {seed}"
        expected = list(range(1, (len(lines) if settings is None else settings.iterations) + 1))
        if not course.findings.same(here, [line.iteration for line in lines], expected, "all of them are"):
            continue
        for line in lines:
            _check_iteration(course, f"{here}, {line.iteration}", line)
        if settings is not None:
            _check_thresholds(course, here, [line.threshold for line in lines], settings)
    last = [by_seed[seed][-1].metrics for seed in record.seeds if by_seed.get(seed)]
    if course.name != HOLDOUT and len(last) == len(record.seeds):
        _check_ends(course, last)


def _check_iteration(course: _Course, place: str, line: Iteration) -> None:
    """What an iteration says of itself: shares are of counts, counts are whole, and it trained if it selected."""
    task, findings, settings, record = course.task, course.findings, course.settings, course.record
    groups = len(record.adapted_groups) if isinstance(record, Holdout) else task.counts.effective
    images = task.spec.shape.images
    units = groups * images if task.spec.is_global else groups
    findings.same(f"{place}, candidates", line.candidates, units, "the groups give")
    findings.same(f"{place}, coverage", line.coverage, line.selected / line.candidates, "selected / candidates is")
    if line.selected + (line.tied if course.name != ORACLE else 0) > line.candidates:
        findings.refuse(f"{place}, selected", f"is {line.selected} with {line.tied} tied, of {line.candidates}")
    right, at = line.pseudo_label_accuracy, f"{place}, pseudo_label_accuracy"
    if (right is None) != (line.selected == 0):
        findings.refuse(at, f"is {right}, and {line.selected} were selected")
    elif right is not None and not math.isclose(right * line.selected, round(right * line.selected), abs_tol=1e-6):
        findings.refuse(at, f"is {right}, which is no share of {line.selected}")
    if settings is not None:
        trained = settings.epochs if line.selected else 0
        findings.same(f"{place}, loss", len(line.loss), trained, "epochs that selected units give are")
        rate = (settings.lr or 0.0) * settings.lr_restart ** (line.iteration - 1)
        findings.same(f"{place}, learning_rate", line.learning_rate, rate, "the settings give")
    for metric, value in line.metrics.items():
        if not is_count(metric, value, groups * images):
            findings.refuse(f"{place}, metrics.{metric}", f"is {value}, which {groups} groups cannot give")


def _check_thresholds(course: _Course, place: str, found: Sequence[float], settings: TTMConfig) -> None:
    """The thresholds follow the schedule, from the stated tau_1 or from the one that was chosen."""
    chosen = found[-1] if settings.schedule == "ascending" else found[0]
    start = chosen if settings.tau_start is None else settings.tau_start
    try:
        schedule = course.task.registry.schedule(settings.schedule)
        expected = np.asarray(schedule.compute(start, settings.tau_end, settings.iterations)).tolist()
    except (TtmbenchError, ValueError) as error:
        course.findings.refuse(f"{place}, threshold", f"follows no schedule that this package has ({error})")
        return
    course.findings.same(f"{place}, threshold", found, expected, f"schedule {settings.schedule} gives")


def _check_ends(course: _Course, last: Sequence[Mapping[str, float | None]]) -> None:
    """The numbers are the mean of the seeds' last iterations, and these are those of the scores."""
    task, findings, stored = course.task, course.findings, course.stored
    for metric in dict.fromkeys(metric for line in last for metric in line):
        key, spread = key_of(metric, course.name), seed_std_key(metric, course.name)
        known = np.array([value for line in last if (value := line.get(metric)) is not None])
        mean = float(np.mean(known)) if len(known) == len(last) else None
        if key in task.results:
            findings.same(f"results.{task.name}.{key}", task.results[key], mean, "the last iterations give")
            if mean is not None:
                stated = task.results.get(spread)
                findings.same(f"results.{task.name}.{spread}", stated, seed_std(known), "the seeds give")
    arrays = () if stored is None else stored.scores.get(course.name, ())
    for spec in task.metrics if len(arrays) == len(last) else ():
        for index, (scores, line) in enumerate(zip(arrays, last, strict=True)):
            if spec.scope == "group" or (spec.scope == "global" and scores.all_pairs is not None):
                where = f"{course.place}.iterations, the last of seed index {index}, metrics.{spec.name}"
                findings.same(where, line.get(spec.name), metric_mean(spec, scores), "its scores give")


def _check_first_iteration(course: _Course, settings: TTMConfig, stored: StoredScores) -> None:
    """Every seed begins with the raw model: tau_1, how many it selects, and how many of these are right."""
    raw, is_global = stored.scores[RAW][0], course.task.spec.is_global
    if is_global:
        if raw.all_pairs is None:
            return
        overall = match_global(raw.all_pairs)
        labels = PseudoLabels(overall.captions[:, None], overall.scores, overall.tie)
        right = overall.captions == raw.truth
    else:
        inside = match_groups(raw.groups)
        labels = PseudoLabels(inside.captions, inside.margin, inside.tie)
        right = (inside.captions == np.arange(inside.captions.shape[1])).all(axis=1)
    by_share = settings.by_share(is_global)
    start = first_threshold(settings, labels, by_share)
    for line in (line for line in course.record.iterations if line.iteration == 1):
        chosen = select(labels, line.threshold, by_share, settings.ties)
        count = int(chosen.sum())
        expected: dict[str, float | None] = {"selected": count, "tied": int(labels.tie.sum())}
        if settings.schedule != "ascending":
            expected = {"threshold": start, **expected}
        if not by_share:  # of equal confidences at the end of a share the order decides
            expected["pseudo_label_accuracy"] = int(right[chosen].sum()) / count if count else None
        for key, value in expected.items():
            at = f"{course.place}.iterations of seed {line.seed}, 1, {key}"
            course.findings.same(at, getattr(line, key), value, "the raw scores give")
