"""A submission checked as a whole: document, files beside it, tasks, numbers and the records of adaptation."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ttmbench._util.console import one_line
from ttmbench._util.files import file_digest
from ttmbench._util.limits import limit, raised_by
from ttmbench.data.catalog import find_task
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import TtmbenchError
from ttmbench.evaluator.score_task import load_data
from ttmbench.plugins.registry import Registry
from ttmbench.reproduce.submission.adaptation import check_adaptation
from ttmbench.reproduce.submission.findings import Findings
from ttmbench.reproduce.submission.numbers import check_numbers, check_transfer
from ttmbench.reproduce.submission.settings import ReadCommand, check_key, check_means, check_settings, check_track
from ttmbench.reproduce.submission.task import Artifacts, SubmittedTask, check_task
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import RAW
from ttmbench.results.models import stated_model
from ttmbench.results.reader import read_document
from ttmbench.results.records import Artifact
from ttmbench.types import Group

KINDS = ("samples", "scores", "ranks", "ttm", "also_samples", "also_scores")


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
    document = read_document(path)
    findings = Findings(model=stated_model(document).fingerprint)
    config = check_settings(document, registry, read_command, findings)
    artifacts = _sound_files(path.parent, document, findings)
    check_track(document, findings)
    check_means(document, registry, findings)
    if config is None:
        return findings
    check_key(document, config, registry, findings)
    for name in (name for name in document.results if name in registry.task_files):
        file = find_task(registry, name)
        task = SubmittedTask(document, file.spec, config, registry, artifacts, findings)
        if check_task(task):
            if with_data and document.config.get("samples") is None and "features_sha256" not in document.fingerprint:
                task = replace(task, groups=_data_at_hand(task, file, data_dir))
            _check_content(task)
    return findings


def _check_content(task: SubmittedTask) -> None:
    stored = check_numbers(task)
    if stored is not None:
        raw = stored.scores[RAW][0].groups
        digest = hashlib.sha256(f"{raw.shape}".encode() + raw.tobytes()).hexdigest()
        task.findings.raw_scores[task.name] = digest
    if task.spec.kind == "groups":
        check_adaptation(task, stored)
        check_transfer(task)


def refuse_copies(checked: Mapping[str, Findings]) -> None:
    """Refuses submissions of two models that have the very same scores: one of them is a copy.

    Takes the findings by the name of the document, and adds to them.
    """
    first: dict[tuple[str, str], str] = {}
    for name, findings in checked.items():
        for task, digest in findings.raw_scores.items():
            other = first.setdefault((task, digest), name)
            if checked[other].model != findings.model:
                words = "holds bit for bit the raw scores of {}, which is of another model"
                findings.refuse(f"results.{task}", words.format(other))
                checked[other].refuse(f"results.{task}", words.format(name))


def _sound_files(folder: Path, document: ResultsDocument, findings: Findings) -> Artifacts:
    """The files beside a document that may be read: there, beside it and nowhere else, and as its digests say."""
    files: dict[tuple[str, str, str | None], Path] = {}
    for name, about in document.artifacts.items():
        kind, task, other = about.kind, about.task, (about.model_extra or {}).get("measured_on")
        if kind not in KINDS or task not in document.results or not isinstance(other, str | None):
            why: str | None = f"is of kind {kind!s:.40} and task {task!s:.100}, which the run does not have"
        elif (kind, task, other) in files:
            why = f"is a second file of {kind} of task {task}"
        else:
            why = _why_not(folder, name, about)
        if why is not None:
            findings.refuse(f"artifacts.{one_line(name, 120)}", why)
        elif task is not None:
            files[kind, task, other] = folder / name
    return files


def _why_not(folder: Path, name: str, about: Artifact) -> str | None:
    """Why a file is not read; None if nothing is wrong with it."""
    if Path(name).name != name or name in ("", ".", "..") or "\\" in name or "\0" in name:
        return "is no plain name of a file beside the document"
    path = folder / name
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            return "is no regular file (links are not followed)"
        if found.st_size != about.bytes:
            return f"has {found.st_size} bytes, the document says {about.bytes}"
        most = "array_bytes" if name.endswith(".safetensors") else "text_bytes"
        if found.st_size > limit(most):
            return f"is too large: {found.st_size} bytes, at most {limit(most)} are read; {raised_by(most)}"
        digest = file_digest(path)
    except (OSError, ValueError) as error:
        return f"cannot be read ({getattr(error, 'strerror', None) or error})"
    if digest != about.sha256:
        return f"has sha256 {digest[:16]}..., the document says {about.sha256[:16]}..., so it is another file"
    return None


def _data_at_hand(task: SubmittedTask, file: TaskFile, data_dir: str | Path | None) -> Sequence[Group] | None:
    """The task's groups, read without the network, if their digest is the stated one; None if they are not here."""
    from ttmbench.scoring.fingerprint import Fingerprint  # with torch, which no `--help` should wait for

    name, place = task.name, None if data_dir is None else str(data_dir)
    here = task.config.model_copy(update={"offline": True, "data_dir": place})
    try:
        groups = load_data(task.registry, here, file, None).groups
    except TtmbenchError as error:
        why = f"{name}: its data are not at hand, so their digest is not compared ({str(error)[:200]})"
        task.findings.notes.append(why)
        return None
    digest = Fingerprint(groups, None)
    digest.add_remaining()
    stated, place_of = task.document.datasets[name].fingerprint, f"task_hashes.{name}"
    return groups if task.findings.same(place_of, stated, digest.hexdigest(), "the data at hand give") else None
