"""What a submission records and nothing computes again: is it of the right form, in range, and consistent?"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from ttmbench._util.machine import PACKAGES
from ttmbench.reproduce.submission.findings import Findings
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import COLUMNS
from ttmbench.results.method_record import (
    Control,
    Holdout,
    Iteration,
    MethodCost,
    MethodRecord,
    OracleRecord,
    SimpleMatchRecord,
    TtmRecord,
)
from ttmbench.results.records import Dataset

EARLIEST = datetime(2026, 11, 1, tzinfo=UTC)
"""Runs of this package are not older."""
CLOCKS = 300.0
"""Seconds by which two clocks may differ."""
MOST_LOSS = 1e4
"""No mean cross entropy of logits that models have is larger."""
LONGEST_TEXT, LARGEST_VALUE, LARGEST_NUMBER = 2_000, 100_000, 1e15
_STAGES = {"load", "look_up", "prepare", "score", "count", "devices", *(column.filter for column in COLUMNS)}
_DIRECTION = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def leaves(value: object, place: str = "") -> Iterator[tuple[str, object]]:
    """Every number, text and null of a JSON value with its place; the keys of its objects as "PLACE, a key"."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield f"{place}, a key", str(key)
            yield from leaves(child, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield from leaves(child, f"{place}.{index}" if place else str(index))
    else:
        yield place, value


def check_texts(document: Mapping[str, object], findings: Findings) -> None:
    """Refuses control characters, characters that change the direction of text, and -0.0."""
    for key, leaf in leaves(document):
        if isinstance(leaf, str) and not leaf.isprintable():
            controls = [
                char for char in leaf if unicodedata.category(char) in ("Cc", "Cs", "Co") and char not in "\t\n\r"
            ]
            if controls or any(char in _DIRECTION for char in leaf):
                findings.refuse(key, "has control characters, or characters that change the direction of text")
        elif isinstance(leaf, float) and leaf == 0 and math.copysign(1, leaf) < 0:
            findings.refuse(key, "is -0.0, which no run writes")


def check_value(place: str, value: object, findings: Findings) -> None:
    """A recorded or free value: bounded in size, its numbers in range."""
    findings.compared += 1
    for _, text_or_number in leaves(value):
        if isinstance(text_or_number, str) and len(text_or_number) > LONGEST_TEXT:
            findings.refuse(place, f"has a text of {len(text_or_number)} characters, at most {LONGEST_TEXT} are taken")
            return
        if isinstance(text_or_number, int | float) and not abs(text_or_number) <= LARGEST_NUMBER:
            findings.refuse(place, "has a number that is out of range")
            return
    try:
        size = len(json.dumps(value, default=str))
    except (RecursionError, ValueError):
        size = LARGEST_VALUE + 1
    if size > LARGEST_VALUE:
        findings.refuse(place, f"has {size} characters as JSON, at most {LARGEST_VALUE} are taken")


def check_recorded(document: ResultsDocument, findings: Findings, now: float) -> None:
    """Dates, times and losses: possible, and not longer than the run.

    Args:
        document: of results.
        findings: takes what is wrong.
        now: seconds since 1970.
    """
    total = document.total_evaluation_time_seconds
    _check_seconds("total_evaluation_time_seconds", total, math.inf, findings)
    if document.date < EARLIEST.timestamp():
        findings.refuse("date", f"is {document.started}, runs are not older than {EARLIEST:%Y-%m-%d}")
    if not document.date + total <= now + CLOCKS:
        findings.refuse("date", f"is {document.started}, so the run of {total:.0f} s ended in the future")
    for task, stages in document.timing.items():
        if not stages and task in document.results:
            findings.refuse(f"timing.{task}", "has no stage")
        for stage, seconds in stages.items():
            if stage not in _STAGES and stage not in document.methods.get(task, {}):
                findings.refuse(f"timing.{task}.{stage}", "is a stage that no run has")
            _check_seconds(f"timing.{task}.{stage}", seconds, total, findings)
    for task in document.results.keys() ^ document.timing.keys():
        findings.refuse(f"timing.{task}", "is missing" if task in document.results else "is of no task with numbers")
    for task in document.notes.keys() - document.results.keys():
        findings.refuse(f"notes.{task}", "is of no task with numbers")
    for prefix, line in _iterations(document):
        _check_seconds(f"{prefix}.seconds", line.seconds, total, findings)
        if any(not 0 <= loss <= MOST_LOSS for loss in line.loss):
            words = f"is {line.loss!s:.100}; a loss is a mean cross entropy, from 0 to {MOST_LOSS:g}"
            findings.refuse(f"{prefix}.loss", words)
    for task, methods in document.methods.items():
        for name, method in methods.items():
            _check_method(f"methods.{task}.{name}", method, document.datasets.get(task), total, findings)
    for prefix, task, trained in _of_ttm(document):
        if trained.cost is not None:
            data = document.datasets.get(task)
            _check_costs(prefix, trained.cost, trained.seeds, ("gradients",), data, total, findings)
    for task, others in document.ttm_also.items():
        for other, record in others.items():
            _check_seconds(f"ttm_also.{task}.{other}.seconds", record.seconds, total, findings)
    for task, cut in document.truncated.items():
        if cut.captions > cut.of or bool(cut.captions) != bool(cut.groups) or cut.groups > _groups(document, task):
            findings.refuse(f"truncated.{task}", f"is {cut.captions} of {cut.of} captions in {cut.groups} groups")
    for task, used in document.efficiency.items():
        if task not in document.results:
            findings.refuse(f"efficiency.{task}", "is of no task with numbers")
        for first, second in (("peak_memory_bytes", "peak_memory_of"), ("co2_kg", "country")):
            if (getattr(used, first) is None) != (getattr(used, second) is None):
                findings.refuse(f"efficiency.{task}.{first}", f"is given without {second}, or {second} without it")
    for task, left in document.undecided.items():
        if not 0 < left.pairs <= left.of:
            findings.refuse(f"undecided.{task}", f"is {left.pairs} of {left.of} pairs")
    for name in sorted(document.packages.keys() - {"python", *PACKAGES}):
        findings.refuse(f"packages.{name}", "is not among the packages that a run states")
    if document.git_hash is not None and not re.fullmatch(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", document.git_hash):
        findings.refuse("git_hash", "is not a commit: 40 or 64 hexadecimal digits")
    for key, value in document.fingerprint.items():
        if value is not None and key.endswith("_sha256") and not re.fullmatch(r"[0-9a-f]{64}", str(value)):
            findings.refuse(f"model_info.fingerprint.{key}", "is not a digest: 64 hexadecimal digits")
    size = document.fingerprint.get("n_parameters") or 1
    if type(size) is not int or not 0 < size < 10**14:
        findings.refuse("model_info.fingerprint.n_parameters", f"is {size!s:.40}, not a number of parameters")


def _check_method(prefix: str, method: MethodRecord, data: Dataset | None, total: float, findings: Findings) -> None:
    """Counts and losses of a test-time method: possible, and those of a method with its needs."""
    trains, needs = "gradients" in method.needs, set(method.needs)
    if len(method.loss) != len(method.seeds):
        findings.refuse(f"{prefix}.loss", f"has {len(method.loss)} entries for {len(method.seeds)} seeds")
    if not 0 <= method.updates <= method.turns or (method.turns > 0) != trains:
        of = "a method that trains" if trains else "a method that trains nothing"
        findings.refuse(f"{prefix}.turns", f"is {method.turns}, with {method.updates} updates, of {of}")
    for at, loss in enumerate(method.loss):
        if loss is not None and not (trains and abs(loss) <= MOST_LOSS):
            findings.refuse(f"{prefix}.loss.{at}", f"is {loss:.6g}, which no training of this method gives")
    metrics = {} if method.holdout is None else method.holdout.metrics
    for name, metric in metrics.items():
        if len(metric.adapted) != len(method.seeds):
            findings.refuse(f"{prefix}.holdout.metrics.{name}", f"has {len(metric.adapted)} seeds")
    if method.trained is not None and not trains:
        findings.refuse(f"{prefix}.trained", "is present, and the method trains nothing")
    _check_costs(prefix, method.cost, method.seeds, needs, data, total, findings)


def _check_costs(
    prefix: str,
    costs: Sequence[MethodCost],
    seeds: Sequence[int],
    needs: Collection[str],
    data: Dataset | None,
    total: float,
    findings: Findings,
) -> None:
    """Counts of a method or of TTM for each seed: possible, and those of a method with its needs."""
    if len(costs) != len(seeds):
        findings.refuse(f"{prefix}.cost", f"has {len(costs)} entries for {len(seeds)} seeds")
    trains = "gradients" in needs
    for at, cost in enumerate(costs):
        _check_seconds(f"{prefix}.cost.{at}.seconds", cost.seconds, total, findings)
        _check_seconds(f"{prefix}.cost.{at}.view_seconds", cost.view_seconds, cost.seconds, findings)
        surplus = {
            "image_rows_backward": not trains,
            "caption_rows_backward": not trains,
            "optimizer_steps": not trains,
            "views": "views" not in needs,
            "view_seconds": "views" not in needs,
            "reward_rows": "reward_model" not in needs,
        }
        for name in (name for name, is_wrong in surplus.items() if is_wrong and getattr(cost, name)):
            findings.refuse(
                f"{prefix}.cost.{at}.{name}", f"is {getattr(cost, name)}, and the method needs no such thing"
            )
        images = cost.image_rows + 2 * cost.image_rows_backward
        captions = cost.caption_rows + 2 * cost.caption_rows_backward
        least = 0.0
        if data is not None and len(data.shape) == 2:  # images and captions may stand in several groups
            least = (images / data.shape[0] + captions / data.shape[1]) / max(1, data.n_groups)
        if not least - 1e-9 <= cost.tower_passes <= images + captions + 1e-9:
            findings.refuse(f"{prefix}.cost.{at}.tower_passes", f"is {cost.tower_passes:.6g}, impossible for its rows")


def _groups(document: ResultsDocument, task: str) -> int:
    return document.n_samples[task].effective if task in document.n_samples else 0


def _check_seconds(key: str, seconds: float, most: float, findings: Findings) -> None:
    if not 0 <= seconds <= most:
        what = "negative" if seconds < 0 else "longer than the run"
        findings.refuse(key, f"is {seconds}, a time that is {what}")


def _of_ttm(
    document: ResultsDocument,
) -> Iterator[tuple[str, str, TtmRecord | Control | OracleRecord | SimpleMatchRecord]]:
    """Every record of TTM and its variants but held-out groups: where it stands, and its task."""
    for task, ttm in document.ttm.items():
        yield f"ttm.{task}", task, ttm
        for name, control in ttm.controls.items():
            yield f"ttm.{task}.controls.{name}", task, control
    for task, simple_match in document.simple_match.items():
        yield f"simple_match.{task}", task, simple_match
    for task, oracle in document.oracle.items():
        yield f"oracle.{task}", task, oracle


def _iterations(document: ResultsDocument) -> Iterator[tuple[str, Iteration]]:
    """Every iteration of training, and where it stands."""
    records: list[tuple[str, TtmRecord | Control | OracleRecord | Holdout]] = [
        (prefix, record) for prefix, _, record in _of_ttm(document) if not isinstance(record, SimpleMatchRecord)
    ]
    held = ((f"ttm.{task}.holdout", ttm.holdout) for task, ttm in document.ttm.items())
    records += [(prefix, record) for prefix, record in held if record is not None]
    for prefix, record in records:
        for at, line in enumerate(record.iterations):
            yield f"{prefix}.iterations.{at}", line
