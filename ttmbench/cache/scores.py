"""Raw scores of a model on a task, kept for later runs; and finished blocks of them while they are being computed."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench._util.console import warn
from ttmbench.cache.entry import ENDING, DamagedError, Entry, read_entry, write_entry
from ttmbench.cache.images import PreparedImageCache
from ttmbench.cache.key import Identity, model_description, prepared_key, score_identity, why_not_kept
from ttmbench.cache.location import SCORES, cache_folder, prepared_limit
from ttmbench.cache.pixels import PixelDigestCache
from ttmbench.data.task_file import TaskSpec
from ttmbench.protocols import Adapter, Debiasable
from ttmbench.results.environment import hardware
from ttmbench.scoring.batches import FEATURES
from ttmbench.scoring.capabilities import Capabilities
from ttmbench.scoring.debiasing import Likelihoods
from ttmbench.types import Scores

BLOCKS = ".blocks"


@dataclass(frozen=True)
class CachedScores:
    """Scores that an earlier run kept.

    Attributes:
        raw: the model's scores.
        parts: of which they were debiased, if they were.
        key: of the entry.
        date: when it was written, ISO 8601.
    """

    raw: Scores
    parts: Likelihoods | None
    key: str
    date: str


class ScoreCache:
    """The cache as one run uses it: says each thing once, and goes on without what does not work.

    Args:
        folder: where it lies; it need not exist.
        exact: what bits depend on beside model, data and settings, for a run that is to give the same ones again.
    """

    def __init__(self, folder: Path, exact: Mapping[str, Any] | None = None) -> None:
        self.folder, self._exact = folder, exact
        self._detail: set[str] = set()
        self._saying = threading.Lock()
        self._writes = True
        self._model: tuple[Adapter, dict[str, Any]] | None = None

    def slot(self, model: Capabilities, spec: TaskSpec, all_pairs: bool, prior: Debiasable | None) -> Slot | None:
        """The place of a model's scores on a task; None if scores of this model are not kept."""
        why, adapter = why_not_kept(model), model.fingerprinted
        if why is not None:
            if why:
                self.warn_once("model", why)
            return None
        assert adapter is not None, "scores of other models are not kept"
        if self._model is None or self._model[0] is not adapter:
            self._model = (adapter, model_description(adapter))
        identity = score_identity(self._model[1], spec, all_pairs, prior, self._exact)
        return Slot(self, identity, self.folder / SCORES / identity.key[:32])

    def pixels(self, task: str) -> PixelDigestCache:
        """Digests of the images of a task."""
        return PixelDigestCache(self.folder, task, self.read, self.write)

    def prepared(self, adapter: object) -> PreparedImageCache | None:
        """Prepared images of this model's preprocessing; None if it does not state it, or none are to be kept."""
        limit = prepared_limit()
        key = prepared_key(adapter, self._exact) if limit else None
        return None if key is None else PreparedImageCache(self.folder, key, limit, self.read, self.write)

    def warn_once(self, what: str, message: str) -> None:
        """Tells the user, once in a run for each ``what``."""
        with self._saying:  # images are read and written by several threads
            new = what not in self._detail
            self._detail.add(what)
        if new:
            warn(message)

    def read(self, path: Path, check: Callable[[Entry], str | None]) -> Entry | None:
        """A file of the cache; None if it is not there, or cannot be used, which is said.

        Args:
            path: the file.
            check: gives what is wrong with it, if anything.

        Returns:
            Its content.
        """
        try:
            entry = read_entry(path)
            wrong = check(entry)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except DamagedError as error:
            wrong = str(error)
        except OSError as error:
            self.warn_once(
                "reading", f"the cache cannot be read: {path} ({error.strerror or error}); scoring without it"
            )
            return None
        if wrong is not None:
            self.warn_once(str(path), f"{path} is damaged ({wrong}) and is computed again")
            return None
        return entry

    def write(self, path: Path, entry: Entry) -> bool:
        """Writes a file of the cache, if that works; the first time that it does not is said."""
        if self._writes:
            try:
                write_entry(path, entry)
                return True
            except OSError as error:
                self._writes = False
                reason = error.strerror or error
                self.warn_once(
                    "writing", f"the cache in {self.folder} cannot be written to ({reason}); nothing is kept"
                )
        return False


class ImagesAlone(ScoreCache):
    """Prepared images of the cache and no scores: for a model whose weights are no longer those that it states."""

    def __init__(self, cache: ScoreCache) -> None:
        super().__init__(cache.folder, cache._exact)

    def slot(self, model: Capabilities, spec: TaskSpec, all_pairs: bool, prior: Debiasable | None) -> None:
        """No place for scores."""


