"""The cache as a run uses it: raw scores or ranks of a task, and blocks of unfinished ones."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from ttmbench._util.digests import json_digest
from ttmbench._util.machine import hardware
from ttmbench.cache.entry import ENDING, SCORES, Arrays, DamagedError, Header, Store, prepared_limit
from ttmbench.cache.images import PixelDigestCache, PreparedImageCache
from ttmbench.cache.key import Identity, model_description, prepared_key, score_identity, why_not_kept
from ttmbench.data.task_file import TaskSpec
from ttmbench.protocols import Adapter, Debiasable
from ttmbench.scoring.batches import FEATURES, BlockStore
from ttmbench.scoring.capabilities import Capabilities
from ttmbench.scoring.debiasing import Likelihoods
from ttmbench.scoring.fingerprint import Fingerprint
from ttmbench.types import Group, Scores

BLOCKS = ".blocks"


class ScoreCache(Store):
    """The cache of one run.

    ``exact`` is what bits depend on beside model, data and settings, for a run that is to be repeated bit by bit. With
    ``images_alone`` no scores are cached: for a model whose weights are no longer those that it states.
    """

    def __init__(self, folder: Path, exact: Header | None = None, images_alone: bool = False) -> None:
        super().__init__(folder)
        self.exact, self.keeps_scores = exact, not images_alone
        self.as_loaded: object | None = None  # a model that the run has loaded itself and not trained yet
        self._model: tuple[Adapter, Header] | None = None

    def identity(
        self, model: Capabilities, spec: TaskSpec, all_pairs: bool, prior: Debiasable | None
    ) -> Identity | None:
        """What a model's scores on a task depend on beside the data; None if they are not cached."""
        why, adapter = why_not_kept(model), model.fingerprinted
        if why:
            self.warn_once("model", why)
        if why is not None or adapter is None or not self.keeps_scores:
            return None
        if self._model is None or self._model[0] is not adapter:
            self._model = (adapter, model_description(adapter, adapter is self.as_loaded))
        return score_identity(self._model[1], spec, all_pairs, prior, self.exact)

    def pixels(self, task: str) -> PixelDigestCache:
        """Digests of the images of a task."""
        return PixelDigestCache(self, task)

    def prepared(self, adapter: object) -> PreparedImageCache | None:
        """Prepared images of this model's preprocessing; None if it does not state it, or none are to be cached."""
        limit = prepared_limit()
        key = prepared_key(adapter, self.exact) if limit else None
        return None if key is None else PreparedImageCache(self, key, limit)


