"""From files of stored answers to a results document: forced choices checked without their model."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ttmbench.data.catalog import find_task
from ttmbench.data.checks import check_count
from ttmbench.data.task_file import TaskSpec
from ttmbench.evaluator.outcome import TaskOutcome
from ttmbench.evaluator.record import RunRecord
from ttmbench.evaluator.stored_scores import STORED_NOTE, ScoredFile
from ttmbench.plugins.registry import build_registry
from ttmbench.results.coverage import STORED_ANSWERS
from ttmbench.results.labels import split_key
from ttmbench.scoring.data_identity import stored_digest
from ttmbench.scoring.forced_choice.arrays import CHOICE, choice_values
from ttmbench.scoring.forced_choice.stored_answers import COLORSWAP, StoredAnswers, read_answers
from ttmbench.scoring.forced_choice.summary import summarise_choices, unread_notes
from ttmbench.stats import IntervalMethod
from ttmbench.types import Group


def score_answers(
    paths: Sequence[Path],
    task: str,
    *,
    include_path: Sequence[str] = (),
    limit: int | None = None,
    bootstrap_iters: int = 1000,
    interval: IntervalMethod = "wilson",
    seed: int = 0,
    command: Sequence[str] = (),
) -> ScoredFile:
    """Computes text, image and group score from stored answers, as far as both sides are there.

    Args:
        paths: one file, or ColorSwap's text and image answers; see `ttmbench.scoring.forced_choice.stored_answers`.
        task: name or file of the task whose shape and size they have.
        include_path: folders of further task files.
        limit: the answers are for the task's first groups only.
        bootstrap_iters: resamples of bootstrap intervals; 0 for no interval of any kind.
        interval: how intervals are made.
        seed: of the resampling.
        command: the command line, for the record.

    Returns:
        A results document with the filter ``choice``, and the answers.

    Raises:
        UsageError: no such task, or files that do not belong together.
        DataError: a file is not what the task says; the message names the group.
    """
    started, clock = datetime.now().astimezone(), time.perf_counter()
    registry = build_registry(include_path)
    spec = find_task(registry, task).spec
    stored = read_answers(paths, spec.shape)
    notes = [
        STORED_NOTE,
        *_reading_notes(stored),
        *stored.notes,
        *_check_size(spec, stored, limit, paths[0]),
        *unread_notes(stored.unread),
    ]
    names = [path.name for path in paths]
    summary = summarise_choices(stored.choices, spec.shape, 1, bootstrap_iters, seed, interval)
    outcome = TaskOutcome(
        spec=spec,
        metrics=[registry.metric(split_key(key)[0]) for key in summary.tracks],
        groups=[Group(name, (), ()) for name in stored.group_ids],
        source={
            "kind": STORED_ANSWERS,
            "files": names,
            "format": stored.format,
            "sha256": hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest(),
        },
        fingerprint=stored_digest(spec.task, spec.version, str(spec.shape), stored.group_ids),
        scores={},
        summary=summary,
        records={CHOICE: _record(stored)},
        notes=notes,
        seconds={"score": time.perf_counter() - clock},
        choices=stored.choices,
        own_lines=_lines(stored),
    )
    config: dict[str, Any] = {"answers": names, "task": task, "limit": limit, "seed": seed}
    config |= {"bootstrap_iters": bootstrap_iters, "interval": interval}
    record = RunRecord("+".join(path.stem for path in paths), config, command, started)
    record.outcomes[spec.task] = outcome
    return ScoredFile(record.document("done", clock, None), record.outcomes)


def _lines(stored: StoredAnswers) -> list[dict[str, Any]]:
    """A samples line for each group."""
    values = choice_values(stored.choices)
    return [
        {
            "group_id": group,
            "filter": CHOICE,
            "seed_index": 0,
            "seed": None,
            "metrics": {metric: float(right[place]) for metric, right in values.items()},
        }
        for place, group in enumerate(stored.group_ids)
    ]


def _check_size(spec: TaskSpec, stored: StoredAnswers, limit: int | None, path: Path) -> list[str]:
    """Answers cannot be fetched again: a size of which the task file knows why it differs is accepted, with a note."""
    found, expected = len(stored.choices), spec.group.n_groups
    if limit is not None:
        total = limit if expected is None else min(limit, expected)
        spec = spec.model_copy(update={"group": spec.group.model_copy(update={"n_groups": total})})
    elif found in spec.group.wrong_sizes:
        why = spec.group.wrong_sizes[found].partition(";")[0]  # what follows is how to fetch the data again
        return [f"these are answers for {found} groups, the task has {expected}: {why}"]
    check_count(spec, found, str(path))
    return []


def _reading_notes(stored: StoredAnswers) -> list[str]:
    if stored.format != COLORSWAP:
        return []
    return ["answers are read by the rules of ColorSwap's release, which are not those for answers of a run"]


def _record(stored: StoredAnswers) -> dict[str, Any]:
    asked = [side for side in ("text", "image") if getattr(stored.choices, side) is not None]
    return {
        "asked": asked,
        "orders": 1,
        "unread": [
            {"group_id": group, "question": question, "answer": answer} for group, question, answer in stored.unread
        ],
    }
