"""What the cache does for a task of a run: recognises data, finds what runs made of them, keeps what is new."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ttmbench.cache.scores import CachedScores, CacheEntry, ScoreCache, Slot, StartedBlocks
from ttmbench.data.task_file import TaskSpec
from ttmbench.protocols import Debiasable
from ttmbench.scoring.batches import BlockStore
from ttmbench.scoring.capabilities import Capabilities
from ttmbench.scoring.debiasing import Likelihoods
from ttmbench.scoring.fingerprint import Fingerprint
from ttmbench.types import Group, Scores


class KnownData:
    """The cache as a task of a run uses it: recognises the data, and keeps what was made of them.

    Without a cache it finds nothing and keeps nothing.

    Args:
        cache: of the run, if it has one.
        model: the model and what it can do.
        slot: where what this model makes of the task goes, if it is kept.
        task: name of the task.
        groups: its data.

    Attributes:
        data: fingerprint of the data.
        prepared: where prepared images are kept, if anywhere.
    """

    def __init__(
        self, cache: ScoreCache | None, model: Capabilities, slot: Slot | None, task: str, groups: Sequence[Group]
    ) -> None:
        self._slot = slot
        self._pixels = None if cache is None or slot is None else cache.pixels(task)
        self._place: CacheEntry | None = None
        self.data = Fingerprint(groups, self._pixels)
        self.prepared = None if cache is None else cache.prepared(model.adapter)

    @property
    def blocks(self) -> BlockStore | None:
        """Where finished blocks go, once it has been looked whether these data are known."""
        return self._place

    def _recognise(self) -> str:
        """Fingerprint of the data; takes in what of them has not been opened yet."""
        self.data.add_remaining()
        if self._pixels is not None:
            self._pixels.flush()
        return self.data.hexdigest()

    def _keep(self, what: str, date: str | None, save: Callable[[CacheEntry], None]) -> dict[str, Any] | None:
        """Keeps what is new, tells the user what is not, and makes room.

        Args:
            what: "raw scores" or "ranks", for the message.
            date: of the entry that an earlier run kept, if it was found.
            save: writes a new one.

        Returns:
            What an earlier run kept: key and date of an entry, or a number of blocks, and on which hardware; None for
            nothing.
        """
        if self._pixels is not None:
            self._pixels.flush()
        if self.prepared is not None:
            self.prepared.evict()
        if self._place is None or self._slot is None:
            return None
        cache, identity = self._slot.cache, self._slot.identity
        if date is not None:
            cache.warn_once("hit", f"{what} come from the cache in {cache.folder}; --use_cache off computes them again")
            return {"key": identity.key, "date": date, "hardware": self._place.hardware}
        save(self._place)
        found, total = len(self._place.found), len(self._place.found | self._place.new)
        if not found:
            return None
        task = identity.about["task"]
        cache.warn_once(f"blocks {task}", f"{task}: {found} of {total} blocks were kept by a stopped run")
        return {"key": identity.key, "blocks": found, "of": total, "hardware": self._place.hardware}


class TaskCache(KnownData):
    """The cache as a task with groups uses it.

    Args:
        cache: of the run, if it has one.
        model: the model and what it can do.
        spec: the task.
        groups: its data.
        all_pairs: whether every image meets every caption.
        prior: where log P(t) comes from, if it is taken off.

    Attributes:
        kept: scores of an earlier run, once they were looked up and found.
    """

    def __init__(
        self,
        cache: ScoreCache | None,
        model: Capabilities,
        spec: TaskSpec,
        groups: Sequence[Group],
        all_pairs: bool,
        prior: Debiasable | None,
    ) -> None:
        slot = None if cache is None else cache.slot(model, spec, all_pairs, prior)
        super().__init__(cache, model, slot, spec.task, groups)
        self._shape = (len(groups), *(spec.group.shape or (1, 0)))
        self._blind = model.blind is not None
        self._finished = 0
        self.kept: CachedScores | None = None

    @property
    def on(self) -> bool:
        """Whether scores of this model are kept."""
        return self._slot is not None

    @property
    def may_have(self) -> bool:
        """Whether there are scores of this model and task, for whatever data."""
        return self._slot is not None and self._slot.known()

    def look_up(self) -> None:
        """Looks for scores of these data; takes in what of the data has not been opened yet."""
        if self._slot is None:
            return
        self._place = self._slot.at(self._recognise(), self._started)
        self.kept = self._place.load(self._shape)

    @property
    def blocks(self) -> BlockStore | None:
        """Where finished blocks go, after `look_up`; blind scorers would lose what they remember of captions."""
        return None if self._blind else self._place

    def note_blocks(self) -> None:
        """Takes the blocks that are there now as an earlier run's, before other processes of this run add theirs."""
        if self._place is not None:
            self._place.note_blocks()

    @property
    def image_blocks(self) -> BlockStore | None:
        """Where finished features of images go, whether or not all of these have been opened."""
        return self.blocks if self._blind or self._place is not None else self._started

    @property
    def _started(self) -> StartedBlocks | None:
        if self._slot is None:
            return None
        return StartedBlocks(self._slot, self.data.names(), self.data.pixels_of, self._remember_pixels)

    def _remember_pixels(self) -> None:
        """Writes digests of pixels now and then: after 1, 2, 4, ... blocks, since each time all of them are written."""
        self._finished += 1
        if self._pixels is not None and self._finished & (self._finished - 1) == 0:
            self._pixels.flush()

    def keep(self, raw: Scores, parts: Likelihoods | None, model_name: str) -> dict[str, Any] | None:
        """Keeps scores that are new, tells the user which were not, and makes room.

        Args:
            raw: the scores that the run uses.
            parts: of which they were debiased, if they were.
            model_name: for who lists the cache.

        Returns:
            What an earlier run kept: key and date of an entry, or a number of blocks; None for nothing.
        """
        date = None if self.kept is None else self.kept.date
        return self._keep("raw scores", date, lambda place: place.save(raw, parts, model_name))
