"""A worker on a Ray cluster: finds out what it shares with the driver, and does units.

The actor's class is made inside a function, so that Ray sends its source: on a node without this package it can still
report that.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from ttmbench._util import machine
from ttmbench._util.console import steps_told
from ttmbench._util.rate_limit import FolderPauses, sharing_pauses
from ttmbench.cache.folder import SCORES, cache_folder
from ttmbench.errors import TtmbenchError
from ttmbench.evaluator.executor import Throttle
from ttmbench.evaluator.local_executor import OWN
from ttmbench.evaluator.unit import Unit, UnitResult
from ttmbench.evaluator.worker import Worker
from ttmbench.sweep.payload import Payload, changed, missing_plugins, put_files, relocated, stamps
from ttmbench.sweep.ray_cluster import Untyped

_AGAIN = 0.5  # seconds between two lines
_SIGNS = 2.0  # seconds between two signs of progress: all workers share one board
_DAY = 86400.0
_PREFIX = "ttmbench-sweep"
TOKEN = ".common-"
"""How the name of a file begins by which a worker recognises a folder of the driver."""
Done: TypeAlias = tuple[UnitResult, dict[str, bytes]]
"""The result of a unit, and path -> content of what it wrote where no folder is common."""
Hello: TypeAlias = tuple[list[str], bool, int]
"""What a worker lacks, whether it sees the sweep's folder, and the number of its process."""


@dataclass(frozen=True)
class Greeting:
    """What a new worker receives from the driver.

    Attributes:
        root: the sweep's folder, as the driver has it.
        token: end of the name of a file there; None if no folder is to be common.
        cwd: the driver's working folder.
        cache: the driver's folder of raw scores; None if there is none.
        packages: versions that numbers depend on.
        payload: what travelled to the worker.
        variables: of the environment, for those that are not set on the node.
        threads: number of the worker's threads.
        board: handle of the board.
        name: of the worker.
    """

    root: str
    token: str | None
    cwd: str
    cache: str | None
    packages: Mapping[str, str]
    payload: Payload
    variables: Mapping[str, str]
    threads: int
    board: Untyped
    name: str


class RayWorker:
    """A worker on a node.

    Attributes:
        lacks: lines on what is not as the driver has it; a worker that lacks something is not used.
        common: whether it sees the sweep's folder.
    """

    def __init__(self, greeting: Greeting) -> None:
        travelled = Path.cwd()
        if "torch" not in sys.modules:  # which reads them once
            os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(greeting.threads)))
        tell = partial(greeting.board.tell.remote, greeting.name)
        self._thread: int | None = None
        self._signs, self._report = Throttle(partial(tell, None), _SIGNS), Throttle(tell, _AGAIN)
        root = Path(greeting.root)
        self.common = greeting.token is not None and _sees(root, greeting.token)
        for name, value in greeting.variables.items():
            if self.common or not Path(value).is_absolute():
                os.environ.setdefault(name, value)
        self.lacks = [*_other_packages(greeting.packages), *missing_plugins(greeting.payload, travelled)]
        self._here = {path: str(travelled / target) for path, target in greeting.payload.paths.items()}
        if self.common and Path(greeting.cwd).is_dir():
            os.chdir(greeting.cwd)
            self._here = {path: target for path, target in self._here.items() if not Path(path).exists()}
        self._root = root if self.common else _own_folder()
        self._cache = self._use_cache(greeting)
        self._worker = Worker(self._root, None if self._cache is None else str(self._cache))

    def do(self, unit: Unit, files: Mapping[str, bytes] | None) -> Done:
        """Does a unit; ``files`` are what earlier units left, where no folder is common."""
        self._thread = threading.get_ident()
        unit = relocated(unit, self._here)
        try:
            with sharing_pauses(FolderPauses(self._root / OWN / "pauses")), steps_told(self._signs):
                if self.common:
                    return self._worker.do(unit, self._report), {}
                put_files(self._root, unit.cell, files or {}, self._cache)
                before = stamps(self._root, unit.cell, self._cache)
                return self._worker.do(unit, self._report), changed(before, stamps(self._root, unit.cell, self._cache))
        except TtmbenchError as error:  # files of earlier units cannot be written here
            return UnitResult("failed", str(error)), {}
        finally:
            self._thread = None

    def interrupt(self) -> None:
        """Asks the unit under way to stop, as Ctrl-C does."""
        if self._thread is not None:
            raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
            raise_in(ctypes.c_ulong(self._thread), ctypes.py_object(KeyboardInterrupt))

    def leave(self) -> None:
        """Removes the worker's own folder."""
        if not self.common:
            shutil.rmtree(self._root, ignore_errors=True)

    def _use_cache(self, greeting: Greeting) -> Path | None:
        """Folder of raw scores in place of what the configurations say; None to leave that.

        Workers that see only their own folders share the cache of their node; what a cell adds to it travels.
        """
        if greeting.cache is None:
            return None
        if not self.common:
            return cache_folder(None) or self._root / OWN / SCORES
        is_seen = (Path(greeting.cache) / f"{TOKEN}{greeting.token}").is_file()
        return None if is_seen else self._root / OWN / SCORES


