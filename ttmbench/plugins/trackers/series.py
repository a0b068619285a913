"""What a tracker is told, by name: curves of TTM, final numbers under their track, and the table of results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import key_of, numbers_in
from ttmbench.results.numbers import numbers_of

UNRANKED = "unranked"  # controls and held-out groups have no track
COLUMNS = ("task", "filter", "column", "track", "metric", "value", "stderr", "ci_low", "ci_high", "chance")


def curve_name(task: str, seed: int) -> str:
    """What the curves of a task and a seed begin with.

    >>> curve_name("winoground", 0)
    'ttm/winoground/seed_0'
    """
    return f"ttm/{task}/seed_{seed}"


def curve_values(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an iteration; undefined ones are left out.

    Args:
        record: an iteration as the results document has it.

    Returns:
        name -> value; ``loss`` is that of the last epoch, a metric has its own name.
    """
    names = ("threshold", "selected", "coverage", "tied", "pseudo_label_accuracy", "learning_rate", "seconds")
    values = {name: record[name] for name in names} | dict(record["metrics"])
    if record["loss"]:
        values["loss"] = record["loss"][-1]
    return {name: float(value) for name, value in values.items() if value is not None}


def final_values(task: str, results: Mapping[str, float | None], tracks: Mapping[str, str]) -> dict[str, float]:
    """Numbers of a task, each under its track, so that a raw one never stands among those after TTM.

    Args:
        task: its name.
        results: ``metric,filter`` -> value, with ``metric_stderr,filter`` and ``metric_seed_std,filter``.
        tracks: ``metric,filter`` -> track.

    Returns:
        ``track/task/filter/metric`` -> value; undefined ones are left out.

    >>> final_values("t", {"text_score,none": 0.5, "group_match,ttm": None}, {"text_score,none": "zero_shot"})
    {'zero_shot/t/none/text_score': 0.5}
    """
    found: dict[str, float] = {}
    for metric, name in numbers_in(results):
        place = f"{tracks.get(key_of(metric, name), UNRANKED)}/{task}/{name}/"
        values = {
            place + kind: results.get(key_of(kind, name)) for kind in (metric, f"{metric}_stderr", f"{metric}_seed_std")
        }
        found |= {key: float(value) for key, value in values.items() if value is not None}
    return found


def result_rows(document: Mapping[str, Any]) -> list[list[Any]]:
    """The results document as a table with the columns `COLUMNS`."""
    return [
        [
            *(one.task, one.filter, one.method, one.track or UNRANKED, one.metric),
            *(one.value, one.stderr, one.ci_low, one.ci_high, one.chance),
        ]
        for one in numbers_of(ResultsDocument.of(document))
    ]
