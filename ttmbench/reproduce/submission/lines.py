"""The samples lines of a submission: what they say of each group follows from the scores or answers beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench._util.text import read_json_lines
from ttmbench.errors import DataError
from ttmbench.matching import match_groups
from ttmbench.reproduce.submission.findings import Findings, agree
from ttmbench.reproduce.submission.task import SubmittedTask
from ttmbench.results.clusters import Clusters, connected
from ttmbench.results.labels import HOLDOUT_RAW, RAW
from ttmbench.results.ranks import rank_values
from ttmbench.results.ranks_file import StoredRanks
from ttmbench.results.records import ChoiceRecord
from ttmbench.results.score_lines import StoredScores
from ttmbench.results.summary import metric_values
from ttmbench.scoring.forced_choice.arrays import Choices, choice_values
from ttmbench.types import GroupShape, MetricSpec


def check_sample_lines(task: SubmittedTask, path: Path, stored: StoredScores) -> None:
    """Checks matching, margin, tie and metrics of every line against the scores that the lines hold."""
    expected = dict(_expected(task, stored))

    def compared() -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
        for number, line in read_json_lines(path):
            known = expected.get((line.get("filter", RAW), line.get("seed_index", 0), str(line.get("group_id"))), {})
            stated = {key: value for key, value in known.items() if key in line}
            yield f"line {number}, group {line.get('group_id')!s:.80}", line, stated

    _check_each(path, compared(), "scores", task.findings)


def _expected(task: SubmittedTask, stored: StoredScores) -> Iterator[tuple[tuple[str, int, str], dict[str, Any]]]:
    """(filter, seed index, group) -> what a line says of it."""
    metrics = [metric for metric in task.metrics if metric.scope == "group"]
    seeds = task.config.run_seeds
    for name, arrays in stored.scores.items():
        members = stored.subsets.get(name, range(len(stored.group_ids)))
        for index, scores in enumerate(arrays):
            matching = match_groups(scores.groups, task.spec.shape.true_captions)
            values = {metric.name: metric_values(metric, scores) for metric in metrics}
            seed = None if name in (RAW, HOLDOUT_RAW) else seeds[index] if index < len(seeds) else None
            for at, member in enumerate(members):
                yield (
                    (name, index, stored.group_ids[member]),
                    {
                        "seed": seed,
                        "matching": matching.captions[at].tolist(),
                        "margin": float(matching.margin[at]),
                        "tie": bool(matching.tie[at]),
                        "metrics": {
                            metric: None if value is None else float(value[at]) for metric, value in values.items()
                        },
                    },
                )


def choices_of(path: Path, shape: GroupShape, record: ChoiceRecord) -> tuple[Choices, Clusters | None]:
    """The answers of a samples file, read again: an answer is right if it names what is true.

    Returns which questions of each group were answered right, and clusters where the lines name them. DataError naming
    file and line if these are not the answers that the document's record of the questions says.
    """
    sides: dict[str, list[list[bool]]] = {"text": [], "image": []}
    clusters: list[Any] = []
    for number, line in read_json_lines(path):
        right: dict[tuple[str, int], list[bool]] = {}
        answers = line.get("answers")
        for answer in answers if isinstance(answers, list) else ():
            word, _, place = str(answer.get("question")).partition(" ") if isinstance(answer, dict) else ("", "", "")
            if word not in ("image", "caption") or not place.isdecimal() or len(place) > 6:
                raise DataError(f"{path}: line {number} has a question that is none")
            subject, chosen = int(place) - 1, answer.get("chosen")
            true = type(chosen) is int and chosen == subject
            if answer.get("right") is not true:
                given = f"{answer.get('right')!s:.20}"
                raise DataError(f"{path}: line {number}, {word} {place}: 'right' is {given}, the choice is {true}")
            right.setdefault(("text" if word == "image" else "image", subject), []).append(true)
        for side in record.asked:
            row = [right.get((side, subject), []) for subject in range(shape.images)]
            if any(len(times) != record.orders for times in row):
                words = f"has not {record.orders} answers to each question of side {side}"
                raise DataError(f"{path}: line {number} {words}")
            sides[side].append([all(times) for times in row])
        clusters.append(line.get("cluster"))
    if not clusters:
        raise DataError(f"{path}: is empty")
    arrays = {side: np.array(rows) if side in record.asked else None for side, rows in sides.items()}
    known = all(isinstance(name, str) for name in clusters)
    each = np.arange(len(clusters) * shape.images).reshape(len(clusters), -1)
    among = Clusters(np.array(connected([[name] for name in clusters])), each) if known else None
    return Choices(arrays["text"], arrays["image"]), among


def check_choice_lines(path: Path, choices: Choices, findings: Findings) -> None:
    """The metrics of samples lines are those of their answers."""
    values = choice_values(choices)
    compared = (
        (f"line {number}", line, {"metrics": {name: float(right[at]) for name, right in values.items()}})
        for at, (number, line) in enumerate(read_json_lines(path))
    )
    _check_each(path, compared, "answers", findings)


def check_rank_lines(path: Path, stored: StoredRanks, metrics: Sequence[MetricSpec], findings: Findings) -> None:
    """The ranks and metrics of samples lines are those of the file of ranks, query by query."""
    lines: dict[str, list[tuple[int, dict[str, Any]]]] = {"image": [], "caption": []}
    for number, line in read_json_lines(path):
        if line.get("query") in lines:
            lines[line["query"]].append((number, line))
    for scope, ranks in stored.ranks.items():
        given = lines["caption" if scope == "t2i" else "image"]
        if len(given) != len(ranks):
            findings.refuse(path.name, f"has {len(given)} lines of '{scope}', the file of ranks {len(ranks)} queries")
            continue
        counts = {"strict": ranks.strict, "as_topk": ranks.as_topk, "above": ranks.above}
        values = {metric.name: rank_values(metric, ranks) for metric in metrics if metric.scope == scope}
        compared = [
            (
                f"line {number}",
                line,
                {
                    "ranks": {name: None if one is None else int(one[query]) for name, one in counts.items()},
                    "metrics": {name: float(one[query]) for name, one in values.items() if one is not None},
                },
            )
            for query, (number, line) in enumerate(given)
        ]
        _check_each(path, compared, "ranks", findings)


def _check_each(
    path: Path, compared: Iterable[tuple[str, Mapping[str, Any], Mapping[str, Any]]], by: str, findings: Findings
) -> None:
    """Compares (name, line, what follows for it from the file); of each key that differs the first line is reported."""
    reported: set[str] = set()
    for name, line, known in compared:
        for key, value in known.items():
            findings.compared += 1
            if key not in reported and not agree(line.get(key), value):
                reported.add(key)
                words = f"{key} is {line.get(key)!s:.100}, its {by} give {value!s:.100}"
                findings.refuse(path.name, f"{name}: {words}")
