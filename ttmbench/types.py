"""The frozen types that flow through a run, one way: task -> scores -> matching -> pseudo-labels -> record.

Axis order everywhere: groups, images, captions. Scores, margins and thresholds are logits; rates are fractions
in [0, 1]; what is undefined is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ttmbench._annotations import Bool, Float, Image, Int
from ttmbench.errors import UsageError

Track = Literal["zero_shot", "forced_choice", "matching", "test_time", "supervised", "oracle"]

Exif = Literal["apply", "ignore"]
"""What becomes of an image's EXIF orientation: it is turned upright, or left as its pixels are stored."""


@dataclass(frozen=True)
class GroupShape:
    """Number of images (m) and captions (k) in each group of a task, and how many captions are true for an image (t).

    The first ``m * t`` captions are true: the first t of the first image, the next t of the second, and so on. The
    others are true for no image of the group. With more images than captions (t = 1), images are left without any.
    """

    images: int
    captions: int
    true_captions: int = 1

    def __post_init__(self) -> None:
        if min(self.images, self.captions) < 1 or max(self.images, self.captions) < 2:
            raise ValueError(
                f"a group needs images and captions, of one of them at least 2, got {self.images}x{self.captions}"
            )
        true = self.images * self.true_captions
        if self.true_captions < 1 or (true > self.captions and not (self.more_images and self.true_captions == 1)):
            raise ValueError(
                f"{self.true_captions} true captions for each of {self.images} images do not fit into {self.captions} "
                "captions"
            )
        if self.images == 1 and true == self.captions:
            raise ValueError(f"all {true} captions are true for the one image, so there is nothing to tell apart")

    @property
    def more_images(self) -> bool:
        """Whether there are more images than captions, so that captions choose among images."""
        return self.images > self.captions

    def __str__(self) -> str:
        return f"{self.images}x{self.captions}" + (f" ({self.true_captions} true)" if self.true_captions > 1 else "")

    def truth(self, groups: int) -> Int[np.ndarray, "all_images true"]:
        """The captions that are true for each image, by their columns among the captions of all groups.

        >>> GroupShape(1, 3, true_captions=2).truth(2).tolist()
        [[0, 1], [3, 4]]
        """
        if self.more_images:
            raise ValueError(f"in {self} groups some images have no caption")
        own = np.arange(self.images * self.true_captions).reshape(1, self.images, -1)
        return (np.arange(groups)[:, None, None] * self.captions + own).reshape(-1, self.true_captions)


@dataclass(frozen=True)
class ImageRef:
    """An image by name, opened only when asked: equal names within a task mean the same image.

    Attributes:
        name: what records call it.
        open: reads and decodes it.
        file: where it lies as a file of its own, if it does.
        read: gives its file's bytes, undecoded, where there are some; cheaper than opening it.
        exif: how it is read.
        variant: what else of its reading changes its pixels (a crop, an order of colours); empty for nothing.
        reader: digest of the source of the plugin that opens it, set by ttmbench: bytes do not tell what a plugin
            makes of them. Empty for a reader of ttmbench; None if the source cannot be read, so that nothing is cached.
    """

    name: str
    open: Callable[[], Image] = field(compare=False, repr=False)
    file: Path | None = field(default=None, compare=False, repr=False)
    read: Callable[[], bytes] | None = field(default=None, compare=False, repr=False)
    exif: Exif = field(default="apply", compare=False, repr=False)
    variant: str = field(default="", compare=False, repr=False)
    reader: str | None = field(default="", compare=False, repr=False)


@dataclass(frozen=True)
class Group:
    """Images and captions that are told apart together; which caption is true for which image: `GroupShape`."""

    group_id: str
    images: tuple[ImageRef, ...]
    captions: tuple[str, ...]
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Scores:
    """What a model says of a task, in logits.

    Attributes:
        groups: float32 [groups, images, captions].
        all_pairs: float32 [groups * images, groups * captions], every image against every caption in the order of
            the groups; only where a metric or the global variant asks for it.
        caption_pairs: [groups, captions, captions], how alike captions are to the model; only where a metric asks.
    """

    groups: Float[np.ndarray, "groups images captions"]
    all_pairs: Float[np.ndarray, "all_images all_captions"] | None = None
    caption_pairs: Float[np.ndarray, "groups captions captions"] | None = None

    @property
    def shape(self) -> GroupShape:
        """Images and captions per group, as the array has them: it does not say how many captions are true."""
        return GroupShape(*self.groups.shape[1:])

    @property
    def truth(self) -> Int[np.ndarray, " all_images"]:
        """Column of ``all_pairs`` that is true for each of its rows, where one caption is true for an image."""
        return self.shape.truth(len(self.groups))[:, 0]


