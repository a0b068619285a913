"""What makes two commands the same: every setting that can change a number, the task files and the packages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ttmbench._util.redact import GONE
from ttmbench.config import RunConfig, TTMConfig
from ttmbench.data.task_file import TaskFile
from ttmbench.results import environment

# What neither changes a number nor asks for another file.
INDIFFERENT = frozenset(
    {
        *("output_path", "batch_size", "on_error", "overwrite", "assertions", "offline", "data_dir", "include_path"),
        *("use_cache", "baseline", "track", "track_args", "model_name"),
        "deterministic",  # which adds what bits depend on, where it is on
    }
)


def run_key(
    config: RunConfig,
    tasks: Mapping[str, TaskFile],
    settings: Mapping[str, TTMConfig],
    also: Mapping[str, TaskFile] = MappingProxyType({}),
) -> str:
    """A digest of everything that makes two commands the same but for the model's weights and the data.

    Args:
        config: the run.
        tasks: its tasks.
        settings: of the test-time stage, by task.
        also: other tasks that adapted models are measured on.

    Returns:
        sha256, hexadecimal.
    """
    asked = config.model_dump(mode="json")
    if config.samples is not None:
        asked["samples"] = hashlib.sha256(Path(config.samples).read_bytes()).hexdigest()
    return _digest(
        asked,
        config.run_seeds,
        {name: task.spec.model_dump(mode="json") for name, task in tasks.items()},
        {name: one.model_dump(mode="json") for name, one in settings.items()} if config.adapts else {},
        environment.packages(),
        {name: one.spec.model_dump(mode="json") for name, one in also.items()},
        _bits_depend_on(config),
    )


def stated_key(document: Mapping[str, Any], config: RunConfig, settings: Mapping[str, TTMConfig]) -> str:
    """The same digest of what a results document states of its run.

    Args:
        document: of results.
        config: its run, read from it.
        settings: of the test-time stage, by task, as this package makes them of the run.

    Returns:
        sha256, hexadecimal.

    Raises:
        ValueError: a document does not hold all that goes in; the reason.
    """
    asked, packages = document["config"], document["packages"]
    if packages.get("ttmbench") != environment.packages()["ttmbench"]:
        raise ValueError(f"it is of ttmbench {packages.get('ttmbench')}, whose settings and tasks are others")
    for is_so, why in (
        (asked.get("deterministic"), "with --deterministic it hangs on the processor, too"),
        (asked.get("samples") is not None, "the file of --samples is part of it"),
        (bool(asked.get("ttm_also")), "the files of the tasks of --ttm_also are part of it"),
        (GONE in json.dumps(asked), "a secret is part of it"),
    ):
        if is_so:
            raise ValueError(why)
    told = {name: one.model_dump(mode="json") for name, one in settings.items()} if config.adapts else {}
    return _digest(asked, config.run_seeds, document["configs"], told, packages, {}, {})


def _digest(
    config: Mapping[str, Any],
    seeds: Sequence[int],
    tasks: Mapping[str, Any],
    settings: Mapping[str, Any],
    packages: Mapping[str, str],
    also: Mapping[str, Any],
    bits: Mapping[str, Any],
) -> str:
    asked = {key: value for key, value in config.items() if key not in INDIFFERENT and key != "ttm_also"}
    content = {
        "config": {**asked, "tasks": sorted(tasks), "seeds": list(seeds)},
        "tasks": tasks,
        "settings": settings,
        "packages": packages,
        **({"also": also} if also else {}),
        **bits,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _bits_depend_on(config: RunConfig) -> dict[str, Any]:
    """What else a run is named by where bits count; nothing where they do not."""
    if not config.deterministic:
        return {}
    from ttmbench.evaluator.determinism import conditions  # imports torch, which `ttmbench score` does without

    return {"deterministic": conditions(config.batch_size)}