@dataclass(frozen=True)
class Slot:
    """Where the scores of a model on a task are kept, whatever the data."""

    cache: ScoreCache
    identity: Identity
    folder: Path

    def known(self) -> bool:
        """Whether there is anything of this model and task, for some data."""
        try:
            return any(path.suffix in (ENDING, BLOCKS) for path in self.folder.iterdir())
        except OSError:
            return False

    def at(self, data_sha256: str, started: StartedBlocks | None = None) -> CacheEntry:
        """The place for these data."""
        return CacheEntry(self, data_sha256, started)


@dataclass(frozen=True)
class StartedBlocks:
    """Blocks of images while the rest are still to be opened; a `ttmbench.scoring.batches.BlockStore` that only keeps.

    The fingerprint of the data is not known yet. So these blocks lie in a folder by the names of images and captions,
    and each says which pixels it is of.

    Attributes:
        slot: of the model and the task.
        names: sha256 of the names of images, and of the captions.
        pixels: number of the first row and of the row after the last -> digest of the pixels of these images.
        kept: is told of each block.
    """

    slot: Slot
    names: str
    pixels: Callable[[int, int], str]
    kept: Callable[[], None] = lambda: None

    @property
    def folder(self) -> Path:
        """Of the blocks."""
        return self.slot.folder / f"{self.names}{BLOCKS}"

    def get(self, side: str, block: int) -> np.ndarray | None:
        """Nothing: before the images are opened it is not known what is there."""
        return None

    def put(self, side: str, block: int, values: np.ndarray) -> None:
        """Keeps a finished block."""
        first = block * FEATURES
        about = block_header(self.slot, self.names, side, block)
        about["pixels"] = self.pixels(first, first + len(values))
        self.slot.cache.write(block_path(self.folder, side, block), Entry(about, {"values": values}))
        self.kept()

    def found(self, side: str, block: int) -> Entry | None:
        """A block of a run that was stopped, if its images are those of now, all of which are known."""

        def check(entry: Entry) -> str | None:
            values = entry.arrays.get("values")
            if not is_block_of(entry, self.slot, self.names, side, block) or values is None or values.ndim < 1:
                return "it is another block"
            return None if values.dtype == np.float32 and np.isfinite(values).all() else "it holds no features"

        entry = self.slot.cache.read(block_path(self.folder, side, block), check)
        if entry is None:
            return None
        values = entry.arrays["values"]
        first = block * FEATURES
        return entry if entry.about.get("pixels") == self.pixels(first, first + len(values)) else None


def block_path(folder: Path, side: str, block: int) -> Path:
    """The file of a block."""
    return folder / f"{side}-{block:06d}{ENDING}"


def block_header(slot: Slot, data: str, side: str, block: int) -> dict[str, Any]:
    """What the file of a block says of itself; ``data`` is what its folder is named by."""
    return {**_about(slot, data, "block"), "side": side, "block": block}


def is_block_of(entry: Entry, slot: Slot, data: str, side: str, block: int) -> bool:
    """Whether a file is the block that its name says."""
    expected = {"kind": "block", "key": slot.identity.key, "data_sha256": data, "side": side, "block": block}
    return all(entry.about.get(name) == value for name, value in expected.items())


def _about(slot: Slot, data: str, kind: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "key": slot.identity.key,
        "data_sha256": data,
        "task": slot.identity.about["task"],
        "task_version": slot.identity.about["task_version"],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": [hardware()],
    }


