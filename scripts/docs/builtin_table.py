"""The table ``builtin`` of ``ttmbench reproduce``: everything in its two files comes from the reference runs."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping, Sequence

import yaml

from ttmbench.results.labels import (
    OVERFITTED_COLUMN,
    PUBLISHED,
    RAW_COLUMN,
    SIMPLE_MATCH_COLUMN,
    TTM_COLUMN,
)
from ttmbench.results.numbers import DocumentFile, Number, newest

COLUMNS = (RAW_COLUMN, SIMPLE_MATCH_COLUMN, OVERFITTED_COLUMN, TTM_COLUMN)
HEAD = """\
# Made by scripts/docs/reference.py from the reference runs in results/reference; do not edit by hand.
"""


def table_of(runs: Sequence[DocumentFile]) -> tuple[str, str]:
    """YAML and CSV of the table of some finished runs on whole tasks, all with the same seeds."""
    numbers = newest(number for run in runs for number in run.numbers() if _is_shown(number))
    records = [record for run in runs for record in (*run.document.ttm.values(), *run.document.simple_match.values())]
    seeds = {tuple(record.seeds) for record in records}
    if len(seeds) != 1:
        sys.exit(f"the runs have to share their seeds, and have {sorted(seeds)}")
    for number in numbers:
        if number.groups != number.groups_of_task:
            sys.exit(f"{number.file}: {number.task} has {number.groups} of {number.groups_of_task} groups")
    spec = {
        "paper": "ttmbench's own reference runs",
        "source": "results/reference",
        "where": ", ".join(run.path.name for run in runs),
        "shows": "the built-in models on rendered tasks, which need no download: raw, SimpleMatch, overfitted and TTM",
        "numbers": "builtin.csv",
        "decimals": 2,
        "runs": len(min(seeds)),
        "own": True,
        "tolerance": {"level": 0.99, "groups": 1},
        "settings": {"seeds": list(min(seeds))},
        "tasks": {
            number.task: {"groups": number.groups, "version": number.version, "data": number.data}
            for number in sorted(numbers, key=lambda number: number.task)
        },
        "models": {run.model: _model(run.document.config) for run in sorted(runs, key=lambda run: run.model)},
    }
    return HEAD + yaml.safe_dump(spec, sort_keys=False, width=120), _csv(numbers)


def _is_shown(number: Number) -> bool:
    return any(number.filter == column.filter for column in COLUMNS) and number.value is not None


def _model(config: Mapping) -> dict:
    arguments = {"model_args": config["model_args"]} if config["model_args"] else {}
    return {"track": "zero_shot", "model": config["model"], **arguments}


def _csv(numbers: Sequence[Number]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["source", "table", "task", "model", "method", "metric", "percent", "std_percent"])
    for number in numbers:
        method = next(name for name, column in PUBLISHED.items() if column.name == number.method)
        spread = "" if number.seed_std is None else f"{100 * number.seed_std:.2f}"
        value = f"{100 * (number.value or 0):.2f}"
        writer.writerow(["ttmbench", number.file, number.task, number.model, method, number.metric, value, spread])
    return out.getvalue()
