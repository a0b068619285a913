"""The results document (schema 1.0) and the files beside it, written atomically after every task."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench._util.files import file_digest, safe_name, to_json, write_atomically
from ttmbench.errors import UsageError
from ttmbench.results.ranks import Ranks
from ttmbench.results.stored_files import save_ranks, save_scores
from ttmbench.results.summary import MethodScores

SCHEMA_VERSION = "1.0"
_KINDS = ("samples", "scores", "ranks", "ttm", "also_samples", "also_scores")
_ENDINGS = ("jsonl", "safetensors")


@dataclass
class RunFiles:
    """The files of a run."""

    results: Path  # of the results document
    beside: str  # names of the other files, with ``{kind}`` and ``{task}`` to fill in
    artifacts: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> kind, task, sha256 and size
    finished: bool = False  # whether the document says that nothing is left to do

    @classmethod
    def of(cls, output_path: str, model: str, stamp: str) -> RunFiles:
        """The files of an output path: a ``.json`` file, or a folder for ``<model>/results_<stamp>.json``."""
        target = Path(output_path)
        if target.suffix == ".json":
            stem = target.stem.replace("{", "{{").replace("}", "}}")
            return cls(target, f"{stem}_{{kind}}_{{task}}")
        return cls(target / safe_name(model) / f"results_{stamp}.json", f"{{kind}}_{{task}}_{stamp}")

    @property
    def folder(self) -> Path:
        """The folder of the results document."""
        return self.results.parent

    @property
    def state(self) -> Path:
        """Folder of what a run needs to resume; removed when it is done."""
        return self.folder / f".{self.results.stem}.state"

    def state_of(self, task: str) -> Path:
        """Folder of what one task needs to resume."""
        return self.state / "tasks" / task

    def write_results(self, document: Mapping[str, object]) -> None:
        """Replaces the results document in one step."""
        write_atomically(self.results, lambda path: path.write_text(to_json(document), encoding="utf-8"))
        self.finished = document.get("status") == "done"

    def write_lines(
        self, kind: str, task: str, lines: Iterable[Mapping[str, object]], other: str | None = None
    ) -> None:
        """Writes JSON lines (``samples``, ``ttm``) of a task, or of another one that its model was measured on."""
        import jsonlines

        def write(path: Path) -> None:
            with path.open("w", encoding="utf-8", newline="\n") as file:
                jsonlines.Writer(file, dumps=partial(json.dumps, ensure_ascii=False, allow_nan=False)).write_all(lines)

        self._write(kind, task, "jsonl", write, other)

    def write_scores(
        self, task: str, columns: Sequence[MethodScores], metadata: Mapping[str, str], other: str | None = None
    ) -> None:
        """Writes the score arrays of a task, or of another one that its model was measured on."""
        kind = "scores" if other is None else "also_scores"
        scores = {column.name: column.scores for column in columns}
        iterations = {column.name: column.iterations for column in columns}
        self._write(kind, task, "safetensors", lambda path: save_scores(path, scores, metadata, iterations), other)

    def write_ranks(
        self,
        task: str,
        ranks: Mapping[str, Ranks],
        of_query: Mapping[str, np.ndarray],
        metadata: Mapping[str, str],
        clusters: np.ndarray | None = None,
    ) -> None:
        """Writes the ranks of a task's queries, as ``ttmbench score`` reads them."""
        self._write("ranks", task, "safetensors", lambda path: save_ranks(path, ranks, of_query, metadata, clusters))

    def remove_strays(self) -> None:
        """Removes temporary files of a run that was killed while it wrote the document or the files beside it."""
        stem = escape(self.beside.replace("{kind}", "\0").replace("{task}", "\1"))
        beside = [stem.replace("\0", kind).replace("\1", "*") for kind in _KINDS]
        names = (escape(self.results.name), *(f"{pattern}.{ending}" for pattern in beside for ending in _ENDINGS))
        for stray in list(self.folder.glob(".*.tmp")):
            if any(fnmatchcase(stray.name, f".{name}.*.tmp") for name in names):
                stray.unlink(missing_ok=True)

    def _write(
        self, kind: str, task: str, ending: str, write: Callable[[Path], object], other: str | None = None
    ) -> None:
        both = task if other is None else f"{task}@{other}"  # no task has an @ in its name
        path = self.folder / f"{self.beside.format(kind=kind, task=both)}.{ending}"
        write_atomically(path, write)
        about = {"kind": kind, "task": task, "sha256": file_digest(path), "bytes": path.stat().st_size}
        self.artifacts[path.name] = about if other is None else {**about, "measured_on": other}


def open_run_files(output_path: str, model: str, started: datetime) -> RunFiles:
    """Chooses the file names of what is computed at once and makes sure that they can be written; else UsageError."""
    files = RunFiles.of(output_path, model, started.strftime("%Y-%m-%dT%H-%M-%S.%f"))
    probe(files, output_path)
    return files


def probe(files: RunFiles, output_path: str) -> None:
    """Makes the folder and tries to write there; UsageError naming the output path if that fails."""
    try:
        files.folder.mkdir(parents=True, exist_ok=True)
        if files.results.is_dir():
            raise IsADirectoryError(f"{files.results} is a folder")
        with tempfile.TemporaryFile(dir=files.folder):
            pass
    except OSError as error:
        raise UsageError(f"--output_path {output_path} cannot be written to: {error.strerror or error}") from None


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of results files, task files or leaderboards; UsageError for another name."""
    if name not in ("results", "task", "leaderboard"):
        raise UsageError(f"unknown schema '{name}'; known: results, task, leaderboard")
    from importlib.resources import files

    text = (files("ttmbench.results.schemas") / f"{name}-{SCHEMA_VERSION}.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document
