"""File systems of fsspec for tests: one that breaks when it is told to, and takes down what is asked of it."""

from __future__ import annotations

import hashlib
import json
import time
from typing import ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class TroubledFileSystem(MemoryFileSystem):
    """``troubled://``: in memory, and its writes fail when they are told to.

    After every write it checks that each results document finds the files that it names.
    """

    protocol = "troubled"
    store: ClassVar[dict[str, object]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    fails: ClassVar = lambda number, name: False  # number of the write and name -> whether it fails
    delay: ClassVar[float] = 0.0
    writes: ClassVar[list[str]] = []
    wrong: ClassVar[list[str]] = []

    @classmethod
    def reset(cls) -> None:
        """An empty one that works."""
        cls.store.clear()
        cls.writes.clear()
        cls.wrong.clear()
        cls.pseudo_dirs[:] = [""]
        cls.fails, cls.delay = staticmethod(lambda number, name: False), 0.0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace("troubled://", "memory://"))

    def put_file(self, lpath: str, rpath: str, *more: object, **options: object) -> None:
        """Writes half of the file and fails, if it is to."""
        self.writes.append(rpath)
        time.sleep(self.delay)
        if type(self).fails(len(self.writes), rpath):
            self.pipe_file(rpath, b"{")
            raise ConnectionResetError("the line is dead; I was called with token=abcdef123456")
        super().put_file(lpath, rpath, *more, **options)
        if rpath.endswith(".json"):
            self.check()

    def check(self) -> None:
        """Takes down every document of which a file is missing or another."""
        for path in [one for one in self.store if one.endswith(".json")]:
            document = json.loads(self.cat_file(path))
            for name, about in document.get("artifacts", {}).items():
                beside = f"{path.rpartition('/')[0]}/{name}"
                if beside not in self.store or hashlib.sha256(self.cat_file(beside)).hexdigest() != about["sha256"]:
                    self.wrong.append(f"{path}: {name}")

    @classmethod
    def documents(cls) -> dict[str, object]:
        """Path -> results document, of those that are there."""
        return {path: json.loads(file.getvalue()) for path, file in cls.store.items() if path.endswith(".json")}


fsspec.register_implementation("troubled", TroubledFileSystem, clobber=True)
