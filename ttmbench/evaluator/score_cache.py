"""The score cache as a run uses it: what was computed of a task's data, and blocks of unfinished pair scores.

Its key is everything that changes a score, and nothing that does not. Files are safetensors with a digest, which finds
damage by a disk or a copy; it does not protect against somebody who may write to the folder. They are written aside and
renamed, so several processes may share a folder.

``scores/KEY/DATA`` has ``scores.safetensors``, or finished ``block-NNNNNN.safetensors`` of an unfinished pair scoring.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from ttmbench._util.console import warn
from ttmbench._util.digests import (
    OWN,
    digests_of_object,
    json_digest,
    load_sealed,
    save_sealed,
    tensors_digest,
)
from ttmbench._util.file_io import Unreadable, write_atomically
from ttmbench._util.machine import hardware, installed_version, matmul_precision
from ttmbench._version import __version__
from ttmbench.data.task_file import TaskSpec
from ttmbench.errors import UsageError
from ttmbench.model import Model, PairScorer, StoredFeatures, overrides
from ttmbench.scoring.batches import BlockStore
from ttmbench.scoring.inputs import Inputs
from ttmbench.types import Record

SCORING_VERSION = 4
"""Version of this package's own part in a score. Raise it whenever a change can move a score: see CONTRIBUTING.md."""

PACKAGES = ("torch", "transformers", "tokenizers", "open_clip_torch", "peft")
"""Packages that tokenise or compute; a new minor version of one may round in another way."""
READERS = ("pillow", "torchvision", "av")
"""Packages that decode and resize; any version of one may give other pixels."""
SCORES, ENDING = "scores", ".safetensors"
Shapes = Mapping[str, tuple[int, ...] | None]
"""Name of an array -> its shape; None for any."""


def why_not_kept(model: Model) -> str | None:
    """Why scores of this model are not cached, for the user; empty if that needs no word; None if they are cached.

    Models behind servers store their answers themselves. The remarks and refusals of others would be lost. Precomputed
    embeddings are scored faster than looked up.
    """
    name = type(model).__name__
    is_served = model.pairs_at_once is not None or overrides(model, "usage")
    if is_served or isinstance(model, StoredFeatures):
        return ""
    if isinstance(model, PairScorer) and model.refusals_are_wrong is not None:
        return ""
    if not model.fingerprint():
        return f"{name} has no fingerprint, so its scores are not cached"
    if None in digests_of_object(model).values():
        return f"the source of {name} is in no file, so its scores are not cached"
    return None


def model_description(model: Model, as_loaded: bool = False) -> Record:
    """What a model's scores depend on, for JSON, with secrets: what it states, its weights as they are, its code.

    ``as_loaded``: a digest of the weights from when they were loaded holds. Models of this package have its version and
    `SCORING_VERSION` as their code.
    """
    kind, declared = type(model), model.fingerprint()
    foreign = "".join(f"{name}:{digest};" for name, digest in digests_of_object(model).items() if name != OWN)
    description: Record = {
        "adapter": f"{kind.__module__}:{kind.__qualname__}",
        "fingerprint": dict(declared) if isinstance(declared, Mapping) else str(declared),
        "code": hashlib.sha256(foreign.encode()).hexdigest(),
    }
    is_own = isinstance(model, torch.nn.Module) or overrides(model, "state_dict")
    if is_own or (model.trainable and model.torch_module is not None):
        known = model.state_sha256 if as_loaded else None
        description["state_sha256"] = known or tensors_digest(model.state_dict())
    return description


def score_key(model: Record, spec: TaskSpec, settings: Record, exact: Record | None = None) -> str:
    """sha256 of what the scores of a task depend on beside its data.

    ``model`` is of `model_description`; ``settings`` is what else the arrays depend on; ``exact`` is what bits depend
    on beside all that (``--deterministic``). A package that is absent counts too, since that can change preprocessing,
    and Pillow's library for JPEG, which need not be the one of Pillow's own wheel.
    """
    from PIL import features

    found = {name: installed_version(name) for name in (*PACKAGES, *READERS)}
    minor = {name: re.sub(r"^(\d+(?:\.\d+)?).*", r"\1", text) for name in PACKAGES if (text := found[name])}
    description = {
        "model": model,
        "task": spec.task,
        "task_version": spec.version,
        "shape": list(spec.group.shape or ()),
        "settings": settings,
        "ttmbench": __version__,
        "score_code": SCORING_VERSION,
        "packages": found | minor | {"jpeg": features.version("libjpeg_turbo")},
        "matmul_precision": matmul_precision(),
        **({} if exact is None else {"deterministic": exact}),
    }
    return json_digest(_stated(description))


