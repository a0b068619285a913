"""A submission checked as a whole: document, files beside it, tasks, numbers and the records of adaptation."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ttmbench.config import RunConfig
from ttmbench.data.catalog import find_task
from ttmbench.plugins.registry import Registry
from ttmbench.reproduce.submission.adaptation import check_adaptation
from ttmbench.reproduce.submission.artifacts import Artifacts, check_artifacts
from ttmbench.reproduce.submission.data import data_at_hand
from ttmbench.reproduce.submission.elsewhere import check_elsewhere
from ttmbench.reproduce.submission.findings import Findings
from ttmbench.reproduce.submission.numbers import check_numbers
from ttmbench.reproduce.submission.settings import ReadCommand, check_key, check_means, check_settings, check_track
from ttmbench.reproduce.submission.tasks import OfTask, check_task
from ttmbench.results.labels import RAW
from ttmbench.results.models import stated_model
from ttmbench.results.reader import read_document


def check_submission(
    path: Path,
    registry: Registry,
    read_command: ReadCommand,
    *,
    with_data: bool = True,
    data_dir: str | Path | None = None,
) -> Findings:
    """Checks a results document and the files beside it.

    Args:
        path: of the document.
        registry: models, tasks and metrics of this package and its plugins.
        read_command: reads the command that the document states.
        with_data: also compare with the tasks' data, where these are on this machine.
        data_dir: folder of data files.

    Returns:
        What is wrong, what cannot be checked, and what was compared.

    Raises:
        DataError: the file is no results document.
    """
    typed = read_document(path)
    document = typed.to_dict()
    findings = Findings(model=stated_model(typed).fingerprint)
    config = check_settings(document, registry, read_command, findings)
    artifacts = check_artifacts(path, document, findings)
    check_track(document, findings)
    check_means(document, registry, findings)
    if config is not None:
        check_key(document, config, registry, findings)
        for task in document["results"]:
            if task in registry.task_files:
                folder = data_dir if with_data else None
                _check_task(document, task, config, registry, artifacts, with_data, folder, findings)
    return findings


def _check_task(
    document: Mapping[str, Any],
    name: str,
    config: RunConfig,
    registry: Registry,
    artifacts: Artifacts,
    with_data: bool,
    data_dir: str | Path | None,
    findings: Findings,
) -> None:
    task = find_task(registry, name)
    if not check_task(document, task.spec, config, registry, findings):
        return
    groups = None
    if with_data and document["config"].get("samples") is None and "features_sha256" not in _fingerprint(document):
        fingerprint = document["datasets"][name]["fingerprint"]
        groups = data_at_hand(registry, task, config, fingerprint, data_dir, findings)
    one = OfTask(document, task.spec, config, registry, artifacts, groups)
    stored = check_numbers(one, findings)
    if stored is not None:
        raw = stored.scores[RAW][0].groups
        findings.raw_scores[name] = hashlib.sha256(f"{raw.shape}".encode() + raw.tobytes()).hexdigest()
    if task.spec.kind == "groups":
        check_adaptation(one, stored, findings)
        check_elsewhere(one, findings)


def _fingerprint(document: Mapping[str, Any]) -> Mapping[str, Any]:
    declared = document["model_info"].get("fingerprint")
    return declared if isinstance(declared, Mapping) else {}


def refuse_copies(checked: Mapping[str, Findings]) -> None:
    """Refuses submissions of two models that have the very same scores: one of them is a copy.

    Args:
        checked: name of the document -> its findings, which are added to.
    """
    first: dict[tuple[str, str], str] = {}
    for name, findings in checked.items():
        for task, digest in findings.raw_scores.items():
            other = first.setdefault((task, digest), name)
            if checked[other].model != findings.model:
                words = "holds bit for bit the raw scores of {}, which is of another model"
                findings.refuse(f"results.{task}", words.format(other))
                checked[other].refuse(f"results.{task}", words.format(name))
