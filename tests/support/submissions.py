"""A submission for tests: one real run, and copies of it that can be forged and signed again."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save

from ttmbench._util.arrays import read_arrays
from ttmbench.cli import main

COMMAND = (
    "--model tiny-clip --tasks shapes_color,shapes_replace --limit 16 --ttm --ttm_args iterations=2,epochs=1 "
    "--seeds 0,1 --oracle --audit_labels --log_samples --save_scores --output_path {}"
)


def make_submission(folder: Path, command: str = COMMAND) -> Path:
    """Runs the command that a submission states; the folder of its files."""
    words = command.format(folder / "x.json").split()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["ttmbench", *words])
        assert main(words) == 0
    return folder


def put(*path: str, to: object) -> Callable[[Forgery], None]:
    """A forgery that states another value at a place of the document."""

    def forge(forged: Forgery) -> None:
        here = forged.document
        for key in path[:-1]:
            here = here[key]
        here[path[-1]] = to

    return forge


class Forgery:
    """A copy of a submission, edited and saved again.

    Attributes:
        folder: where it lies.
        document: its results document.
    """

    def __init__(self, honest: Path, folder: Path) -> None:
        shutil.copytree(honest, folder)
        self.folder, self.path = folder, folder / "x.json"
        self.document: dict = json.loads(self.path.read_text(encoding="utf-8"))

    def save(self) -> Path:
        """Writes the document."""
        self.path.write_text(json.dumps(self.document), encoding="utf-8")
        return self.path

    def everywhere(self, old: str, new: str) -> None:
        """Puts another text in place of one, wherever it stands in the document."""
        self.document = json.loads(json.dumps(self.document).replace(old, new))

    def file(self, kind: str, task: str = "shapes_color") -> Path:
        """A file beside the document."""
        names = [name for name, one in self.document["artifacts"].items() if (one["kind"], one["task"]) == (kind, task)]
        return self.folder / names[0]

    def sign(self, path: Path) -> None:
        """Takes a changed file's digest and size into the document."""
        content = path.read_bytes()
        about = self.document["artifacts"][path.name]
        about |= {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}

    def edit_lines(
        self,
        kind: str,
        edit: Callable[[list[dict]], object],
        *,
        sign: bool = True,
        task: str = "shapes_color",
    ) -> None:
        """Edits the lines of samples or iterations; ``sign`` states the new digest."""
        path = self.file(kind, task)
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        edit(lines)
        path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
        if sign:
            self.sign(path)

    def edit_scores(
        self,
        edit: Callable[[dict], object],
        about: dict[str, str] | None = None,
        *,
        kind: str = "scores",
        sign: bool = True,
    ) -> None:
        """Edits arrays of scores, and what the file says of itself."""
        path = self.file(kind)
        arrays, told = load_file(path), read_arrays(path).about
        edit(arrays)
        path.write_bytes(save(arrays, metadata={"ttmbench": json.dumps({**told, **(about or {})}, sort_keys=True)}))
        if sign:
            self.sign(path)