def _stated(value: object) -> Any:
    """A value of a fingerprint as JSON has it; arrays by their digest, since their text leaves numbers out."""
    if isinstance(value, Mapping):
        return {str(name): _stated(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_stated(inner) for inner in value]
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    return tensors_digest({"": value}) if isinstance(value, torch.Tensor) else str(value)


@dataclass
class ScoreCache:
    """The cache of one run, in a folder that need not exist; warns about a problem and goes on without it."""

    folder: Path
    exact: Record | None = None  # what bits depend on beside model, data and settings, if they are to be repeated
    as_loaded: Model | None = None  # a model that the run has loaded itself and not trained yet
    is_writable: bool = True  # until a file could not be written
    described: tuple[Model, Record] | None = field(default=None, repr=False)  # the last model


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
        inputs: Inputs,
        settings: Record,
        what: str = "raw scores",
    ) -> None:
        self._inputs, self.share = inputs, slice(None)
        why = None if cache is None else why_not_kept(model)
        if why:
            warn(why)
        self._key, self._cache = "", cache if why is None else None
        if self._cache is not None:
            if self._cache.described is None or self._cache.described[0] is not model:
                self._cache.described = model, model_description(model, model is self._cache.as_loaded)
            self._key = score_key(self._cache.described[1], spec, settings, self._cache.exact)
        self.on = self._cache is not None  # whether scores of this model are cached
        self._task, self._what, self._blind = spec.task, what, isinstance(model, PairScorer) and model.blind
        self._folder: Path | None = None  # once the data are known
        self._date: str | None = None  # of the scores that were found
        self._hardware: list[Record] = []  # of the runs that computed what was found
        self._found: set[int] = set()  # blocks of an interrupted run that were used
        self._new: set[int] = set()

    @property
    def may_have(self) -> bool:
        """Whether there are scores or blocks of this model and task, for whatever data."""
        return self._cache is not None and (self._cache.folder / SCORES / self._key[:32]).is_dir()

    @property
    def blocks(self) -> BlockStore | None:
        """Where finished blocks go once the data are known; blind scorers would lose what they remember of captions."""
        return None if self._blind or self._folder is None else self

    def find(self, expected: Shapes) -> dict[str, np.ndarray] | None:
        """Arrays of an earlier run on these data, float32 and finite; takes in all images that were not opened yet."""
        if self._cache is None:
            return None
        self._folder = self._cache.folder / SCORES / self._key[:32] / self._inputs.digest()
        arrays, about = self._read(SCORES, expected) or (None, {})
        if arrays is not None:
            self._date = str(about["date"])
            with suppress(OSError):
                (self._folder / f"{SCORES}{ENDING}").touch()  # so that the least recently used go first
        return arrays

    def keep(self, arrays: Mapping[str, np.ndarray | None], model_name: str) -> Record | None:
        """Stores float32 arrays that are new; returns what an earlier run stored, and on which hardware, or None."""
        if self._cache is None or self._folder is None:
            return None
        known: Record = {"key": self._key, "hardware": self._hardware}
        if self._date is not None:
            warn(f"{self._what} come from the cache in {self._cache.folder}; --use_cache off computes them again")
            return {**known, "date": self._date}
        made = {name: array for name, array in arrays.items() if array is not None}
        if self._write(SCORES, made, {"model_name": model_name}):
            for path in self._folder.glob(f"block-*{ENDING}"):
                with suppress(OSError):
                    path.unlink()
        if not self._found:
            return None
        earlier, total = len(self._found), len(self._found | self._new)
        warn(f"{self._task}: {earlier} of {total} blocks were cached by an interrupted run")
        return {**known, "blocks": earlier, "of": total}

    def get(self, block: int) -> np.ndarray | None:
        """A finished block, float32 [pairs]."""
        read = self._read(f"block-{block:06d}", {"values": None})
        if read is None:
            return None
        self._found.add(block)
        return read[0]["values"]

    def put(self, block: int, values: np.ndarray) -> None:
        """Stores a finished block."""
        self._found.discard(block)
        self._new.add(block)
        self._write(f"block-{block:06d}", {"values": values}, {})

    def _read(self, name: str, expected: Shapes) -> tuple[dict[str, np.ndarray], Record] | None:
        """A file's arrays and header; None if it does not exist, or (with a warning) if it cannot be used."""
        if self._cache is None or self._folder is None:
            return None
        path, why = self._folder / f"{name}{ENDING}", "it holds something else"
        try:
            tensors, about = load_sealed(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            warn(f"the cache in {self._cache.folder} cannot be read ({error.strerror}); scoring without it")
            return None
        except Unreadable as error:
            why = str(error)
        else:
            arrays = {array: np.array(tensor.numpy()) for array, tensor in tensors.items()}
            # Its whole key and name are stored in the file, so that a moved one is not used.
            if about.get("place") == "/".join((self._key, *path.parts[-2:])) and set(arrays) == set(expected):
                shapes = {array: expected[array] or values.shape for array, values in arrays.items()}
                if all(
                    values.ndim and values.shape == shapes[array] and values.dtype == np.float32
                    for array, values in arrays.items()
                ) and all(np.isfinite(values).all() for values in arrays.values()):
                    self._hardware += [computer for computer in about["hardware"] if computer not in self._hardware]
                    return arrays, about
        warn(f"{path} is damaged ({why}) and is computed again")
        return None

    def _write(self, name: str, arrays: Mapping[str, np.ndarray], more: Record) -> bool:
        """Writes a file and returns whether that worked; warns the first time that it does not."""
        cache, this = self._cache, hardware()
        if cache is None or self._folder is None or not cache.is_writable:
            return False
        path = self._folder / f"{name}{ENDING}"
        about = {
            "place": "/".join((self._key, *path.parts[-2:])),
            "task": self._task,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "hardware": [*(host for host in self._hardware if host != this and name == SCORES), this],
        }
        tensors = {array: torch.from_numpy(np.ascontiguousarray(values)) for array, values in arrays.items()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # The digest finds half a file, so there is no need to wait for the disk.
            write_atomically(path, lambda temporary: save_sealed(temporary, tensors, about | more), to_disk=False)
        except (OSError, UsageError, SafetensorError) as error:
            cache.is_writable = False
            reason = getattr(error, "strerror", None) or error
            warn(f"the cache in {cache.folder} cannot be written to ({reason}); nothing is cached")
        return cache.is_writable
