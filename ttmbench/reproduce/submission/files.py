"""The files beside a submission: which there are, whether they may be read, and what they hold."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ttmbench._util.arrays import read_arrays
from ttmbench._util.files import file_digest
from ttmbench._util.limits import limit, raised_by
from ttmbench._util.text import read_json_lines
from ttmbench.config import RunConfig
from ttmbench.errors import DataError, TtmbenchError
from ttmbench.reproduce.submission.findings import Findings, agree
from ttmbench.reproduce.submission.metadata import left_out_of
from ttmbench.results.document import ResultsDocument
from ttmbench.results.files import RunFiles

_ENDING = {"samples": "jsonl", "scores": "safetensors", "ranks": "safetensors", "also_scores": "safetensors"}
_OPTION = {"samples": "--log_samples"}


@dataclass(frozen=True)
class Files:
    """The files of a submission.

    Attributes:
        document: path of the results document.
        beside: names of the other files, as `RunFiles` has them.
        stated: what the document says of them.
        left_out: names of those that lie elsewhere, by the metadata of the submission.
    """

    document: Path
    beside: str
    stated: ResultsDocument
    left_out: frozenset[str] = frozenset()

    @classmethod
    def of(cls, path: Path, document: ResultsDocument, config: RunConfig) -> Files:
        """The files beside a document, by the names that a run gives them."""
        is_file = (config.output_path or "").endswith(".json") or not path.stem.startswith("results_")
        names = RunFiles.of(str(path) if is_file else "folder", "model", path.stem.removeprefix("results_"))
        return cls(path, names.beside, document, left_out_of(path))

    @property
    def folder(self) -> Path:
        """Where they lie."""
        return self.document.parent

    def path(self, kind: str, task: str, other: str | None = None) -> Path:
        """A file that is there and as its digest says; else DataError."""
        both = task if other is None else f"{task}@{other}"
        name = f"{self.beside.format(kind=kind, task=both)}.{_ENDING[kind]}"
        why = self.why_not(name)
        if why is not None:
            option = _OPTION.get(kind, "--save_scores")
            if why in (_ABSENT, _LEFT_OUT):
                how = f"{option} writes it" if why == _ABSENT else "its metadata say where it is"
                raise MissingError(f"there is no file {name} ({how})")
            raise DataError(f"artifacts.{name}: {why}")
        return self.folder / name

    def why_not(self, name: str) -> str | None:
        """Why a file is not read; None if nothing is wrong with it."""
        about, path = self.stated.artifacts.get(name), self.folder / name
        if about is None:
            return _ABSENT
        try:
            if name in self.left_out and not path.exists():
                return _LEFT_OUT
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                return "is not a regular file (links are not followed)"
            if status.st_size != about.bytes:
                return f"has {status.st_size} bytes, the document says {about.bytes}"
            most = "array_bytes" if name.endswith(".safetensors") else "text_bytes"
            if status.st_size > limit(most):
                return f"is too large: {status.st_size} bytes, at most {limit(most)} are read; {raised_by(most)}"
            digest = file_digest(path)
        except (OSError, ValueError) as error:
            return f"cannot be read ({getattr(error, 'strerror', None) or error})"
        if digest != about.sha256:
            return f"has sha256 {digest[:16]}..., the document says {about.sha256[:16]}..., so it is another file"
        return None


_ABSENT = "is not among the document's artifacts"
_LEFT_OUT = "lies elsewhere"


class MissingError(DataError):
    """A file that the numbers are computed from was not stored."""


def compare_files(path: Path, made: Path, findings: Findings) -> None:
    """Refuses a file whose arrays, lines or metadata are not those of a file that the run writes."""
    try:
        if path.suffix == ".jsonl":
            _compare_lines(path, made, findings)
            return
        found, expected = read_arrays(path), read_arrays(made)
    except TtmbenchError as error:
        findings.refuse(path.name, str(error))
        return
    findings.same(path.name, found.about, expected.about, "the run writes")
    findings.same(f"{path.name}, arrays", sorted(found.arrays), sorted(expected.arrays), "the run writes")
    for name in found.arrays.keys() & expected.arrays.keys():
        stored, written = found.arrays[name], expected.arrays[name]
        if stored.dtype != written.dtype or not np.array_equal(stored, written):
            words = f"is not what the run writes ({written.dtype} {written.shape})"
            findings.refuse(f"{path.name}, {name}", words)


def _compare_lines(path: Path, made: Path, findings: Findings) -> None:
    """Of each key that differs the first line is reported."""
    found, expected = ([line for _, line in read_json_lines(file)] for file in (path, made))
    if len(found) != len(expected):
        findings.refuse(path.name, f"has {len(found)} lines, the run writes {len(expected)}")
    reported: set[str] = set()
    for number, (line, other) in enumerate(zip(found, expected, strict=False), start=1):
        findings.compared += 1
        for key in dict.fromkeys([*other, *line]) if line != other else ():
            if key not in reported and not (key in line and key in other and agree(line[key], other[key])):
                reported.add(key)
                words = f"{key} is {line.get(key)!s:.100}, the run writes {other.get(key)!s:.100}"
                findings.refuse(path.name, f"line {number}: {words}")