class KnownData:
    """The cache of one task of a run: recognises the data, and stores what was computed of them.

    Without a cache it finds and stores nothing. It is a `ttmbench.scoring.batches.BlockStore`, too: finished blocks lie
    in a folder named by the names of images and captions, and each says which data it is of. Blocks of images name
    their own pixels alone, so that they can be stored before all images are opened.

    ``prior`` says where log P(t) comes from, if it is subtracted, and ``also`` what else the arrays depend on, for
    JSON: classes and prompts, the candidates of a first stage. ``data`` is the fingerprint, ``prepared`` the cache of
    prepared images.
    """

    what = "raw scores"
    _images_apart = True  # whether rows of images are the distinct images of the groups

    def __init__(
        self,
        cache: ScoreCache | None,
        model: Capabilities,
        spec: TaskSpec,
        groups: Sequence[Group],
        all_pairs: bool = False,
        prior: Debiasable | None = None,
        also: object = None,
    ) -> None:
        self._cache = cache
        self._identity = None if cache is None else cache.identity(model, spec, all_pairs, prior)
        self._pixels = None if cache is None or self._identity is None else cache.pixels(spec.task)
        self.data = Fingerprint(groups, self._pixels)
        self.prepared = None if cache is None else cache.prepared(model.adapter)
        self._n_groups, self._also, self._blind = len(groups), also, model.blind is not None
        self._shape = spec.group.shape or (1, 0)
        self._known: str | None = None  # digest of the data, once they are recognised
        self._date: str | None = None  # of what an earlier run kept of them
        self._hardware: list[Header] = []  # of the runs that computed what was found
        self._found: set[tuple[str, int]] = set()  # blocks of an earlier run
        self._new: set[tuple[str, int]] = set()  # blocks of this one
        self._before: set[str] | None = None  # files of blocks before several processes filled them together

    @property
    def on(self) -> bool:
        """Whether scores of this model are cached."""
        return self._identity is not None

    @property
    def blocks(self) -> BlockStore | None:
        """Where finished blocks go once the data are known; blind scorers would lose what they remember of captions."""
        return None if self._blind or self._known is None else self

    @property
    def image_blocks(self) -> BlockStore | None:
        """Where finished features of images go, whether or not all of these have been opened."""
        return None if self._blind or self._identity is None else self

    def note_blocks(self) -> None:
        """Counts the present blocks as an earlier run's, before other processes of this run add theirs."""
        if self._identity is not None:
            self._before = {path.name for path in self._blocks_folder.glob(f"*{ENDING}")}

    def get(self, side: str, block: int) -> np.ndarray | None:
        """A finished block of an interrupted run on these data."""
        if self._cache is None or self._known is None:
            return None

        path = self._block_path(side, block)

        def parse(about: Header, arrays: Arrays) -> np.ndarray | None:
            if (about.get("side"), about.get("block")) != (side, block):
                raise DamagedError("it is another block")
            self._check(about, arrays, "block", self._names, {"values": None})
            values = arrays["values"]
            if about.get("of") != self._data_of(side, block, len(values)):
                return None
            if self._before is None or path.name in self._before:
                self._found.add((side, block))
                self._note_hardware(about)
            return values

        return self._cache.read(path, parse)

    def put(self, side: str, block: int, values: np.ndarray) -> None:
        """Stores a finished block."""
        assert self._cache is not None, "blocks go where there is a cache"
        self._found.discard((side, block))
        self._new.add((side, block))
        about = {**self._about("block", self._names), "side": side, "block": block}
        about["of"] = self._data_of(side, block, len(values))
        self._cache.write(self._block_path(side, block), about, {"values": values})
        if self._known is None and self._pixels is not None and len(self._new) & (len(self._new) - 1) == 0:
            self._pixels.flush()  # after 1, 2, 4, ... blocks, since each time all digests are written

    def _find(self, expected: Mapping[str, tuple[int, ...] | None]) -> dict[str, np.ndarray] | None:
        """Arrays of an earlier run on these data, all finite; opens or looks up all images that were not opened yet."""
        if self._cache is None or self._identity is None or self._pixels is None:
            return None
        self.data.add_remaining()
        self._pixels.flush()
        self._known = self._with_also(self.data.hexdigest())
        path = self._folder / f"{self._known}{ENDING}"

        def parse(about: Header, arrays: Arrays) -> Arrays:
            self._check(about, arrays, "scores", str(self._known), expected)
            with suppress(OSError):
                path.touch()  # when it was used last, so that the least recently used go first
            self._note_hardware(about)
            self._date = str(about["date"])
            return arrays

        return self._cache.read(path, parse)

    def _keep(self, arrays: dict[str, np.ndarray], model_name: str) -> Header | None:
        """Stores new arrays and makes room; returns what an earlier run stored, and on which hardware, or None."""
        if self._pixels is not None:
            self._pixels.flush()
        if self.prepared is not None:
            self.prepared.evict()
        cache, identity = self._cache, self._identity
        if cache is None or identity is None or self._known is None:
            return None
        if self._date is not None:
            cache.warn_once(
                "hit", f"{self.what} come from the cache in {cache.folder}; --use_cache off computes them again"
            )
            return {"key": identity.key, "date": self._date, "hardware": self._hardware}
        about = self._about("scores", self._known)
        about |= {"n_groups": self._n_groups, "model_name": model_name, "made_of": identity.about}
        about["hardware"] = [*(host for host in self._hardware if host not in about["hardware"]), *about["hardware"]]
        if cache.write(self._folder / f"{self._known}{ENDING}", about, arrays):
            shutil.rmtree(self._blocks_folder, ignore_errors=True)
        if not self._found:
            return None
        earlier, total, task = len(self._found), len(self._found | self._new), identity.about["task"]
        cache.warn_once(f"blocks {task}", f"{task}: {earlier} of {total} blocks were cached by an interrupted run")
        return {"key": identity.key, "blocks": earlier, "of": total, "hardware": self._hardware}

    @property
    def _folder(self) -> Path:
        assert self._cache is not None and self._identity is not None, "there is something to look for"
        return self._cache.folder / SCORES / self._identity.key[:32]

    @property
    def _names(self) -> str:
        return self._with_also(self.data.names())

    @property
    def _blocks_folder(self) -> Path:
        return self._folder / f"{self._names}{BLOCKS}"

    def _block_path(self, side: str, block: int) -> Path:
        return self._blocks_folder / f"{side}-{block:06d}{ENDING}"

    def _with_also(self, digest: str) -> str:
        return digest if self._also is None else json_digest([digest, self._also])

    def _data_of(self, side: str, block: int, rows: int) -> str:
        """Digest of the data that a block depends on."""
        if side == "images" and self._images_apart:
            return self.data.pixels_of(block * FEATURES, block * FEATURES + rows)
        assert self._known is not None, "other blocks are computed once the data are known"
        return self._known

    def _about(self, kind: str, data: str) -> Header:
        assert self._identity is not None, "nothing else is kept"
        return {
            "kind": kind,
            "key": self._identity.key,
            "data_sha256": data,
            "task": self._identity.about["task"],
            "task_version": self._identity.about["task_version"],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "hardware": [hardware()],
        }

    def _note_hardware(self, about: Header) -> None:
        self._hardware += [computer for computer in about.get("hardware", ()) if computer not in self._hardware]

    def _check(
        self, about: Header, arrays: Arrays, kind: str, data: str, expected: Mapping[str, tuple[int, ...] | None]
    ) -> None:
        """Raises DamagedError for a file with a correct digest that holds something else."""
        key = None if self._identity is None else self._identity.key
        if (about.get("kind"), about.get("key"), about.get("data_sha256")) != (kind, key, data):
            raise DamagedError("it belongs to other scores")
        if set(arrays) != set(expected):
            raise DamagedError("it has other arrays than it should")
        for name, values in arrays.items():
            if values.dtype != np.float32 or (expected[name] is not None and values.shape != expected[name]):
                raise DamagedError(f"'{name}' is {values.dtype} {list(values.shape)}")
            if not values.ndim or not np.isfinite(values).all():
                raise DamagedError(f"'{name}' is not finite")