def actor_class() -> type:
    """The class of a worker's actor: it finds this package on its node, or says that it cannot."""

    class SweepWorker:
        def hello(self, version: str, greeting: bytes) -> Hello:
            """What the worker is; ``greeting`` is read only by a package of the same version."""
            import os
            from importlib.metadata import PackageNotFoundError
            from importlib.metadata import version as version_of

            try:
                here = version_of("ttmbench")
            except PackageNotFoundError:
                return [f"ttmbench is not installed there (pip install ttmbench=={version})"], False, 0
            if here != version:
                return [f"it has ttmbench {here}, the driver has {version}"], False, 0
            try:
                import ray.cloudpickle

                from ttmbench.sweep.ray_worker import RayWorker

                self._worker = RayWorker(ray.cloudpickle.loads(greeting))
            except Exception as error:
                return [f"ttmbench cannot begin there: {type(error).__name__}: {error}"], False, 0
            return self._worker.lacks, self._worker.common, os.getpid()

        def do(self, unit: Unit, files: dict[str, bytes] | None) -> Done:
            return self._worker.do(unit, files)

        def interrupt(self) -> None:
            self._worker.interrupt()

        def leave(self) -> None:
            self._worker.leave()

    return SweepWorker


def leave_token(folder: Path, token: str) -> Path | None:
    """Makes a file by which a worker recognises this folder; None if it cannot be made.

    Files of killed commands are removed, once they surely belong to none that runs.
    """
    path = folder / f"{TOKEN}{token}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{TOKEN}*"):
            if folder.name == OWN or time.time() - old.stat().st_mtime > _DAY:
                old.unlink(missing_ok=True)
        path.touch()
    except OSError:
        return None
    return path


def _sees(root: Path, token: str) -> bool:
    """Whether this is the driver's folder, and writable."""
    try:
        if not (root / OWN / f"{TOKEN}{token}").is_file():
            return False
        with tempfile.TemporaryFile(dir=root / OWN):
            return True
    except OSError:
        return False


def _own_folder() -> Path:
    """A new folder of this process; those of processes that are gone are removed."""
    for old in Path(tempfile.gettempdir()).glob(f"{_PREFIX}-*-*"):
        process = old.name.split("-")[-2]
        with suppress(OSError):
            if process.isdecimal() and old.stat().st_uid == os.getuid() and not _is_alive(int(process)):
                shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}-{os.getpid()}-"))


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def _other_packages(wanted: Mapping[str, str]) -> Iterator[str]:
    here = machine.packages()
    for name in sorted(wanted.keys() | here.keys()):
        if here.get(name) != wanted.get(name):
            yield f"it has {name} {here.get(name, 'not')}, the driver has {wanted.get(name, 'none')}"