@dataclass(frozen=True)
class Matching:
    """The caption that each image of each group is given, and how clear the choice was.

    Attributes:
        captions: index of the caption given to each image; where ``tie`` is set, one of several equal choices. Where
            several captions are true for an image, it is given as many: one more axis. -1: it is given none.
        margin: best total minus second-best total, in logits, never negative.
        tie: whether several matchings share the best total.
    """

    captions: Int[np.ndarray, "groups images ..."]
    margin: Float[np.ndarray, " groups"]
    tie: Bool[np.ndarray, " groups"]


@dataclass(frozen=True)
class GlobalMatching:
    """The one assignment of captions to all images that has the largest total (Eq. 2).

    Attributes:
        captions: index of the caption given to each image; one more axis where an image is given several.
        scores: the score of each assigned pair, in logits.
        tie: whether some equally good assignment gives the image another caption.
    """

    captions: Int[np.ndarray, "images ..."]
    scores: Float[np.ndarray, "images ..."]
    tie: Bool[np.ndarray, " images"]


@dataclass(frozen=True)
class IterationRecord:
    """One iteration of TTM, as reported. Everything that read a label is a diagnostic and steered nothing.

    Attributes:
        iteration: of the run of ``seed``; 1 for the first.
        threshold: tau_t; logits, or a share for the global share rule.
        selected: number of pseudo-labelled units (groups; pairs in the global variant).
        candidates: number of units to select from.
        coverage: ``selected / candidates``.
        tied: number of units that no threshold could select, because their matching ties.
        pseudo_label_accuracy: share of right ones among the selected (diagnostic); None if none was selected.
        loss: mean training loss of each epoch; empty if nothing was selected.
        learning_rate: the rate at which this iteration started.
        metrics: metric name -> value after this iteration's finetuning (diagnostic).
        seconds: wall time of the iteration.
    """

    seed: int
    iteration: int
    threshold: float
    selected: int
    candidates: int
    coverage: float
    tied: int
    pseudo_label_accuracy: float | None
    loss: tuple[float, ...]
    learning_rate: float
    metrics: Mapping[str, float | None]
    seconds: float


@dataclass(frozen=True)
class ModelCard:
    """What a person wants to know of a named model before it is fetched.

    Attributes:
        weights: name of the file that is read.
        bytes: its size, where it is known.
        license: of the weights, as their page declares it; None where it declares none.
        gated: whether terms have to be accepted on the hub first.
        trained_on: names of the image collections that it was trained on, as its authors state them (``coco``,
            ``visual-genome``, ...); empty for none, None where they do not say.
        quick_gelu: whether the activation of a CLIP is QuickGELU or GELU; None for models without that choice.
    """

    weights: str
    bytes: int | None = None
    license: str | None = None
    gated: bool = False
    trained_on: tuple[str, ...] | None = None
    quick_gelu: bool | None = None

    @property
    def size(self) -> str:
        """The size as far as it is known, to two digits.

        >>> ModelCard("model.safetensors", 605_157_884).size, ModelCard("x", 983_932).size, ModelCard("x").size
        ('0.61 GB', '0.98 MB', 'unknown')
        """
        if self.bytes is None:
            return "unknown"
        unit, step = ("GB", 1e9) if self.bytes >= 1e8 else ("MB", 1e6)
        return f"{self.bytes / step:.2g} {unit}"


@dataclass(frozen=True)
class AdapterSpec:
    """A model adapter by name.

    Attributes:
        name: what ``--model`` calls it.
        target: ``"module:callable"``, imported when the model is asked for; called with the model arguments as
            keywords, and with ``device``, ``dtype`` and ``trust_remote_code`` where it accepts them.
        summary: one line for ``ttmbench ls models``.
        needs: extras or packages to install, named when the import fails.
        aliases: other names.
        model_args: arguments that this name fixes; ``--model_args`` may override them.
        ttm_defaults: TTM settings that suit this model (a learning rate, say); task files and ``--ttm_args`` win.
        card: what a person wants to know before the weights are fetched.
        options: ``"module:class"`` of its arguments, if they have one; ``ttmbench show`` prints its ``described()``.
    """

    name: str
    target: str
    summary: str = ""
    needs: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    model_args: Mapping[str, Any] = field(default_factory=dict)
    ttm_defaults: Mapping[str, Any] = field(default_factory=dict)
    card: ModelCard | None = None
    options: str | None = None


@dataclass(frozen=True)
class ModelFiles:
    """The files that a model's weights are read from.

    Attributes:
        name: hub id, folder or file, as it was asked for.
        folder: where they lie on this machine.
        weights: names below the folder.
        commit: of the hub repository; None for files of the user's own.
        beside: what else is read from a repository or folder of its own: a tokenizer, say.
    """

    name: str
    folder: Path
    weights: tuple[str, ...]
    commit: str | None = None
    beside: tuple[ModelFiles, ...] = ()

    @property
    def are_pickles(self) -> bool:
        """Whether weights are in a format that holds a program beside the tensors."""
        return any(not name.endswith((".safetensors", ".safetensors.index.json", ".npz")) for name in self.weights)

    def provenance(self) -> dict[str, Any]:
        """What results say of them: repository or last part of the path, commit, files and format."""
        return {
            "name": Path(self.name).resolve().name if Path(self.name).exists() else self.name,
            "commit": self.commit,
            "files": list(self.weights),
            **({"format": "pickle" if self.are_pickles else "safetensors"} if self.weights else {}),
            **({"beside": [other.provenance() for other in self.beside]} if self.beside else {}),
        }