class TaskCache(KnownData):
    """The cache of a task with groups: raw scores, or both parts of debiased ones."""

    kept: Scores | Likelihoods | None = None

    @property
    def may_have(self) -> bool:
        """Whether there are scores or blocks of this model and task, for whatever data."""
        if self._identity is None:
            return False
        try:
            return any(path.suffix in (ENDING, BLOCKS) for path in self._folder.iterdir())
        except OSError:
            return False

    def look_up(self) -> None:
        """Looks for scores of these data; opens or looks up all images that were not opened yet."""
        if self._identity is None:
            return
        about, (images, captions) = self._identity.about, self._shape
        expected: dict[str, tuple[int, ...]] = {"groups": (self._n_groups, images, captions)}
        if about["all_pairs"]:
            expected["all_pairs"] = (self._n_groups * images, self._n_groups * captions)
        if about["debiasing"] is not None:
            expected["prior"] = (self._n_groups, captions)
        arrays = self._find(expected)
        if arrays is not None:
            scores = Scores(arrays["groups"], arrays.get("all_pairs"))
            self.kept = Likelihoods(scores, arrays["prior"]) if "prior" in arrays else scores

    def keep(self, scores: Scores | Likelihoods, model_name: str) -> Header | None:
        """Stores raw scores or both parts of debiased ones, if they are new; returns as `KnownData._keep`."""
        raw, prior = (scores.conditional, scores.prior) if isinstance(scores, Likelihoods) else (scores, None)
        arrays = {"groups": raw.groups, "all_pairs": raw.all_pairs, "prior": prior}
        return self._keep({name: array for name, array in arrays.items() if array is not None}, model_name)


class FeatureCache(KnownData):
    """The cache of a task's features: of each distinct image and caption, in the order of its groups."""

    what = "features of references"

    def look_up(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Features of images and of captions, float32 [distinct, ...]; opens or looks up all images. None for none."""
        arrays = self._find({"images": None, "captions": None})
        return None if arrays is None else (arrays["images"], arrays["captions"])

    def keep(self, images: np.ndarray, captions: np.ndarray, model_name: str) -> None:
        """Stores features that are new."""
        self._keep({"images": images, "captions": captions}, model_name)


class RankCache(KnownData):
    """The cache of a ranking task."""

    what = "ranks"
    _images_apart = False

    def look_up(self, expected: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray] | None:
        """Arrays of an earlier run by name, float32, of the expected shapes; None if there are none."""
        return self._find(expected)

    def keep(self, arrays: Mapping[str, np.ndarray], model_name: str) -> Header | None:
        """Stores arrays, whose whole numbers below 2^24 stay exact; returns as `KnownData._keep`."""
        return self._keep(
            {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in arrays.items()}, model_name
        )
