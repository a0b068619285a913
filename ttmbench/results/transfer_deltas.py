"""What documents state of models that were adapted to one task and measured on another.

They are no results of the other task: they have no track, and no table ranks them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ttmbench.results.labels import AT, RAW, TTM, key_of, name_of, numbers_in, seed_std_key, stderr_key
from ttmbench.results.models import stated_model
from ttmbench.results.numbers import Number, checked, date_of

TITLE = "Adapted to one task, measured on another: what adaptation costs elsewhere, in no ranking"
MATCHES = ("group_match", "global_assignment_accuracy")


@dataclass(frozen=True)
class Transfer:
    """One metric of a task, measured with a model that TTM adapted to a task. Rates are fractions.

    Attributes:
        adapted_on: the task that the model was adapted to.
        measured_on: the task that the metric is of; the same one for what adaptation does to its own task.
        metric: its name.
        raw: of the model as it was.
        value: of the adapted model, the mean over seeds.
        seed_std: over seeds.
        seeds: how many.
        difference: ``value - raw``.
        ci_low: lower end of the difference's 95 % interval over groups.
        ci_high: its upper end.
        seed_ci_low: lower end of its 95 % interval over seeds.
        seed_ci_high: its upper end.
        chance: of random scores.
        groups: that were scored.
        groups_of_task: that the task has.
        shown: whether tables that have room for one metric of the task show this one.
        model: as the run calls it.
        fingerprint: by which the model is known.
        date: of the run, seconds since 1970.
        file: the results document.
    """

    adapted_on: str
    measured_on: str
    metric: str
    raw: float | None
    value: float | None
    seed_std: float | None
    seeds: int
    difference: float | None
    ci_low: float | None
    ci_high: float | None
    seed_ci_low: float | None
    seed_ci_high: float | None
    chance: float | None
    groups: int
    groups_of_task: int
    shown: bool
    model: str = ""
    fingerprint: str | None = None
    date: float = 0.0
    file: str = ""

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the difference's interval over groups."""
        return None if self.ci_low is None or self.ci_high is None else (self.ci_low, self.ci_high)

    @property
    def limited(self) -> bool:
        """Whether it is of a part of the task."""
        return self.groups < self.groups_of_task

    def row(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def transfers_of(document: Mapping[str, Any], file: str = "") -> list[Transfer]:
    """What a results document says of adapted models on other tasks, and beside it of their own.

    Args:
        document: of a run with ``--ttm_also``; of another run there is nothing.
        file: its name.

    Returns:
        By the task adapted to, its own first, then the other tasks in the document's order.
    """
    return [one for task in document.get("ttm_also") or {} for one in _of_task(document, task, file)]


def numbers_elsewhere(document: Mapping[str, Any], file: str = "") -> list[Number]:
    """Every number of adapted models on other tasks, to stand beside `ttmbench.results.numbers.numbers_of`.

    Args:
        document: of a run with ``--ttm_also``; of another run there is nothing.
        file: its name.

    Returns:
        Numbers of the task ``adapted to@measured on``, without a track: filter ``none`` is the model as it was on the
        other task, ``ttm`` the adapted one.

    Raises:
        DataError: the document is not as its schema says.
    """
    return checked(_numbers(document, file))


def _numbers(document: Mapping[str, Any], file: str) -> Iterator[Number]:
    fingerprint = stated_model(document).fingerprint
    pairs = ((to, on, one) for to, others in (document.get("ttm_also") or {}).items() for on, one in others.items())
    for adapted_to, measured_on, record in pairs:
        results, counts = record["results"], record["n-samples"]
        for metric, name in numbers_in(results):
            key = key_of(metric, name)
            low, high = record["ci"].get(key) or (None, None)
            yield Number(
                task=f"{adapted_to}{AT}{measured_on}",
                metric=metric,
                filter=name,
                method=name_of(name, metric=metric),
                track=None,
                value=results[key],
                stderr=results.get(stderr_key(metric, name)),
                ci_low=low,
                ci_high=high,
                chance=record["chance"].get(metric),
                ties=record["ties"].get(key),
                seed_std=results.get(seed_std_key(metric, name)),
                seeds=len(record["seeds"]) if name == TTM else None,
                groups=counts["effective"],
                groups_of_task=counts["original"],
                version=record["version"],
                data=record["fingerprint"],
                limited=counts["effective"] < counts["original"],
                fingerprint=fingerprint,
                adapted_to=adapted_to,
                model=str(document.get("model_name") or ""),
                date=date_of(document),
                file=file,
            )


def shown_metrics(metrics: Collection[str], matching: str) -> list[str]:
    """The metrics of a task that a table shows where there is no room for all: the match, else all there are.

    >>> shown_metrics(["group_score", "group_match"], "group"), shown_metrics(["recall_at_1", "recall_at_5"], "group")
    (['group_match'], ['recall_at_1', 'recall_at_5'])
    """
    match = MATCHES[matching == "global"]
    return [match] if match in metrics else list(metrics)


def _of_task(document: Mapping[str, Any], task: str, file: str) -> Iterator[Transfer]:
    own = (document["ttm"].get(task) or {}).get("differences")
    if own is not None and task in document["results"]:
        record = {
            "seeds": document["ttm"][task]["seeds"],
            "differences": own,
            "matching": document["configs"][task]["matching"],
            "n-samples": document["n-samples"][task],
            **{key: document[key][task] for key in ("results", "chance")},
        }
        yield from _rows(document, task, task, record, file)
    for other, record in document["ttm_also"][task].items():
        yield from _rows(document, task, other, record, file)


def _rows(
    document: Mapping[str, Any], task: str, other: str, record: Mapping[str, Any], file: str
) -> Iterator[Transfer]:
    results = record["results"]
    names = [metric for metric, name in numbers_in(results) if name == RAW]
    shown = shown_metrics(names, record["matching"])
    for metric in names:
        if key_of(metric, TTM) not in results:
            continue
        difference = record["differences"].get(metric) or {}
        low, high = difference.get("ci") or (None, None)
        seed_low, seed_high = difference.get("seed_ci") or (None, None)
        yield Transfer(
            adapted_on=task,
            measured_on=other,
            metric=metric,
            raw=results[key_of(metric, RAW)],
            value=results[key_of(metric, TTM)],
            seed_std=results.get(seed_std_key(metric, TTM)),
            seeds=len(record["seeds"]),
            difference=difference.get("value"),
            ci_low=low,
            ci_high=high,
            seed_ci_low=seed_low,
            seed_ci_high=seed_high,
            chance=record["chance"].get(metric),
            groups=record["n-samples"]["effective"],
            groups_of_task=record["n-samples"]["original"],
            shown=metric in shown,
            model=str(document.get("model_name") or ""),
            fingerprint=stated_model(document).fingerprint,
            date=float(document.get("date") or 0.0),
            file=file,
        )