def _needs_registry(source: Mapping[str, object], request: SourceRequest) -> Any:
    raise UsageError(f"source '{source.get('kind')}' can be read through the registry only")


@dataclass(frozen=True)
class SourceRequest:
    """What a source is asked for.

    Attributes:
        options: the ``source:`` mapping of the task file without ``kind``.
        columns: what the ``group:`` mapping says of columns and rows (``id``, ``images``, ``captions``, ``tags``,
            ``crop``, ``where``, ``first_rows``).
        shape: images and captions per group; of tasks of another kind, whose rows have one image each, 1x2.
        n_groups: how many groups the task file promises, if it does.
        folder: of the task file, for relative paths; None for tasks inside a package archive.
        limit: read no more groups than this, if set. With ``offline``, the network is never touched.
        data_dir: folder of the files that users fetch themselves; may not exist.
        kind: of the task. Of ``retrieval`` a group is an image with its captions, any number from one; of
            ``classification`` an image with its label as the only caption.
        read: of kinds that combine others: (another ``source`` mapping, a request) -> what that source gives.
        locations: of the same arguments: the places of that source.
    """

    options: Mapping[str, Any]
    columns: Mapping[str, Any]
    shape: GroupShape
    n_groups: int | None = None
    folder: Path | None = None
    limit: int | None = None
    offline: bool = False
    data_dir: Path | None = None
    kind: Literal["groups", "retrieval", "classification"] = "groups"
    read: Callable[[Mapping[str, object], SourceRequest], Loaded] = _needs_registry
    locations: Callable[[Mapping[str, object], SourceRequest], list[Any]] = _needs_registry


@dataclass(frozen=True)
class Loaded:
    """A task's data: groups in the source's order; ``source`` is their origin, as JSON values for the results."""

    groups: list[Group]
    source: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceSpec:
    """A reader of raw data.

    Attributes:
        kind: what task files name.
        target: ``"module:callable"``: a request -> groups.
        summary: one line.
        needs: ``"module:callable"``: a request -> the `DataLocation`s, in the order in which the reader tries them, for
            ``ttmbench download`` and ``doctor``. Without it a download reads the task once, with the network.
    """

    kind: str
    target: str
    summary: str = ""
    needs: str = ""


@dataclass(frozen=True)
class MetricSpec:
    """A metric of a score array.

    Attributes:
        name: as task files and results spell it.
        compute: scores [groups, images, captions] -> bool or fraction [groups]. With ``scope="global"``: scores [all
            images, all captions] and true caption [all images] -> bool [all images]. ``captions``: likeness [groups,
            captions, captions] -> bool or fraction [groups]. ``i2t``, ``t2i``, ``class``:
            `ttmbench.results.ranks.Ranks` -> bool or fraction [queries], or None where these do not tell.
        summary: one line for ``ttmbench ls metrics``.
        ties: same arguments -> bool of the same length: a comparison that the metric makes is an equality.
        chance: (images, captions), with ``scope="global"`` all of them, or ranks -> expected value of i.i.d. continuous
            scores, None if unknown.
        defined: (images, captions) -> whether the metric means anything for this shape; see the default.
        scope: what it is of: a ``group``, all pairs (``global``), the ``captions`` of a group alone, what an image
            (``i2t``) or a caption (``t2i``) finds, or an image's ``class``.
        track: which leaderboard track the raw value belongs to.
        higher_is_better: as lm-evaluation-harness has it.
        several_true: tasks in which several captions are true for an image: the metric is ``undefined`` for them,
            ``defined`` for them too, or for them ``only``. If it is defined, functions take the keyword
            ``true_captions`` there, and the truth that a global metric is given is [all images, true captions].
        plugin: that registered it, for messages; left to the registry.
    """

    name: str
    compute: Callable[..., Any]
    summary: str = ""
    ties: Callable[..., np.ndarray] | None = None
    chance: Callable[..., float | None] | None = None
    defined: Callable[..., bool] = lambda images, captions, true_captions=1: images <= captions
    scope: Literal["group", "global", "captions", "i2t", "t2i", "class"] = "group"
    track: Track = "zero_shot"
    higher_is_better: bool = True
    several_true: Literal["undefined", "defined", "only"] = "undefined"
    plugin: str = ""


@dataclass(frozen=True)
class ScheduleSpec:
    """A threshold schedule: (tau_start, tau_end, iterations) -> thresholds [iterations]."""

    name: str
    compute: Callable[[float, float, int], np.ndarray]
    summary: str = ""