@dataclass
class CacheEntry:
    """Where the scores of a model on the data of a task are kept; a `ttmbench.scoring.batches.BlockStore`.

    Attributes:
        slot: of the model and the task.
        data: fingerprint of the data.
        started: where a run that did not know the fingerprint yet may have left blocks of images.
        found: blocks that an earlier run left.
        before: files of blocks that were there when several processes began to fill it together; None if none did.
        new: blocks that this run has computed.
        hardware: of the runs that computed what was found.
    """

    slot: Slot
    data: str
    started: StartedBlocks | None = None
    found: set[tuple[str, int]] = field(default_factory=set)
    before: set[str] | None = None
    new: set[tuple[str, int]] = field(default_factory=set)
    hardware: list[dict[str, Any]] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """The file of finished scores."""
        return self.slot.folder / f"{self.data}{ENDING}"

    def load(self, shape: tuple[int, int, int]) -> CachedScores | None:
        """The scores of an earlier run; None if there are none, or none that can be used.

        Args:
            shape: of the array that is expected: groups, images, captions.

        Returns:
            The scores, all finite.
        """
        all_pairs = bool(self.slot.identity.about["all_pairs"])
        debiased = self.slot.identity.about["debiasing"] is not None
        groups, images, captions = shape
        expected = {"groups": shape}
        if all_pairs:
            expected["all_pairs"] = (groups * images, groups * captions)  # type: ignore[assignment]
        if debiased:
            expected |= {f"conditional_{name}": value for name, value in list(expected.items())}
            expected["prior"] = (groups, captions)  # type: ignore[assignment]

        entry = self.slot.cache.read(self.path, lambda entry: self._wrong(entry, "scores", expected))
        if entry is None:
            return None
        with suppress(OSError):
            self.path.touch()  # when it was used last, for who makes room
        self._note_hardware(entry)
        arrays = entry.arrays
        parts = None
        if debiased:
            parts = Likelihoods(
                Scores(arrays["conditional_groups"], arrays.get("conditional_all_pairs")), arrays["prior"]
            )
        return CachedScores(
            Scores(arrays["groups"], arrays.get("all_pairs")), parts, self.slot.identity.key, entry.about["date"]
        )

    def save(self, raw: Scores, parts: Likelihoods | None, model_name: str) -> None:
        """Keeps finished scores, and drops their blocks."""
        arrays = {"groups": raw.groups}
        if raw.all_pairs is not None:
            arrays["all_pairs"] = raw.all_pairs
        if parts is not None:
            arrays |= {"prior": parts.prior, "conditional_groups": parts.conditional.groups}
            if parts.conditional.all_pairs is not None:
                arrays["conditional_all_pairs"] = parts.conditional.all_pairs
        if self.slot.cache.write(self.path, Entry(self._about_scores(len(raw.groups), model_name), arrays)):
            shutil.rmtree(self._blocks, ignore_errors=True)
            if self.started is not None:
                shutil.rmtree(self.started.folder, ignore_errors=True)

    def load_arrays(self, expected: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, np.ndarray], str] | None:
        """Arrays of an earlier run that are no score arrays, and when they were written; None if there are none."""
        entry = self.slot.cache.read(self.path, lambda entry: self._wrong(entry, "scores", dict(expected)))
        if entry is None:
            return None
        with suppress(OSError):
            self.path.touch()
        self._note_hardware(entry)
        return entry.arrays, str(entry.about["date"])

    def save_arrays(self, arrays: Mapping[str, np.ndarray], n_groups: int, model_name: str) -> None:
        """Keeps arrays, float32, and drops the blocks that they were made of."""
        if self.slot.cache.write(self.path, Entry(self._about_scores(n_groups, model_name), dict(arrays))):
            shutil.rmtree(self._blocks, ignore_errors=True)

    def get(self, side: str, block: int) -> np.ndarray | None:
        """A finished block of an interrupted run."""

        def check(entry: Entry) -> str | None:
            if (entry.about.get("side"), entry.about.get("block")) != (side, block):
                return "it is another block"
            return self._wrong(entry, "block", {"values": None})

        entry = self.slot.cache.read(block_path(self._blocks, side, block), check)
        if entry is None and self.started is not None and side == "images":
            entry = self.started.found(side, block)
        if entry is None:
            return None
        if self.before is None or block_path(self._blocks, side, block).name in self.before:
            self.found.add((side, block))
            self._note_hardware(entry)
        return entry.arrays["values"]

    def put(self, side: str, block: int, values: np.ndarray) -> None:
        """Keeps a finished block."""
        self.found.discard((side, block))
        self.new.add((side, block))
        about = block_header(self.slot, self.data, side, block)
        self.slot.cache.write(block_path(self._blocks, side, block), Entry(about, {"values": values}))

    def note_blocks(self) -> None:
        """From now on only blocks that are there at this moment count as an earlier run's."""
        self.before = {path.name for path in self._blocks.iterdir()} if self._blocks.is_dir() else set()

    @property
    def _blocks(self) -> Path:
        return self.slot.folder / f"{self.data}{BLOCKS}"

    def _about_scores(self, n_groups: int, model_name: str) -> dict[str, Any]:
        about = _about(self.slot, self.data, "scores")
        earlier = [one for one in self.hardware if one not in about["hardware"]]
        more = {"n_groups": n_groups, "model_name": model_name, "made_of": self.slot.identity.about}
        return {**about, **more, "hardware": [*earlier, *about["hardware"]]}

    def _note_hardware(self, entry: Entry) -> None:
        self.hardware += [one for one in entry.about.get("hardware", ()) if one not in self.hardware]

    def _wrong(self, entry: Entry, kind: str, expected: dict[str, Any]) -> str | None:
        """What is wrong with an entry whose digest is right; None if nothing is."""
        about = entry.about
        if (about.get("kind"), about.get("key"), about.get("data_sha256")) != (kind, self.slot.identity.key, self.data):
            return "it belongs to other scores"
        if set(entry.arrays) != set(expected):
            return "it has other arrays than it should"
        for name, values in entry.arrays.items():
            if values.dtype != np.float32 or (expected[name] is not None and values.shape != expected[name]):
                return f"'{name}' is {values.dtype} {list(values.shape)}"
            if not np.isfinite(values).all():
                return f"'{name}' is not finite"
        return None


def open_cache(given: str | None, exact: Mapping[str, Any] | None = None) -> ScoreCache | None:
    """The cache that a run uses; None if it is off. ``given`` is what the user said of it, ``exact`` as there."""
    folder = cache_folder(given)
    return None if folder is None else ScoreCache(folder, exact)
