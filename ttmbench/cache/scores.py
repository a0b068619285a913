"""The score cache as a run uses it: what was computed of a task's data, and blocks of unfinished pair scores.

Files are safetensors with a digest, which finds damage by a disk or a copy; it does not protect against somebody who
may write to the folder. They are written aside and renamed, so several processes may share a folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError

from ttmbench._util.console import warn
from ttmbench._util.digests import SealError, load_sealed, save_sealed
from ttmbench._util.files import replace_file
from ttmbench._util.machine import hardware
from ttmbench.cache.folder import ENDING, SCORES
from ttmbench.cache.key import model_description, score_key, why_not_kept
from ttmbench.data.task_file import TaskSpec
from ttmbench.model import Model, PairScorer
from ttmbench.scoring.batches import BlockStore
from ttmbench.scoring.fingerprint import Fingerprint
from ttmbench.types import Group, Record

Shapes = Mapping[str, tuple[int, ...] | None]
"""Name of an array -> its shape; None for any."""


class ScoreCache:
    """The cache of one run, in a folder that need not exist; warns once about each problem and goes on without it.

    ``exact`` is what bits depend on beside model, data and settings, for a run that is to be repeated bit by bit.
    """

    def __init__(self, folder: Path, exact: Record | None = None) -> None:
        self.folder, self._exact = folder, exact
        self.as_loaded: Model | None = None  # a model that the run has loaded itself and not trained yet
        self._model: tuple[Model, Record] | None = None
        self._warned: set[str] = set()
        self.is_writable = True  # until a file could not be written

    def warn_once(self, what: str, message: str) -> None:
        """Warns the user, once in a run for each ``what``."""
        if what not in self._warned:
            self._warned.add(what)
            warn(message)

    def key(self, model: Model, spec: TaskSpec, settings: Record) -> str | None:
        """Digest of what a model's scores on a task depend on beside the data; None if they are not cached."""
        why = why_not_kept(model)
        if why:
            self.warn_once("model", why)
        if why is not None:
            return None
        if self._model is None or self._model[0] is not model:
            self._model = (model, model_description(model, model is self.as_loaded))
        return score_key(self._model[1], spec, settings, self._exact)


