"""The files beside a submission: which there are, and whether they may be read."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

from ttmbench._util.files import file_digest
from ttmbench._util.limits import limit, raised_by
from ttmbench.config import RunConfig
from ttmbench.errors import DataError
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
    """

    document: Path
    beside: str
    stated: ResultsDocument

    @classmethod
    def of(cls, path: Path, document: ResultsDocument, config: RunConfig) -> Files:
        """The files beside a document, by the names that a run gives them."""
        is_file = (config.output_path or "").endswith(".json") or not path.stem.startswith("results_")
        names = RunFiles.of(str(path) if is_file else "folder", "model", path.stem.removeprefix("results_"))
        return cls(path, names.beside, document)

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
            raise (
                MissingError(f"there is no file {name} ({option} writes it)")
                if why == _ABSENT
                else DataError(f"artifacts.{name}: {why}")
            )
        return self.folder / name

    def why_not(self, name: str) -> str | None:
        """Why a file is not read; None if nothing is wrong with it."""
        about, path = self.stated.artifacts.get(name), self.folder / name
        if about is None:
            return _ABSENT
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


_ABSENT = "is not among the document's artifacts"


class MissingError(DataError):
    """A file that the numbers are computed from was not stored."""
