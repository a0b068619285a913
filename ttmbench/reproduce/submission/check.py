"""A submission checked as a whole: each field against the document that its command, data and scores give."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from ttmbench._util.text import read_json
from ttmbench.errors import TtmbenchError
from ttmbench.evaluator.reference_sets import reference_tasks
from ttmbench.evaluator.run_key import code_of, stated_key
from ttmbench.evaluator.settings import also_tasks, task_settings, tasks_of
from ttmbench.plugins.registry import Registry
from ttmbench.reproduce.submission.files import Files
from ttmbench.reproduce.submission.findings import Findings
from ttmbench.reproduce.submission.rebuild import Submission
from ttmbench.reproduce.submission.recorded import check_recorded, check_texts, check_value
from ttmbench.reproduce.submission.settings import ReadCommand, check_model, resolve
from ttmbench.results.document import ResultsDocument
from ttmbench.results.models import checkpoint_of
from ttmbench.results.reader import read_document
from ttmbench.results.records import RECOMPUTED, Check, Part

NEAR_RANKS, NEAR_SCORES = 0.999, 1e-3
"""Two arrays are of one model from this rank correlation on, or up to this difference relative to their range."""


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
        DataError: the file is not a results document.
    """
    document = read_document(path)
    findings = Findings(checkpoint=checkpoint_of(document.fingerprint))
    _check_form(read_json(path), document, findings)
    config = resolve(document, registry, read_command, findings)
    check_recorded(document, findings, time.time())
    if config is None:
        return findings
    check_model(document, config, registry, findings)
    try:
        tasks = tasks_of(registry, config)
        settings = {name: task_settings(registry, config, task.spec) for name, task in tasks.items()}
        also = also_tasks(registry, config, tasks)
        others = {**also, **reference_tasks(registry, config)}
        adapted = settings if registry.adapts(config) else {}
        key = stated_key(document, config, tasks, adapted, others)
        used = sorted(code_of(registry, config, [*tasks.values(), *others.values()], adapted))
        findings.same("code", sorted(document.code), used, "the command takes code from")
    except TtmbenchError as error:
        findings.refuse("command", f"{error}; results are compared on tasks that everybody has")
        return findings
    except ValueError as why:
        findings.refuse("run_key", f"cannot be computed again: {why}")
        return findings
    files = Files.of(path, document, config)
    folder = None if data_dir is None else str(data_dir)
    submission = Submission(document, config, registry, tasks, settings, also, key, files, findings, with_data, folder)
    try:
        expected = submission.expected()
    except TtmbenchError as error:
        findings.refuse("results", str(error))
        return findings
    _compare(document, expected, "", RECOMPUTED, findings)
    return findings


def _check_form(raw: dict[str, object], document: ResultsDocument, findings: Findings) -> None:
    """The file is what a run of this version writes: no key that is unknown here, and no value in another form."""
    written = document.to_dict()
    for key in dict.fromkeys([*raw, *written]):
        if key not in written:
            findings.refuse(key, "is a key that no run of this version writes")
        elif key not in raw or json.dumps(raw[key], sort_keys=True) != json.dumps(written[key], sort_keys=True):
            findings.refuse(key, "is not as a run writes it: an unknown key, or another form of a value (-0.0)")
    check_texts(raw, findings)
    if document.status != "done" or not document.results:
        findings.refuse("status", f"is {document.status}, a submission is of a run that is done and has numbers")
    for index, error in enumerate(document.errors):
        findings.refuse(f"errors.{index}", f"task {error.task} failed: {error.message:.200}")


def _compare(found: object, expected: object, key: str, check: Check, findings: Findings) -> None:
    """Walks both documents: recomputed fields are equal, recorded and free ones are of reasonable form and size."""
    if isinstance(found, Part) and isinstance(expected, Part):
        for name, about in type(found).model_fields.items():
            child_key = f"{key}.{about.alias or name}" if key else (about.alias or name)
            kind = next(item for item in about.metadata if isinstance(item, Check))
            if (name in found.model_fields_set) != (name in expected.model_fields_set):
                present = name in found.model_fields_set
                findings.refuse(child_key, "is present, but the run does not write it" if present else "is missing")
            _compare(getattr(found, name), getattr(expected, name), child_key, kind, findings)
        extra = found.model_extra, expected.model_extra
        findings.same(key, extra[0] or {}, extra[1] or {}, "the run writes")
    elif check != RECOMPUTED and not _has_parts(found):
        check_value(key, found, findings)
    elif isinstance(found, Mapping) and isinstance(expected, Mapping):
        for name in dict.fromkeys([*expected, *found]):
            child_key = f"{key}.{name}"
            if name not in found:
                findings.refuse(child_key, "is missing; the command, data and scores give it")
            elif name not in expected:
                findings.refuse(child_key, "is present, but the command, data and scores do not give it")
            else:
                _compare(found[name], expected[name], child_key, check, findings)
    elif isinstance(found, list) and isinstance(expected, list) and _has_parts(found) and len(found) == len(expected):
        for number, (left, right) in enumerate(zip(found, expected, strict=True)):
            _compare(left, right, f"{key}.{number}", check, findings)
    else:
        findings.same(key, found, expected, _BY.get(key.partition(".")[0], "the command, data and scores give"))


_BY = {"config": "the command gives", "configs": "the task has", "model_name": "the command gives"}


def _has_parts(value: object) -> bool:
    """Whether a value consists of parts, which have fields with checks of their own."""
    if isinstance(value, Mapping):
        return any(map(_has_parts, value.values()))
    return isinstance(value, Part) or (isinstance(value, list) and any(map(_has_parts, value)))


def refuse_copies(checked: Mapping[str, Findings]) -> None:
    """Refuses submissions of two checkpoints with (nearly) the same scores; of one checkpoint, the later reproduces it.

    Takes the findings by the name of the document, and adds to them.
    """
    for (name, first), (other_name, second) in combinations(checked.items(), 2):
        for task in first.raw_scores.keys() & second.raw_scores.keys():
            if not _nearly_equal(first.raw_scores[task], second.raw_scores[task]):
                continue
            if first.checkpoint == second.checkpoint:
                second.notes.append(f"{task}: reproduces the raw scores of {name}, which names the same checkpoint")
                continue
            words = "has (nearly) the raw scores of {}, which names another checkpoint: one of them is a copy"
            first.refuse(f"results.{task}", words.format(other_name))
            second.refuse(f"results.{task}", words.format(name))


def _nearly_equal(left: np.ndarray, right: np.ndarray) -> bool:
    """Whether two arrays are one model's scores: equal up to rounding, or in nearly the same order."""
    if left.shape != right.shape or np.ptp(left) == 0 or np.ptp(right) == 0:
        return False
    if np.abs(left - right).max() <= NEAR_SCORES * np.ptp(left):
        return True
    ranks = np.corrcoef(rankdata(left), rankdata(right))[0, 1]
    return bool(ranks >= NEAR_RANKS)