class TaskCache:
    """The cache of one task of a run: recognises the data, and stores what was computed of them.

    Without a cache it finds and stores nothing. It is a `ttmbench.scoring.batches.BlockStore`, too. ``settings`` is
    what else the arrays depend on, for JSON: all pairs, debiasing, classes, candidates; ``what`` is cached, for users.
    """

    def __init__(
        self,
        cache: ScoreCache | None,
        model: Model,
        spec: TaskSpec,
        groups: Sequence[Group],
        settings: Record,
        what: str = "raw scores",
    ) -> None:
        self.data = Fingerprint(groups)
        key = None if cache is None else cache.key(model, spec, settings)
        self._cache, self._key = (None, "") if key is None else (cache, key)
        self._task, self._what, self._blind = spec.task, what, isinstance(model, PairScorer) and model.blind
        self._folder: Path | None = None  # once the data are known
        self._date: str | None = None  # of the scores that were found
        self._hardware: list[Record] = []  # of the runs that computed what was found
        self._earlier: set[str] = set()  # blocks of an interrupted run
        self._found: set[int] = set()  # those of them that were used
        self._new: set[int] = set()

    @property
    def may_have(self) -> bool:
        """Whether there are scores or blocks of this model and task, for whatever data."""
        return self._cache is not None and self._of_task.is_dir()

    @property
    def on(self) -> bool:
        """Whether scores of this model are cached."""
        return self._cache is not None

    @property
    def blocks(self) -> BlockStore | None:
        """Where finished blocks go once the data are known; blind scorers would lose what they remember of captions."""
        return None if self._blind or self._folder is None else self

    def find(self, expected: Shapes) -> dict[str, np.ndarray] | None:
        """Arrays of an earlier run on these data, float32 and finite; takes in all images that were not opened yet."""
        if self._cache is None:
            return None
        self.data.add_remaining()
        self._folder = self._of_task / self.data.hexdigest()
        with suppress(OSError):
            self._earlier = {path.name for path in self._folder.iterdir()}
        arrays, about = self._read(SCORES, expected) or (None, {})
        if arrays is not None:
            self._date = str(about["date"])
            with suppress(OSError):
                self._path(SCORES).touch()  # so that the least recently used go first
        return arrays

    def keep(self, arrays: Mapping[str, np.ndarray | None], model_name: str) -> Record | None:
        """Stores float32 arrays that are new; returns what an earlier run stored, and on which hardware, or None."""
        cache = self._cache
        if cache is None or self._folder is None:
            return None
        known: Record = {"key": self._key, "hardware": self._hardware}
        if self._date is not None:
            cache.warn_once(
                "hit", f"{self._what} come from the cache in {cache.folder}; --use_cache off computes them again"
            )
            return {**known, "date": self._date}
        made = {name: array for name, array in arrays.items() if array is not None}
        if self._write(SCORES, made, {"model_name": model_name}):
            for path in self._folder.glob(f"block-*{ENDING}"):
                with suppress(OSError):
                    path.unlink()
        if not self._found:
            return None
        earlier, total = len(self._found), len(self._found | self._new)
        cache.warn_once(
            f"blocks {self._task}", f"{self._task}: {earlier} of {total} blocks were cached by an interrupted run"
        )
        return {**known, "blocks": earlier, "of": total}

    def get(self, block: int) -> np.ndarray | None:
        """A finished block, float32 [pairs]."""
        name = _block(block)
        arrays, _ = self._read(name, {"values": None}) or (None, {})
        if arrays is not None and f"{name}{ENDING}" in self._earlier:
            self._found.add(block)
        return None if arrays is None else arrays["values"]

    def put(self, block: int, values: np.ndarray) -> None:
        """Stores a finished block."""
        self._found.discard(block)
        self._new.add(block)
        self._write(_block(block), {"values": values}, {})

    @property
    def _of_task(self) -> Path:
        assert self._cache is not None, "there is something to look for"
        return self._cache.folder / SCORES / self._key[:32]

    def _path(self, name: str) -> Path:
        assert self._folder is not None, "the data are known"
        return self._folder / f"{name}{ENDING}"

    def _place(self, path: Path) -> str:
        """A file's whole key and name, stored inside it so that a moved file is not used."""
        return "/".join((self._key, *path.parts[-2:]))

    def _read(self, name: str, expected: Shapes) -> tuple[dict[str, np.ndarray], Record] | None:
        """A file's arrays and header; None if it does not exist, or (with a warning) if it cannot be used."""
        if self._cache is None:
            return None
        path, why = self._path(name), "it holds something else"
        try:
            tensors, about = load_sealed(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            reason = error.strerror or error
            self._cache.warn_once("reading", f"the cache cannot be read: {path} ({reason}); scoring without it")
            return None
        except SealError as error:
            why = str(error)
        else:
            arrays = {array: np.array(tensor.numpy()) for array, tensor in tensors.items()}
            fits = about.get("place") == self._place(path) and set(arrays) == set(expected)
            if fits and all(_is_sound(values, expected[array]) for array, values in arrays.items()):
                self._hardware += [computer for computer in about["hardware"] if computer not in self._hardware]
                return arrays, about
        self._cache.warn_once(str(path), f"{path} is damaged ({why}) and is computed again")
        return None

    def _write(self, name: str, arrays: Mapping[str, np.ndarray], more: Record) -> bool:
        """Writes a file and returns whether that worked; warns the first time that it does not."""
        cache, this, path = self._cache, hardware(), self._path(name)
        if cache is None or not cache.is_writable:
            return False
        about = {
            "place": self._place(path),
            "task": self._task,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "hardware": [*(host for host in self._hardware if host != this and name == SCORES), this],
        }
        tensors = {array: torch.from_numpy(np.ascontiguousarray(values)) for array, values in arrays.items()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # The digest finds half a file, so there is no need to wait for the disk.
            replace_file(path, lambda temporary: save_sealed(temporary, tensors, about | more), to_disk=False)
        except (OSError, SafetensorError) as error:
            cache.is_writable = False
            reason = getattr(error, "strerror", None) or error
            warn(f"the cache in {cache.folder} cannot be written to ({reason}); nothing is cached")
        return cache.is_writable


def _block(number: int) -> str:
    return f"block-{number:06d}"


def _is_sound(values: np.ndarray, shape: tuple[int, ...] | None) -> bool:
    fits = values.ndim > 0 if shape is None else values.shape == shape
    return fits and values.dtype == np.float32 and bool(np.isfinite(values).all())
