"""The numbers of results documents, one by one, each with everything that belongs to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ttmbench.errors import DataError, UsageError
from ttmbench.results.reader import Found, read_document, walk_documents
from ttmbench.results.summary import HOLDOUT_RAW, ORACLE, RAW, SIMPLE_MATCH, TTM

CHOICE = "choice"
_LABELS = {
    SIMPLE_MATCH: "SimpleMatch, overfitted",
    TTM: "TTM",
    ORACLE: "oracle, reads labels",
    CHOICE: "forced choice",
    "placebo": "TTM on placebo pseudo-labels",
    "shuffle": "TTM on shuffled pseudo-labels",
    "holdout": "TTM, on held-out groups",
    HOLDOUT_RAW: "raw, on held-out groups",
}


@dataclass(frozen=True)
class Number:
    """One number of one run.

    Attributes:
        file: the results document.
        model: as the run calls it.
        task: name.
        version: of the task.
        metric: name.
        filter: ``none`` (raw), ``ttm``, ...
        track: the leaderboard track; None for controls and held-out groups, which are never ranked.
        value: fraction; None if undefined.
        stderr: over groups, a fraction.
        ci_low: lower end of the 95 % interval over groups.
        ci_high: its upper end.
        seed_std: over seeds, a fraction.
        seeds: how many; None for the raw model.
        chance: expected value of random scores.
        ties: groups in which the metric met an equality.
        groups: that were scored.
        groups_of_task: that the task has.
        data: fingerprint of the data.
        date: of the run, ISO 8601 in UTC.
    """

    file: str
    model: str
    task: str
    version: int
    metric: str
    filter: str
    track: str | None
    value: float | None
    stderr: float | None
    ci_low: float | None
    ci_high: float | None
    seed_std: float | None
    seeds: int | None
    chance: float | None
    ties: float | None
    groups: int
    groups_of_task: int
    data: str
    date: str

    @property
    def method(self) -> str:
        """What was done, in words: ``raw``, ``SimpleMatch``, ``TTM``, ..."""
        if self.filter == RAW:
            return "SimpleMatch" if self.track == "matching" else "raw"
        return _LABELS.get(self.filter, self.filter)

    @property
    def key(self) -> tuple[str, ...]:
        """What makes two numbers of two runs the same one."""
        return (self.model, self.task, self.metric, self.filter)


@dataclass(frozen=True)
class Run:
    """A results document and where it lies."""

    path: Path
    document: Mapping[str, Any]

    @property
    def model(self) -> str:
        """As the run calls it."""
        return str(self.document["model_name"])


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[Found]]:
    """Reads results documents.

    Args:
        paths: files, or folders to search.

    Returns:
        The runs, and the files of folders that were skipped.

    Raises:
        DataError: a file that was named is no results document.
        UsageError: there is none.
    """
    runs, skipped = [], []
    for path in paths:
        if not path.is_dir():
            runs.append(Run(path, read_document(path)))
            continue
        for found in walk_documents(path):
            if found.document is None:
                skipped.append(found)
            else:
                runs.append(Run(found.path, found.document))
    if not any(run.document["results"] for run in runs):
        raise UsageError(f"{', '.join(map(str, paths))}: there is no finished task to export")
    return runs, skipped


def numbers_of(run: Run) -> Iterator[Number]:
    """Every number of a run, undefined ones too, task by task in the document's order.

    Args:
        run: the run.

    Yields:
        The numbers.

    Raises:
        DataError: the document contradicts itself.
    """
    try:
        yield from _numbers(run)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{run.path}: is no complete results document ({type(error).__name__}: {error})") from None


def newest(numbers: Iterable[Number]) -> list[Number]:
    """One number a model, task, metric and filter: that of the newest run; the order is kept."""
    found: dict[tuple[str, ...], Number] = {}
    for number in numbers:
        before = found.get(number.key)
        if before is None or number.date >= before.date:
            found[number.key] = number
    return list(found.values())


def _numbers(run: Run) -> Iterator[Number]:
    document = run.document
    for task, values in document["results"].items():
        for key, interval in document["ci"][task].items():
            metric, name = key.split(",")
            yield Number(
                file=run.path.name,
                model=run.model,
                task=task,
                version=document["versions"][task],
                metric=metric,
                filter=name,
                track=document["tracks"][task].get(key),
                value=values[key],
                stderr=values.get(f"{metric}_stderr,{name}"),
                ci_low=None if interval is None else interval[0],
                ci_high=None if interval is None else interval[1],
                seed_std=values.get(f"{metric}_seed_std,{name}"),
                seeds=_seeds(document, task, name),
                chance=document["chance"][task].get(metric),
                ties=document["ties"][task].get(key),
                groups=document["n-samples"][task]["effective"],
                groups_of_task=document["n-samples"][task]["original"],
                data=document["task_hashes"][task],
                date=datetime.fromtimestamp(document["date"], UTC).isoformat(timespec="seconds"),
            )


def _seeds(document: Mapping[str, Any], task: str, name: str) -> int | None:
    if name in (RAW, HOLDOUT_RAW, CHOICE):
        return None
    record = document.get(name if name in (SIMPLE_MATCH, ORACLE) else TTM, {}).get(task)
    return None if record is None else len(record["seeds"])
