"""The matrix "adapted on, measured on": what adapting a model to each of several tasks does to it on all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ttmbench._util.redact import redact, scrub_values, secrets_of
from ttmbench.config import RunConfig
from ttmbench.errors import UsageError
from ttmbench.evaluator.adapters import make_adapter
from ttmbench.evaluator.run import run
from ttmbench.evaluator.settings import model_settings, tasks_of
from ttmbench.plugins.registry import build_registry
from ttmbench.results.document import ResultsDocument
from ttmbench.results.files import SCHEMA_VERSION
from ttmbench.results.transfer_deltas import Transfer, transfers_of
from ttmbench.scoring.capabilities import capabilities_of

TRANSFER = "transfer"


def transfer_document(config: RunConfig, started: datetime, command: Sequence[str] = ()) -> dict[str, Any]:
    """Adapts a model to each task, and measures what became of it on every one of them.

    Args:
        config: model, tasks and settings; its ``output_path`` is not written to.
        started: when it began, for the record.
        command: the command line, for the record.

    Returns:
        The document of the analysis.

    Raises:
        UsageError: fewer than two tasks, or a model that cannot be adapted.
        DataError: data or weights out of reach.
        TtmbenchError: a task failed.
    """
    registry = build_registry(config.include_path)
    tasks = list(tasks_of(registry, config))
    if len(tasks) < 2:
        raise UsageError(f"'{TRANSFER}' needs at least two tasks (--tasks A,B), got {', '.join(tasks)}")
    adapter = make_adapter(registry, config.model, config.model_args, model_settings(config))
    if capabilities_of(adapter).loss is None:
        raise UsageError(f"model {config.model} cannot be adapted, so '{TRANSFER}' says nothing of it")
    whole = config.model_copy(update={"ttm": True, "ttm_also": tasks, "output_path": None, "on_error": "raise"})
    found = run(whole, adapter=adapter, command=command).document
    document = {
        "schema_version": SCHEMA_VERSION,
        "analysis": TRANSFER,
        "tasks": tasks,
        "task_versions": found["versions"],
        "n_groups": {task: found["n-samples"][task]["effective"] for task in tasks},
        "sources": {task: found["datasets"][task]["source"] for task in tasks},
        "data_sha256": found["task_hashes"],
        "model_name": config.model_name,
        "model_info": found["model_info"],
        "reads_labels": "to report",
        "hyperparameters": {task: found["ttm"][task]["hyperparameters"] for task in tasks},
        "seeds": config.run_seeds,
        "data": matrix(tasks, transfers_of(ResultsDocument.of(found)), found),
        "date": started.timestamp(),
        "deterministic": config.deterministic,
        "packages": found["packages"],
        "command": redact(command),
    }
    scrubbed: dict[str, Any] = scrub_values(document, secrets_of(config.model_args))
    return scrubbed


def matrix(tasks: Sequence[str], transfers: Sequence[Transfer], document: Mapping[str, Any]) -> dict[str, Any]:
    """Rows adapted on, columns measured on.

    Args:
        tasks: the order of both.
        transfers: of a results document in which each task was adapted to.
        document: that document.

    Returns:
        ``metrics`` and ``raw`` by column, and ``cells``: rows of what the adapted model is and its difference to raw.
    """
    by_place: dict[tuple[str, str], Transfer] = {}
    for one in transfers:
        if one.shown:
            by_place.setdefault((one.adapted_on, one.measured_on), one)
    found = {place: _cell(document, one) for place, one in by_place.items()}
    return {
        "adapted_on": list(tasks),
        "measured_on": list(tasks),
        "metrics": {task: by_place[task, task].metric for task in tasks},
        "raw": {task: by_place[task, task].raw for task in tasks},
        "cells": [[found[row, column] for column in tasks] for row in tasks],
    }


def _cell(document: Mapping[str, Any], one: Transfer) -> dict[str, Any]:
    own = one.adapted_on == one.measured_on
    record = document["ttm"][one.adapted_on] if own else document["ttm_also"][one.adapted_on][one.measured_on]
    difference = record["differences"].get(one.metric) or {}
    return {
        "value": one.value,
        "seed_std": one.seed_std,
        "difference": difference.get("value"),
        "ci": difference.get("ci"),
        "by_seed": difference.get("by_seed"),
        "seed_ci": difference.get("seed_ci"),
    }
