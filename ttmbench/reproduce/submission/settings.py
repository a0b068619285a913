"""Is the run that a submission states one whole run of the package: command, configuration, model, track, secrets?"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ttmbench._util.redact import redact, scrub_values
from ttmbench.config import RunConfig, make_run_config
from ttmbench.data.catalog import find_task, select_tasks
from ttmbench.errors import TtmbenchError
from ttmbench.evaluator.run_key import stated_key
from ttmbench.evaluator.settings import datasets_of, task_settings
from ttmbench.plugins.registry import Registry, arguments_of, locate_files
from ttmbench.reproduce.submission.findings import Findings
from ttmbench.results.breakdown import aggregates
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import TRACK_ORDER
from ttmbench.types import AdapterSpec

ReadCommand = Callable[[str], Mapping[str, Any]]
"""The settings that a command line gives; raises ValueError if it is none. Nothing that it names is read."""

OF_THE_PLACE = frozenset(
    {
        *("output_path", "data_dir", "include_path", "baseline", "track", "track_args", "save_adapted", "use_cache"),
        *("log_samples", "save_scores", "assertions", "samples", "offline", "overwrite", "on_error", "batch_size"),
        *("device", "trust_remote_code"),
    }
)
"""Settings that name what lies on another machine, or change no number."""

_NAMES_WEIGHTS = ("weights_sha256", "features_sha256", "model")
_DIGEST = re.compile(r"[0-9a-f]{40,}")


def check_settings(
    document: ResultsDocument, registry: Registry, read_command: ReadCommand, findings: Findings
) -> RunConfig | None:
    """Checks what a document says of its run, and returns its configuration; None if it is none."""
    _check_status(document, findings)
    for place, text in _texts(document.to_dict(), ""):
        if redact([text]) != text if place in ("command", "git_hash") else scrub_values(text) != text:
            findings.refuse(place, "holds what looks like a key, a token or a password; take it out and revoke it")
    config = _config(document, findings)
    if config is None:
        return None
    _check_command(document, config, read_command, findings)
    _check_tasks(document, config, registry, findings)
    _check_model(document, config, registry, findings)
    return config


def check_key(document: ResultsDocument, config: RunConfig, registry: Registry, findings: Findings) -> None:
    """The run's key follows from the settings, task files and packages that the document states."""
    try:
        settings = {name: task_settings(registry, config, find_task(registry, name).spec) for name in document.results}
        expected = stated_key(document.to_dict(), config, settings)
    except TtmbenchError:
        return  # of a task or a setting that this package does not have, which is said elsewhere
    except ValueError as why:
        findings.notes.append(f"run_key is not computed again: {why}")
        return
    findings.same("run_key", document.run_key, expected, "its settings, task files and packages give")


def check_track(document: ResultsDocument, findings: Findings) -> None:
    """The track of the whole document is the furthest of its numbers'."""
    used = {track for tracks in document.tracks.values() for track in tracks.values()}
    expected = next((track for track in reversed(TRACK_ORDER) if track in used), "zero_shot")
    findings.same("track", document.track, expected, "its numbers reach")


def check_means(document: ResultsDocument, registry: Registry, findings: Findings) -> None:
    """Means over the tasks of a dataset, from the numbers of its tasks as they stand."""
    names = [name for name in document.results if name in registry.task_files]
    known = {name: task for name in names for task in select_tasks(registry, [name]).values()}
    members = datasets_of(registry, known)
    expected = aggregates(document.results, members)
    findings.same("groups", document.groups, expected, "the tasks' mean is")
    subtasks = {name: members[name] for name in expected}
    findings.same("group_subtasks", document.group_subtasks, subtasks, "the dataset has")


def _check_status(document: ResultsDocument, findings: Findings) -> None:
    if document.status != "done":
        findings.refuse("status", f"is {document.status}, a submission is of a run that is done")
    for place, error in enumerate(document.errors):
        findings.refuse(f"errors.{place}", f"task {error.task} failed: {error.message:.200}")
    for task, status in document.task_status.items():
        if status != "done" or task not in document.results:
            findings.refuse(f"task_status.{task}", f"is {status}, and every task of a submission is done, with numbers")
    if not document.results:
        findings.refuse("results", "has no task")


