"""What a run learns, and how the results document lays it out."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from ttmbench._util import digests
from ttmbench._util import redact as secrets
from ttmbench._util.console import one_line
from ttmbench._util.third_party_errors import describe, error_line
from ttmbench.config import RunConfig
from ttmbench.errors import TtmbenchError
from ttmbench.evaluator.adapters import finetuning_shown, fits_note, model_info
from ttmbench.evaluator.run_key import RunKey, groups_digest
from ttmbench.evaluator.single_groups import sample_lines
from ttmbench.evaluator.task_result import Ranked, Scored, TaskResult
from ttmbench.protocols import Reporting
from ttmbench.results.breakdown import aggregates, shared_images_note
from ttmbench.results.clusters import clusters_note
from ttmbench.results.document import ResultsDocument, keys_by_task
from ttmbench.results.files import SCHEMA_VERSION, RunFiles
from ttmbench.results.labels import CHOICE, TRACK_ORDER, TTM, supervised_tracks
from ttmbench.scoring.capabilities import Capabilities

_COUNTS = ("requests", "answers", "answers_without_count", "prompt_tokens", "completion_tokens", "cost")
_RARE = (CHOICE, "undecided", "ranking", "truncated", "seen_in_training", "tag_means", "ttm_also")


class RunRecord:
    """Collects what a run learns and lays it out as the results document.

    ``datasets`` names the tasks of each dataset whose mean is reported once all of them are there; ``tasks`` are those
    that the run is to do, and ``key`` says which command it is (`ttmbench.evaluator.run_key.RunKey`).
    """

    def __init__(
        self,
        model_name: str,
        config: Mapping[str, Any],
        command: Sequence[str],
        started: datetime,
        datasets: Mapping[str, Sequence[str]] | None = None,
        tasks: Sequence[str] = (),
        key: RunKey | None = None,
    ) -> None:
        self._datasets = datasets or {}
        self._tasks, self._key = list(tasks), key
        self._earlier: dict[str, dict[str, Any]] = {}
        self._earlier_seconds = 0.0
        self._earlier_usage: dict[str, Any] = {}
        self._secrets = secrets.secrets_of(dict(config))
        self.config = secrets.redact_values(dict(config))
        self._model_name = model_name
        self.results: dict[str, TaskResult] = {}
        self.errors: list[dict[str, Any]] = []
        self.model_info: dict[str, Any] = {}
        self._reporting: Reporting | None = None
        self.baseline: dict[str, Any] | None = None
        self._command = secrets.redact([shlex.join(command)])
        self._started = started
        self._git_hash, self._packages = digests.git_hash(), digests.packages()

    def describe_model(
        self, model: Capabilities, trained_on: Sequence[str] | None = None, finetuning: Mapping[str, Any] | None = None
    ) -> None:
        """Takes down what the adapter states about itself; what it has used is asked for with every document.

        Args:
            model: what it is and can do.
            trained_on: image collections that it was trained on; None if that is unknown.
            finetuning: the record of the finetuning that made its weights; None if there was none.
        """
        collections = None if trained_on is None else list(trained_on)
        self.model_info = {**model_info(model), "trained_on": collections}
        if finetuning is not None:
            self.model_info["finetuned"] = finetuning_shown(finetuning)
        self._reporting = model.reporting

    def fail(self, task: str | None, stage: str, error: BaseException) -> None:
        """Takes down a failure, without secrets."""
        cause = error.__cause__ if type(error) is TtmbenchError and error.__cause__ is not None else error
        message = str(error)
        for secret in self._secrets:
            message = message.replace(secret, secrets.GONE)
        self.errors.append(
            {"task": task, "stage": stage, "type": type(cause).__name__, "message": one_line(secrets.redact([message]))}
        )

    def restore_completed(self, document: Mapping[str, Any], tasks: Sequence[str]) -> None:
        """Takes over what an earlier run of the same command has of some tasks, and when it began."""
        for task in tasks:
            self._earlier[task] = {key: document[key][task] for key in keys_by_task() if task in document.get(key, {})}
        self.errors.extend(error for error in document.get("errors", ()) if error.get("task") in tasks)
        self._started = datetime.fromtimestamp(float(document["date"])).astimezone()
        self._earlier_seconds = float(document.get("total_evaluation_time_seconds", 0.0))
        self._earlier_usage = document.get("model_info", {}).get("usage") or {}

    def _usage(self) -> dict[str, Any]:
        """What the model has used; a model that cannot tell is no reason to lose a run."""
        try:
            used = dict(self._reporting.usage()) if self._reporting else {}
            json.dumps(used, allow_nan=False)
        except Exception as error:
            return {"error": error_line(error)}
        return _with_earlier(used, self._earlier_usage)

    def document(self, status: str, clock: float, files: RunFiles | None) -> ResultsDocument:
        """The results document as it stands; ``clock`` is when the run began, by ``time.perf_counter``."""
        per_task = self._per_task()
        used = {track for tracks in per_task["tracks"].values() for track in tracks.values()}
        groups = aggregates(per_task["results"], self._datasets)
        notes = {name: shared_images_note(per_task["configs"], self._datasets[name]) for name in groups}
        notes = {name: found for name, found in notes.items() if found}
        document = {
            "schema_version": SCHEMA_VERSION,
            "status": status,
            "task_status": self._task_status(per_task["results"]),
            "track": next((track for track in reversed(TRACK_ORDER) if track in used), "zero_shot"),
            "groups": groups,
            "group_subtasks": {name: list(self._datasets[name]) for name in groups},
            **({"group_notes": notes} if notes else {}),
            **per_task,
            **({} if self.baseline is None else {"baseline": self.baseline}),
            "errors": self.errors,
            "config": self.config,
            "run_key": None if self._key is None else self._key.sha256,
            "model_name": self._model_name,
            "model_info": {**self.model_info, **({"usage": self._usage()} if self._reporting else {})},
            "date": self._started.timestamp(),
            "git_hash": self._git_hash,
            "packages": self._packages,
            **({} if self._key is None else {"code": self._key.code}),
            "hardware": digests.hardware(),
            "total_evaluation_time_seconds": self._earlier_seconds + time.perf_counter() - clock,
            "command": self._command,
            "artifacts": dict(files.artifacts) if files is not None else {},
        }
        try:
            return ResultsDocument.of(secrets.scrub_values(document, self._secrets))
        except ValidationError as error:  # a plugin's metric or a mistake of ours: what no reader would take
            raise TtmbenchError(f"the results document is not as its schema says: {describe(error)}") from None

    def _per_task(self) -> dict[str, dict[str, Any]]:
        """What holds an entry a task, the tasks in the order of the run; some keys only where they are."""
        collections = self.model_info.get("trained_on") or ()
        finetuning = self.model_info.get("finetuned")
        now = {name: _entries(result, collections, finetuning) for name, result in self.results.items()}
        known = {**self._earlier, **now}
        order = [*self._tasks, *(name for name in known if name not in self._tasks)]
        found: dict[str, dict[str, Any]] = {
            key: {name: known[name][key] for name in order if name in known and key in known[name]}
            for key in keys_by_task()
        }
        return {key: entries for key, entries in found.items() if entries or key not in _RARE}

    def _task_status(self, results: Mapping[str, Any]) -> dict[str, str]:
        failed = {error["task"] for error in self.errors}
        names = self._tasks or list(results)
        return {name: "failed" if name in failed else "done" if name in results else "pending" for name in names}


def _entries(result: TaskResult, trained_on: Sequence[str], finetuning: Mapping[str, Any] | None) -> dict[str, Any]:
    """The results document's entries of one task, by key; the rest is what the model was trained and finetuned on."""
    summary, spec, scored = result.summary, result.spec, result.scored
    seen = [name for name in spec.images_from if name in trained_on]
    notes = [*result.notes, *_notes_on_clusters(result), *_notes_on_training(seen)]
    notes += fits_note(finetuning, spec.task)
    notes += _notes_on_coverage(result.data.source.get("coverage"))
    notes += _notes_on_hardware((result.from_store or {}).get("hardware", ()))
    only_some_have = {
        "breakdowns": result.breakdowns,
        "tag_means": result.tag_means,
        **result.records(),
        "ttm_also": {name: one.record() for name, one in scored.elsewhere.items()},
        "truncated": scored.truncated,
        "seen_in_training": seen,
        "undecided": result.undecided,
        "notes": notes,
    }
    return {
        "tracks": summary.tracks if finetuning is None else supervised_tracks(summary.tracks),
        "results": summary.results,
        "ci": summary.ci,
        "chance": summary.chance,
        "ties": summary.ties,
        **{key: value for key, value in only_some_have.items() if value},
        "configs": spec.model_dump(mode="json"),
        "versions": spec.version,
        "n-shot": 0,
        "n-samples": result.counts(),
        "higher_is_better": {metric.name: metric.higher_is_better for metric in result.metrics},
        "task_hashes": result.data.fingerprint,
        "datasets": _dataset(result),
        "timing": result.seconds,
    }


