"""The files beside a submission's document: there, beside it and nowhere else, and as the document's digests say."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ttmbench._util.escape import one_line
from ttmbench._util.files import file_digest
from ttmbench._util.limits import limit, raised_by
from ttmbench.reproduce.submission.findings import Findings

KINDS = ("samples", "scores", "ranks", "ttm", "also_samples", "also_scores")

Artifacts = Mapping[tuple[str, str, str | None], Path]
"""(kind, task, the other task that it was measured on) -> a file that is as the document says."""


def check_artifacts(path: Path, document: Mapping[str, Any], findings: Findings) -> Artifacts:
    """Looks at every file that a document names.

    Args:
        path: of the document.
        document: of results.
        findings: takes what is wrong.

    Returns:
        The files that may be read.
    """
    found: dict[tuple[str, str, str | None], Path] = {}
    for name, about in document["artifacts"].items():
        place = f"artifacts.{one_line(name, 120)}"
        kind, task, other = about["kind"], about.get("task"), about.get("measured_on")
        if kind not in KINDS or task not in document["results"] or not isinstance(other, str | None):
            findings.refuse(place, f"is of kind {kind!s:.40} and task {task!s:.100}, which the run does not have")
            continue
        if (kind, task, other) in found:
            findings.refuse(place, f"is a second file of {kind} of task {task}")
            continue
        why = _why_not(path.parent, name, about)
        if why is None:
            found[kind, task, other] = path.parent / name
        else:
            findings.refuse(place, why)
    return found


def _why_not(folder: Path, name: str, about: Mapping[str, Any]) -> str | None:
    """Why a file is not read; None if nothing is wrong with it."""
    if Path(name).name != name or name in ("", ".", "..") or "\\" in name or "\0" in name:
        return "is no plain name of a file beside the document"
    path = folder / name
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            return "is no regular file (links are not followed)"
        if found.st_size != about["bytes"]:
            return f"has {found.st_size} bytes, the document says {about['bytes']}"
        most = "array_bytes" if name.endswith(".safetensors") else "text_bytes"
        if found.st_size > limit(most):
            return f"is too large: {found.st_size} bytes, at most {limit(most)} are read; {raised_by(most)}"
        digest = file_digest(path)
    except (OSError, ValueError) as error:
        return f"cannot be read ({getattr(error, 'strerror', None) or error})"
    if digest != about["sha256"]:
        return f"has sha256 {digest[:16]}..., the document says {about['sha256'][:16]}..., so it is another file"
    return None
