"""Results files of a report, and the groups of their samples as compact lists for the page.

Damaged files are listed and skipped; only an empty folder is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ttmbench._util.text import Unreadable, read_json
from ttmbench.errors import DataError, UsageError
from ttmbench.results.numbers import RAW, TTM, name_of
from ttmbench.results.reader import ResultsFile, read_files, sample_lines

HEADLINE = "group_match"


@dataclass(frozen=True)
class Gathered:
    """All runs of a report, and the files that were skipped: file -> why."""

    runs: tuple[ResultsFile, ...]
    skipped: dict[str, str]


def gather(given: Path) -> Gathered:
    """Every results document of a folder, searched recursively, or one document; runs are sorted by model and path.

    UsageError if the path does not exist, or has no JSON file.
    """
    if not given.exists():
        raise UsageError(f"{given} does not exist; give a results file, or a directory with some (--output_path)")
    folder = given if given.is_dir() else given.parent
    found, damaged = read_files([given], logs=True)
    if not found and not damaged:
        raise UsageError(f"{given} has no results document; runs write them with --output_path {given}")
    skipped = {path.relative_to(folder).as_posix(): why for path, why in damaged.items() if not is_something_else(path)}
    found.sort(key=lambda run: (run.model, str(run.path)))
    runs = [replace(run, index=index) for index, run in enumerate(found, start=1)]
    for run in runs:
        skipped |= {(Path(run.file).parent / file).as_posix(): why for file, why in run.checked[1].items()}
    return Gathered(tuple(runs), skipped)


def is_something_else(path: Path) -> bool:
    """Whether a file is a complete document of another kind: an analysis, a model card, settings."""
    if path.name.startswith("results_"):
        return False
    try:
        content = read_json(path)
    except Unreadable:
        return False
    return not (isinstance(content, dict) and "results" in content)


Line = Mapping[str, Any]
"""A samples line."""
Json = Any
"""A JSON value for the page."""
_DIGITS = 5  # of scores and margins on the page


@dataclass(frozen=True)
class GroupSet:
    """The groups of one task of a run."""

    run: ResultsFile  # the run
    task: str  # its name
    # For the page: ``metrics``, ``filters`` (name, words, seeds), ``tags``, and ``groups``, each
    # ``[id, captions, images, tags, filters]``, those first that changed, then incorrect ones; a filter is null or a
    # list over seeds of ``[scores, matching, tie, margin, metrics, answers]``.
    data: dict[str, Json]


def read_groups(run: ResultsFile, task: str, path: Path) -> GroupSet:
    """The groups in a samples file; DataError with its number for a line that is not a samples line."""
    filters: dict[str, dict[int, int | None]] = {}
    metrics: list[str] = []
    tags: list[str] = []
    groups: dict[str, tuple[Line, dict[str, dict[int, list[Json]]]]] = {}
    line: Line
    for number, line in sample_lines(path):
        try:
            name, seed = str(line["filter"]), int(line.get("seed_index", 0))
            filters.setdefault(name, {})[seed] = line.get("seed")
            metrics += [metric for metric in line["metrics"] if metric not in metrics]
            tags += [tag for tag in line.get("tags", {}) if tag not in tags]
            of_group = groups.setdefault(str(line["group_id"]), (line, {}))
            of_group[1].setdefault(name, {})[seed] = _result(line, metrics)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise DataError(f"{path}: line {number} is not a samples line of ttmbench") from None
    compact = []
    for group_id, (line, results) in groups.items():
        for rows in results.values():
            for row in rows.values():
                row[4] += [None] * (len(metrics) - len(row[4]))
        texts = [[str(text) for text in line.get(key, [])] for key in ("captions", "images")]
        values = [None if tag not in line.get("tags", {}) else str(line["tags"][tag]) for tag in tags]
        # Only held-out groups have their filter.
        per_filter = [
            [results[name].get(seed) for seed in sorted(seeds)] if name in results else None
            for name, seeds in filters.items()
        ]
        compact.append([group_id, *texts, values, per_filter])
    described = [
        {"name": name, "words": name_of(name), "seeds": [seeds[index] for index in sorted(seeds)]}
        for name, seeds in filters.items()
    ]
    names, metric = list(filters), metrics.index(HEADLINE) if HEADLINE in metrics else 0
    compact.sort(key=lambda group: _interest(group, names, metric))
    return GroupSet(run, task, {"metrics": metrics, "filters": described, "tags": tags, "groups": compact})


def _interest(group: list[Json], names: list[str], metric: int) -> int:
    """0 for a group that changed from raw to TTM, else 1 for an incorrect one, and 2 for a correct one."""
    means: list[float | None] = []
    for name in (RAW, TTM):
        rows = group[4][names.index(name)] if name in names else None
        values = [row[4][metric] for row in rows or () if row and row[4] and row[4][metric] is not None]
        means.append(sum(values) / len(values) if values else None)
    before, after = means
    if before is None or after is None or before == after:
        return 2 if (before if after is None else after) == 1 else 1
    return 0


def _result(line: Line, metrics: Iterable[str]) -> list[Json]:
    result = [
        [[_short(score) for score in row] for row in line["scores"]] if "scores" in line else None,
        [_indices(captions) for captions in line["matching"]] if "matching" in line else None,
        1 if line.get("tie") else 0,
        _short(line.get("margin")),
        [_short(line["metrics"].get(metric)) for metric in metrics],
    ]
    if "answers" in line:
        result.append(
            [
                [str(answer["question"]), str(answer["prompt"]), answer["answer"], bool(answer["right"])]
                for answer in line["answers"]
            ]
        )
    return result


def _indices(captions: Json) -> int | list[int] | None:
    """The caption or captions that a matching gives an image; None where it gives none."""
    if captions is None:
        return None
    return [int(caption) for caption in captions] if isinstance(captions, list) else int(captions)


def _short(value: object) -> float | int | None:
    """A number with few digits, as an integer if it is one."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.40} is not a number")
    if value - value != 0:
        raise ValueError(f"{value} is NaN or infinite")
    short = float(f"{value + 0:.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e9 else short