def _with_earlier(used: dict[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """What a run has used in all its lives: counts added, lists joined; what a model calls otherwise is as it is now.

    >>> _with_earlier({"requests": 0, "cost": None, "served": []}, {"requests": 7, "cost": 0.5, "served": ["m"]})
    {'requests': 7, 'cost': 0.5, 'served': ['m']}
    """
    total = dict(used)
    for name, before in earlier.items():
        now = used.get(name)
        if name in _COUNTS and isinstance(before, int | float):
            total[name] = before + (now or 0)
        elif isinstance(before, list) and isinstance(now, list):
            total[name] = [*before, *(one for one in now if one not in before)]
    return total


def _notes_on_coverage(coverage: Mapping[str, Any] | None) -> list[str]:
    if coverage is None or not coverage["missing"]:
        return []
    return [
        f"the images of {coverage['here']} of {coverage['rows']} groups are here; the others are left out, so numbers "
        "compare only with those of the same groups (datasets, coverage)"
    ]


def _notes_on_hardware(earlier: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where an earlier run computed scores on other hardware, which may round in another way."""

    def words(hardware: Mapping[str, Any]) -> str:
        parts = (hardware.get(name) for name in ("cpu_capability", "machine", "accelerator"))
        return " ".join(str(one) for one in parts if one is not None)

    own = words(digests.hardware())
    others = dict.fromkeys(one for one in map(words, earlier) if one != own)
    if not others:
        return []
    return [f"raw scores from the cache were computed with {' and '.join(others)}, and this run has {own}"]


def _notes_on_clusters(result: TaskResult) -> list[str]:
    total, count = result.n_groups, result.counts().get("clusters", result.n_groups)
    return [clusters_note(total, count)] if count < total else []


def _notes_on_training(seen: Sequence[str]) -> list[str]:
    return [f"the model was trained on images of {', '.join(seen)}, of which this task's are"] if seen else []


def _dataset(result: TaskResult) -> dict[str, Any]:
    spec, data = result.spec, result.data
    return {
        "source": {key: value for key, value in data.source.items() if key != "coverage"},
        **({"coverage": data.source["coverage"]} if "coverage" in data.source else {}),
        "revision": data.source.get("revision"),
        "fingerprint": data.fingerprint,
        "n_groups": result.n_groups,
        "shape": result.shape,
        **({"true_captions": spec.group.true_captions} if spec.group.true_captions > 1 else {}),
        "license": spec.license,
        **({"groups_sha256": groups_digest(data.groups)} if data.groups else {}),
        **({"from_store": result.from_store} if result.from_store else {}),
    }


def write_artifacts(files: RunFiles, config: RunConfig, result: TaskResult) -> None:
    """Writes the files of a task: samples and scores if the run asks for them, and TTM's iterations."""
    task, data, scored = result.spec.task, result.data, result.scored
    if config.log_samples:
        files.write_lines("samples", task, sample_lines(result, config.run_seeds))
    if config.save_scores and isinstance(result.body, Ranked):
        about = {"task": task, "model": config.model_name, "data_sha256": data.fingerprint}
        clusters = data.clusters.groups if data.clusters is not None and data.shares_images else None
        files.write_ranks(task, result.body.ranks, result.body.of_query, about, clusters)
    if config.save_scores and scored.columns:
        files.write_scores(task, scored.columns, _about_scores(config, result))
    for name, elsewhere in scored.elsewhere.items():
        other = elsewhere.result
        if config.log_samples and isinstance(other.body, Scored):
            files.write_lines("also_samples", task, sample_lines(other, config.run_seeds), name)
        if config.save_scores and isinstance(other.body, Scored):
            files.write_scores(task, other.body.columns, {**_about_scores(config, other), "adapted_on": task}, name)
    for column in scored.columns:
        if column.name == TTM:
            # Times stay in the results document, so that the same run writes the same lines.
            records = column.record["iterations"]
            lines = [{key: value for key, value in record.items() if key != "seconds"} for record in records]
            files.write_lines("ttm", task, lines)


def _about_scores(config: RunConfig, result: TaskResult) -> dict[str, str]:
    spec, data, subsets, several = result.spec, result.data, result.scored.subsets, result.spec.group.true_captions
    about = {
        "task": spec.task,
        "task_version": str(spec.version),
        "model": config.model_name,
        "seeds": json.dumps(config.run_seeds),
        "group_ids": json.dumps([group.group_id for group in data.groups]),
        **({"true_captions": str(several)} if several > 1 else {}),
        "data_sha256": data.fingerprint,
        **({"subsets": json.dumps(subsets)} if subsets else {}),
    }
    if data.clusters is not None and data.shares_images:
        about["clusters"] = json.dumps(data.clusters.groups.tolist())
        about["image_clusters"] = json.dumps(data.clusters.images.reshape(-1).tolist())
    return about
