"""Stored answers: forced choices checked without their model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ttmbench.data.loader import check_count
from ttmbench.data.task_file import TaskSpec
from ttmbench.evaluator.run_key import stored_digest
from ttmbench.evaluator.stored_scores import STORED_NOTE, digest_of, first_groups
from ttmbench.evaluator.task_result import Answered, Data
from ttmbench.plugins.registry import Registry
from ttmbench.results.coverage import STORED_ANSWERS
from ttmbench.scoring.forced_choice.arrays import choice_values, unread_notes
from ttmbench.scoring.forced_choice.stored_answers import COLORSWAP, StoredAnswers, read_answers
from ttmbench.types import Group


def stored_answers(paths: Sequence[Path], spec: TaskSpec, registry: Registry, limit: int | None) -> Answered:
    """Stored answers as a task, as far as both sides are there.

    Args:
        paths: one file, or ColorSwap's text and image answers; see `ttmbench.scoring.forced_choice.stored_answers`.
        spec: the task whose shape and size they have.
        registry: the metrics.
        limit: the answers are for the task's first groups only.

    Returns:
        The task, without numbers.

    Raises:
        UsageError: files that do not belong together.
        DataError: a file is not what the task says; the message names the group.
    """
    stored = read_answers(paths, spec.shape)
    notes = [STORED_NOTE]
    if stored.format == COLORSWAP:
        notes.append("answers are read by the rules of ColorSwap's release, which are not those for answers of a run")
    notes += [*stored.notes, *_notes_on_size(spec, stored, limit, paths[0]), *unread_notes(stored.unread)]
    names = [path.name for path in paths]
    source = {"kind": STORED_ANSWERS, "files": names, "format": stored.format, "sha256": digest_of(paths)}
    unread = [{"group_id": group, "question": question, "answer": answer} for group, question, answer in stored.unread]
    digest = stored_digest(spec.task, spec.version, str(spec.shape), stored.group_ids)
    return Answered(
        spec=spec,
        metrics=[registry.metric(name) for name in choice_values(stored.choices)],
        data=Data([Group(name, (), ()) for name in stored.group_ids], source, digest),
        notes=notes,
        choices=stored.choices,
        record={
            "asked": [side for side in ("text", "image") if getattr(stored.choices, side) is not None],
            "orders": 1,
            "unread": unread,
        },
    )


def _notes_on_size(spec: TaskSpec, stored: StoredAnswers, limit: int | None, path: Path) -> list[str]:
    """Answers cannot be fetched again: a size of which the task file knows why it differs is accepted, with a note."""
    size, expected = len(stored.choices), spec.group.n_groups
    if limit is None and size in spec.group.wrong_sizes:
        why = spec.group.wrong_sizes[size].partition(";")[0]  # what follows is how to fetch the data again
        return [f"these are answers for {size} groups, the task has {expected}: {why}"]
    check_count(first_groups(spec, limit), size, str(path))
    return []
