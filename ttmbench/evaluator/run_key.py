"""What makes two commands the same (settings, task files, packages, code), and two data sets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from ttmbench._util import machine
from ttmbench._util.digests import OWN, Digests, digests_of_modules, digests_of_object, json_digest
from ttmbench.config import PART_KINDS, RunConfig, TTMConfig
from ttmbench.data.task_file import TaskFile
from ttmbench.plugins.registry import Registry
from ttmbench.scoring.capabilities import Model
from ttmbench.types import Group, Record

# What neither changes a number nor asks for another file.
INDIFFERENT = frozenset(
    {
        *("output_path", "batch_size", "on_error", "overwrite", "assertions", "offline", "data_dir", "include_path"),
        *("use_cache", "baseline", "track", "track_args", "model_name", "device"),
        "deterministic",  # which adds what bits depend on, where it is on
    }
)


@dataclass(frozen=True)
class RunKey:
    """A digest of everything that makes two commands the same but for the model's weights and the data."""

    content: Record  # what the digest is of, for JSON
    sha256: str  # hexadecimal

    @classmethod
    def of(
        cls,
        config: RunConfig,
        tasks: Mapping[str, TaskFile],
        settings: Mapping[str, TTMConfig],
        also: Mapping[str, TaskFile],
        code: Digests,
    ) -> RunKey:
        """The key of a run on ``tasks``, measured also on others; unique where the source of code cannot be read."""
        bits: Record = {"once": uuid4().hex} if None in code.values() else {}
        if config.deterministic:
            from ttmbench.evaluator.determinism import conditions  # imports torch, which `ttmbench score` does without

            bits["deterministic"] = conditions(config.batch_size)
        others = {name: task.spec.model_dump(mode="json") for name, task in also.items()}
        asked = config.model_dump(mode="json", exclude={*INDIFFERENT, "ttm_also"})
        content = {
            "config": {**asked, "tasks": sorted(tasks), "seeds": config.run_seeds},
            "tasks": {name: task.spec.model_dump(mode="json") for name, task in tasks.items()},
            "settings": {name: of.model_dump(mode="json") for name, of in settings.items()},
            "packages": machine.packages(),
            **({"also": others} if others else {}),
            **bits,
            **({"code": dict(code)} if code else {}),
        }
        if config.samples is not None:
            content["config"]["samples"] = hashlib.sha256(Path(config.samples).read_bytes()).hexdigest()
        return cls(content, json_digest(content))

    @property
    def code(self) -> Digests:
        """The source of the packages that the run uses."""
        return dict(self.content["code"])

    def changes_since(self, document: Record) -> str | None:
        """Which source or package versions changed since a document of the same command; None for any other change."""
        packages, code = document.get("packages"), document.get("code", {})
        if not isinstance(packages, Mapping) or not isinstance(code, Mapping):
            return None
        unread = [name for name, digest in sorted(self.code.items()) if digest is None and code.get(name, "") is None]
        if unread:
            text = f"the source of {' and '.join(unread)} cannot be read, so it may have changed"
            return text if self._asks_the_same(document) else None
        content = {name: value for name, value in self.content.items() if name not in ("once", "code")}
        content |= {"packages": packages, **({"code": code} if code else {})}
        if document.get("run_key") != json_digest(content):
            return None
        edited, now = _differing(code, self.code), self.content["packages"]
        changes = [f"the source of package{'s' if edited[1:] else ''} {' and '.join(edited)} changed"] if edited else []
        changes += [f"{name} {packages.get(name)} became {now.get(name)}" for name in _differing(packages, now)]
        return " and ".join(changes) or None

    def _asks_the_same(self, document: Record) -> bool:
        """Whether a document states the same settings and tasks."""
        stated, asked = document.get("config", {}), self.content["config"]
        settings = [name for name in asked if name not in ("tasks", "seeds")]
        tasks = sorted(document.get("task_status", {}))
        return tasks == asked["tasks"] and all(stated.get(name) == asked[name] for name in settings)


def _differing(then: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    return [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]


def code_of(
    registry: Registry,
    config: RunConfig,
    tasks: Sequence[TaskFile],
    settings: Mapping[str, TTMConfig],
    adapter: Model | None = None,
) -> Digests:
    """Digests of ttmbench and of every package with a model, source, metric, schedule or part; None if unread."""
    names: list[tuple[Mapping[str, tuple[object, str]], Any]]
    names = [(registry.adapters, model) for model in (config.model, config.rerank.get("model"))]
    for task in tasks:
        names += [(registry.sources, kind) for kind in kinds_of(task.spec.source)]
        names += [(registry.metrics, metric) for metric in task.spec.metrics]
    names += [(registry.methods, name) for name in config.methods]
    rewards = [str(value).partition(":")[0] for key, value in config.method_args.items() if key.endswith(".reward")]
    names += [(registry.adapters, model) for model in rewards if model in registry.adapters]
    names += [(registry.schedules, ttm.schedule) for ttm in settings.values()]
    names += [(registry.parts, f"{kind}={getattr(ttm, kind)}") for ttm in settings.values() for kind in PART_KINDS]
    parts = {key.partition(".")[2]: value for key, value in config.method_args.items()}
    names += [(registry.parts, f"{kind}={name}") for kind, name in parts.items() if kind in PART_KINDS]
    modules = {module for table, name in names for module in registry.modules_of(table, name)}
    objects = {} if adapter is None else digests_of_object(adapter)
    return dict(sorted({**digests_of_modules({OWN, *modules}), **objects}.items()))


def kinds_of(source: Any) -> Iterator[str]:
    """The kinds of readers that a source mapping names; sources that combine others list these in it."""
    if isinstance(source, Mapping):
        if isinstance(source.get("kind"), str):
            yield source["kind"]
        for value in source.values():
            yield from kinds_of(value)
    elif isinstance(source, list):
        for value in source:
            yield from kinds_of(value)


@dataclass(frozen=True)
class DataNow:
    """Digests of a task's data as they are now."""

    fingerprint: str  # the data digest, or that of stored features
    groups: str | None = None  # of ids and tags; None where groups have none of their own


def groups_digest(groups: Sequence[Group]) -> str:
    """sha256 over ids and tags of groups in order: what breakdowns and samples are named by, and no model sees."""
    named = [[group.group_id, sorted(group.tags.items())] for group in groups]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()
