"""Repositories of the stand-in hub on disk: ``ROOT/{models,datasets}/OWNER/NAME/COMMIT/files`` and a ``repo.json``."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

KINDS = ("models", "datasets")
COMMIT = re.compile(r"[0-9a-f]{40}")
STATE = "repo.json"
# What the hub's default .gitattributes keep in large-file storage; anything larger than 10 MB is there too.
LARGE = re.compile(r".*\.(safetensors|bin|pt|h5|msgpack|onnx|parquet|zip|gz|model|jpe?g|png|arrow|ot)$", re.IGNORECASE)
LARGE_FROM = 10_000_000


@dataclass(frozen=True)
class File:
    """A file of a commit, by its path in the repository and on disk."""

    name: str
    path: Path

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @property
    def is_large(self) -> bool:
        """Whether the hub keeps it in its storage, and only a pointer in git."""
        return LARGE.fullmatch(self.name) is not None or self.size > LARGE_FROM

    @property
    def sha256(self) -> str:
        return self._digests()[0]

    @property
    def oid(self) -> str:
        """Git's name for the blob: of the content, or of the pointer to it."""
        sha256, sha1 = self._digests()
        if not self.is_large:
            return sha1
        return _git_sha1(
            f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {self.size}\n".encode()
        )

    @property
    def etag(self) -> str:
        return self.sha256 if self.is_large else self.oid

    def listed(self) -> dict[str, object]:
        """As the tree of a repository lists it."""
        entry = {"type": "file", "oid": self.oid, "size": self.size, "path": self.name}
        return entry | ({"lfs": {"oid": self.sha256, "size": self.size, "pointerSize": 134}} if self.is_large else {})

    def _digests(self) -> tuple[str, str]:
        state = self.path.stat()
        return _digests(self.path, state.st_size, state.st_mtime_ns)


@dataclass(frozen=True)
class Repository:
    """A repository: branch or ``refs/pr/N`` -> commit; gated may be ``auto`` or ``manual``, moved_to the newer id."""

    kind: str
    id: str
    folder: Path
    refs: dict[str, str] = field(default_factory=dict)
    gated: bool | str = False
    moved_to: str | None = None

    def commit(self, revision: str) -> str | None:
        """The commit of a branch, of ``refs/pr/N`` or of (the beginning of) a hash."""
        if revision in self.refs:
            return self.refs[revision]
        found = [one for one in self.commits() if len(revision) >= 7 and one.startswith(revision)]
        return found[0] if len(found) == 1 else None

    def commits(self) -> list[str]:
        return sorted(folder.name for folder in self.folder.iterdir() if COMMIT.fullmatch(folder.name))

    def files(self, commit: str) -> list[File]:
        root = self.folder / commit
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        return [File(path.relative_to(root).as_posix(), path) for path in paths]

    def file(self, commit: str, name: str) -> File | None:
        """A file of a commit by its path; None if there is none, also for a path that leaves the repository."""
        path = (self.folder / commit).resolve() / name
        inside = path.resolve().is_relative_to(self.folder.resolve()) and ".." not in Path(name).parts
        return File(name, path) if inside and path.is_file() else None


def write_repository(
    root: Path, kind: str, repo: str, refs: dict[str, str], *, gated: bool | str = False, moved_to: str | None = None
) -> Repository:
    """Makes a repository with an empty folder for each commit of ``refs``."""
    folder = root / kind / repo
    for commit in refs.values():
        assert COMMIT.fullmatch(commit), commit
        (folder / commit).mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    state = {"refs": refs, "gated": gated, "moved_to": moved_to}
    (folder / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
    return Repository(kind, repo, folder, refs, gated, moved_to)


def find_repository(root: Path, kind: str, repo: str) -> Repository | None:
    """The repository of this id, if there is one."""
    folder = root / kind / repo
    if ".." in Path(repo).parts or not (folder / STATE).is_file():
        return None
    return Repository(kind, repo, folder, **json.loads((folder / STATE).read_text(encoding="utf-8")))


def made_up_commit(repo: str) -> str:
    """A commit for a repository of which none is known."""
    return hashlib.sha1(f"commit of {repo}".encode()).hexdigest()


@lru_cache(maxsize=4096)
def _digests(path: Path, size: int, changed: int) -> tuple[str, str]:
    sha256, sha1 = hashlib.sha256(), hashlib.sha1(f"blob {size}\0".encode())
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            sha256.update(chunk)
            sha1.update(chunk)
    return sha256.hexdigest(), sha1.hexdigest()


def _git_sha1(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