def _texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _texts(one, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from _texts(one, f"{place}.{index}")


def _config(document: ResultsDocument, findings: Findings) -> RunConfig | None:
    stated = {key: value for key, value in document.config.items() if key not in OF_THE_PLACE}
    if "model" not in stated:
        findings.refuse("config.model", "is missing: numbers of stored scores say nothing of a model and its run")
        return None
    try:
        config = make_run_config(stated, "is no configuration of this package")
    except TtmbenchError as error:
        findings.refuse("config", str(error))
        return None
    findings.same("model_name", document.model_name, config.model_name, "config says")
    return config


def _check_command(document: ResultsDocument, config: RunConfig, read_command: ReadCommand, findings: Findings) -> None:
    """What the command says stands in the configuration; without ``--config`` all of that stands in the command."""
    command = document.command
    if not command.strip():
        findings.refuse("command", "is empty; a submission states the command that gives its numbers")
        return
    found = config.model_dump(mode="json")
    try:
        given = dict(read_command(command))
        from_file = given.pop("config", None) is not None
        stated = {key: value for key, value in given.items() if key not in OF_THE_PLACE}
        rest = found if from_file else {"model": config.model, "tasks": config.tasks}
        as_given = make_run_config({**{key: value for key, value in rest.items() if key not in OF_THE_PLACE}, **stated})
    except (TtmbenchError, ValueError) as error:
        findings.leave_open("command", f"it cannot be read as one of ttmbench ({error})")
        return
    said = as_given.model_dump(mode="json")
    for key in stated if from_file else found:
        if key not in OF_THE_PLACE:
            findings.same(f"config.{key}", found[key], said[key], "the command says")
    if not from_file or "samples" in given:
        findings.same("config.samples", document.config.get("samples"), given.get("samples"), "the command says")


def _check_tasks(document: ResultsDocument, config: RunConfig, registry: Registry, findings: Findings) -> None:
    """The tasks are those that the configuration names: none is left out for its numbers."""
    try:
        expected = list(select_tasks(registry, config.tasks))
    except TtmbenchError as error:
        findings.refuse("config.tasks", f"{error}; results are compared on tasks that everybody has")
        return
    for task in (task for task in expected if task not in document.results):
        findings.refuse(f"results.{task}", "is missing, config.tasks names it")
    for task in (task for task in document.results if task not in expected):
        findings.refuse(f"results.{task}", "is there, config.tasks does not name it")


def _check_model(document: ResultsDocument, config: RunConfig, registry: Registry, findings: Findings) -> None:
    info, declared = document.model_info, document.fingerprint
    if not declared:
        findings.refuse("model_info.fingerprint", "is missing; it says which weights the numbers are of")
        return
    has_digest = any(isinstance(value, str) and _DIGEST.fullmatch(value) for value in declared.values())
    if not has_digest and not any(declared.get(key) for key in _NAMES_WEIGHTS):
        findings.refuse("model_info.fingerprint", "names no digest or commit of weights, and no served model")
    spec = registry.adapters[config.model][0] if config.model in registry.adapters else None
    if spec is None:
        findings.notes.append(
            f"model '{config.model}' is none that this package knows, so its weights are not compared"
        )
        return
    for key, expected in _pinned(spec, config).items():
        if key == "revision" and not declared.get(key):
            continue  # not every kind of model states it; a digest of the weights is there
        findings.same(f"model_info.fingerprint.{key}", declared.get(key), expected, f"model {config.model} has")
    if spec.card is not None and "finetuned" not in info and not config.model_args:
        known = None if spec.card.trained_on is None else list(spec.card.trained_on)
        # Documents of before do not say what their model was trained on, nor how its name came about.
        if "trained_on" in info or (known is not None and "model_name" in document.config):
            findings.same("model_info.trained_on", info.get("trained_on"), known, f"model {config.model} states")


def _pinned(spec: AdapterSpec, config: RunConfig) -> dict[str, Any]:
    """What of a fingerprint is known before a model is loaded: where its weights come from."""
    arguments = arguments_of(spec, config.model_args)
    pinned = {key: arguments[key] for key in ("pretrained", "model") if isinstance(arguments.get(key), str)}
    if not pinned:  # weights that ship with their adapter
        try:
            files = locate_files(spec, config.model_args, True) or []
        except TtmbenchError:
            files = []
        return {"pretrained": Path(files[0].name).name} if files else {}
    if config.model_args:
        # What a user names may be a folder, of which a fingerprint has the last part.
        return {key: value for key, value in pinned.items() if key not in config.model_args}
    revision = arguments.get("revision")
    return {**pinned, **({"revision": revision} if isinstance(revision, str) else {})}
