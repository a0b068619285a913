"""Frozen types of the public API: groups, scores, matchings, and what plugins register.

Axis order everywhere: groups, images, captions. Scores, margins and thresholds are logits; rates are fractions in
[0, 1]; None is undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from ttmbench._annotations import Bool, Float, Image, Int
from ttmbench.errors import UsageError

Track = Literal["zero_shot", "forced_choice", "matching", "test_time", "supervised", "oracle"]

Exif = Literal["apply", "ignore"]
"""Whether an image is rotated by its EXIF orientation, or used as its pixels are stored."""


Record = dict[str, Any]
"""A JSON object: a part of results, of a configuration, or of a file's metadata."""


@dataclass(frozen=True)
class GroupShape:
    """Number of images (m) and captions (k) in each group of a task, and of true captions for each image (t).

    The first t captions are true for the first image, the next t for the second, and so on; any remaining captions are
    distractors. With more images than captions (t = 1), the remaining images have no caption.
    """

    images: int
    captions: int
    true_captions: int = 1

    def __post_init__(self) -> None:
        if min(self.images, self.captions) < 1 or max(self.images, self.captions) < 2:
            raise ValueError(f"a group needs at least 2 images or 2 captions, got {self.images}x{self.captions}")
        true = self.images * self.true_captions
        if self.true_captions < 1 or (true > self.captions and not (self.more_images and self.true_captions == 1)):
            raise ValueError(f"{self.true_captions} true captions for each image do not fit into {self}")
        if self.images == 1 and true == self.captions:
            raise ValueError(f"all {true} captions are true for the one image, so there is nothing to match")

    @property
    def more_images(self) -> bool:
        """Whether there are more images than captions, so that each caption selects an image."""
        return self.images > self.captions

    def __str__(self) -> str:
        return f"{self.images}x{self.captions}" + (f" ({self.true_captions} true)" if self.true_captions > 1 else "")

    def truth(self, groups: int) -> Int[np.ndarray, "all_images true"]:
        """Columns of each image's true captions among the captions of all groups, int [images, t].

        >>> GroupShape(1, 3, true_captions=2).truth(2).tolist()
        [[0, 1], [3, 4]]
        """
        if self.more_images:
            raise ValueError(f"in {self} groups some images have no caption")
        columns = np.arange(self.images * self.true_captions).reshape(1, self.images, -1)
        return (np.arange(groups)[:, None, None] * self.captions + columns).reshape(-1, self.true_captions)


@dataclass(frozen=True)
class ImageRef:
    """An image, opened when needed; equal names within a task mean the same image.

    Attributes:
        name: the image's name in results.
        open: function that reads and decodes it.
        file: its path, if it is a separate file.
        read: function that returns its encoded bytes, if it has any; cheaper than ``open``.
        exif: whether its EXIF orientation is applied.
        variant: other reading options that change its pixels (a crop, a colour order); empty for none.
        of_plugin: whether a plugin opens it, set by ttmbench; its pixels identify it then, not its encoded bytes.
    """

    name: str
    open: Callable[[], Image] = field(compare=False, repr=False)
    file: Path | None = field(default=None, compare=False, repr=False)
    read: Callable[[], bytes] | None = field(default=None, compare=False, repr=False)
    exif: Exif = field(default="apply", compare=False, repr=False)
    variant: str = field(default="", compare=False, repr=False)
    of_plugin: bool = field(default=False, compare=False, repr=False)


@dataclass(frozen=True)
class Group:
    """Images and captions that must be matched to each other; `GroupShape` defines which caption is true for which."""

    group_id: str
    images: tuple[ImageRef, ...]
    captions: tuple[str, ...]
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Scores:
    """A model's scores of a task, in logits.

    Attributes:
        groups: float32 [groups, images, captions].
        all_pairs: float32 [groups * images, groups * captions], every image with every caption in the order of the
            groups; only if a metric or the global variant needs it.
        caption_pairs: similarity of captions [groups, captions, captions]; only if a metric needs it.
        are_logits: whether they are logits with the model's own scale.
    """

    groups: Float[np.ndarray, "groups images captions"]
    all_pairs: Float[np.ndarray, "all_images all_captions"] | None = None
    caption_pairs: Float[np.ndarray, "groups captions captions"] | None = None
    are_logits: bool = True

    @property
    def truth(self) -> Int[np.ndarray, " all_images"]:
        """True column of ``all_pairs`` for each of its rows, if one caption is true for an image."""
        return GroupShape(*self.groups.shape[1:]).truth(len(self.groups))[:, 0]


@dataclass(frozen=True)
class Matching:
    """The caption given to each image of each group, and the margin of that matching.

    Attributes:
        captions: index of the caption given to each image, int [groups, images], -1 for none; with several true
            captions [groups, images, t]. If ``tie`` is set, one of several equally good choices.
        margin: best total minus second-best total, in logits, never negative.
        tie: whether several matchings share the best total.
    """

    captions: Int[np.ndarray, "groups images ..."]
    margin: Float[np.ndarray, " groups"]
    tie: Bool[np.ndarray, " groups"]


@dataclass(frozen=True)
class GlobalMatching:
    """The assignment of captions to all images with the largest total (Eq. 2); axes and ties as in `Matching`.

    Attributes:
        scores: scores of the assigned pairs, in logits.
    """

    captions: Int[np.ndarray, "images ..."]
    scores: Float[np.ndarray, "images ..."]
    tie: Bool[np.ndarray, " images"]


@dataclass(frozen=True)
class ModelCard:
    """Facts about a named model, known before it is downloaded.

    Attributes:
        weights: name of the weights file, with its size in ``bytes`` if known.
        license: license of the weights, as their page declares it; None if it declares none.
        gated: whether terms have to be accepted on the Hub first.
        trained_on: image collections that it was trained on, as reported by its authors (``coco``, ...); None if they
            report none.
        quick_gelu: whether a CLIP uses QuickGELU (else GELU); None for other models or if unknown.
        page: where users download the weights file for ``pretrained=FILE``; None if ttmbench downloads it.
        note: anything uncertain or unusual. ``refused``: why it cannot be loaded, and what to do instead.
        captions: what happens to a caption before the model reads it, as the fingerprint states it; None if unknown.
    """

    weights: str
    bytes: int | None = None
    license: str | None = None
    gated: bool = False
    trained_on: tuple[str, ...] | None = None
    quick_gelu: bool | None = None
    page: str | None = None
    note: str = ""
    refused: str | None = None
    captions: Mapping[str, object] | None = None

    @property
    def size(self) -> str:
        """The size to two digits, or ``unknown``.

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
        name: value of ``--model``.
        target: ``"module:callable"``, imported when the model is used; called with the model arguments as keywords, and
            with ``device``, ``dtype`` and ``trust_remote_code`` if it accepts them.
        summary: one line for ``ttmbench ls models``.
        needs: extras or packages to install, named when the import fails.
        model_args: default arguments; ``--model_args`` overrides them.
        ttm_defaults: default TTM settings, such as a learning rate; task files and ``--ttm_args`` override them.
        card: facts about its weights.
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
        name: Hub id, folder or file, as given.
        folder: local folder of the files.
        weights: names below the folder.
        commit: commit of the Hub repository; None for local files.
        beside: files from other repositories or folders, such as a tokenizer.
    """

    name: str
    folder: Path
    weights: tuple[str, ...]
    commit: str | None = None
    beside: tuple[ModelFiles, ...] = ()

    @property
    def are_pickles(self) -> bool:
        """Whether the weights are in a format that can contain code (pickle)."""
        return any(not name.endswith((".safetensors", ".safetensors.index.json", ".npz")) for name in self.weights)

    def provenance(self) -> dict[str, object]:
        """Provenance for results: repository or last part of the path, commit, files and format."""
        return {
            "name": Path(self.name).resolve().name if Path(self.name).exists() else self.name,
            "commit": self.commit,
            "files": list(self.weights),
            **({"format": "pickle" if self.are_pickles else "safetensors"} if self.weights else {}),
            **({"beside": [other.provenance() for other in self.beside]} if self.beside else {}),
        }


def _needs_registry(source: Mapping[str, object], request: SourceRequest) -> NoReturn:
    raise UsageError(f"source '{source.get('kind')}' can be read through the registry only")


@dataclass(frozen=True)
class SourceRequest:
    """A request for the groups of a source.

    Attributes:
        options: the ``source:`` mapping of the task file without ``kind``.
        columns: the keys of the ``group:`` mapping about columns and rows (``id``, ``images``, ``captions``, ``tags``,
            ``crop``, ``where``, ``first_rows``); conditions, parts of paths and picks are models of pydantic.
        shape: images and captions per group; 1x2 for tasks of another kind, whose rows have one image each.
        n_groups: number of groups given in the task file, if any.
        folder: folder of the task file, for relative paths; None for tasks inside a package archive.
        limit: read at most this many groups. With ``offline``, the network is never used.
        data_dir: folder of the files that users download themselves; may not exist.
        kind: kind of the task. In ``retrieval`` a group is an image with its captions, one or more; in
            ``classification`` an image with its label as the only caption.
        read: for sources that combine others: (another ``source`` mapping, a request) -> the data of that source.
        locations: with the same arguments, the locations of that source.
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
    """A task's data: groups in the source's order, and their origin as JSON values for the results."""

    groups: list[Group]
    source: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceSpec:
    """A reader of raw data.

    Attributes:
        kind: as task files name it.
        target: ``"module:callable"``: a request -> groups.
        needs: ``"module:callable"``: a request -> its `DataLocation`s in the order in which they are tried, for
            ``ttmbench download`` and ``doctor``. Without it, ``download`` reads the whole task once, over the network.
    """

    kind: str
    target: str
    summary: str = ""
    needs: str = ""


@dataclass(frozen=True)
class MetricSpec:
    """A metric of a score array.

    Attributes:
        name: as in task files and results: letters, digits and ``_``, not ending in ``_stderr`` or ``_seed_std``.
        compute: scores [groups, images, captions] -> bool or fraction [groups], from 0 to 1. With ``scope="global"``:
            scores [all images, all captions] and index of the correct caption [all images] -> bool [all images].
            ``task``: scores [groups, images, captions] -> one fraction, without standard error and interval.
            ``captions``: similarity [groups, captions, captions] -> bool or fraction [groups]. ``i2t``, ``t2i``,
            ``class``: `ttmbench.results.ranks.Ranks` -> bool or fraction [queries], or None if undefined.
        summary: one line for ``ttmbench ls metrics``.
        ties: same arguments -> bool of the same length: whether a comparison that the metric makes is an equality.
        chance: (images, captions), with ``scope="global"`` all of them, or ranks -> expected value for i.i.d.
            continuous scores, None if unknown.
        defined: (images, captions) -> whether the metric is defined for this shape; by default images <= captions.
        scope: ``group``, all groups (``task``), all pairs (``global``), the ``captions`` of a group alone,
            image-to-text (``i2t``) or text-to-image (``t2i``) retrieval, or an image's ``class``.
        track: leaderboard track of the raw value.
        higher_is_better: as in lm-evaluation-harness.
        several_true: whether the metric is ``undefined`` for tasks with several true captions per image, also
            ``defined`` for them, or defined for them ``only``. If defined, its functions take the keyword
            ``true_captions`` there, and the truth of a global metric is [all images, true captions].
        needs_logits: whether it is undefined for scores that are not logits, such as probabilities.
        plugin: name of the plugin that registered it; set by the registry.
    """

    name: str
    compute: Callable[..., Any]
    summary: str = ""
    ties: Callable[..., np.ndarray] | None = None
    chance: Callable[..., float | None] | None = None
    defined: Callable[..., bool] = lambda images, captions, true_captions=1: images <= captions
    scope: Literal["group", "task", "global", "captions", "i2t", "t2i", "class"] = "group"
    track: Track = "zero_shot"
    higher_is_better: bool = True
    several_true: Literal["undefined", "defined", "only"] = "undefined"
    needs_logits: bool = False
    plugin: str = ""


@dataclass(frozen=True)
class ScheduleSpec:
    """A threshold schedule: (tau_start, tau_end, iterations) -> thresholds [iterations]."""

    name: str
    compute: Callable[[float, float, int], np.ndarray]
    summary: str = ""


Need = Literal[
    "scores",
    "features",
    "references",
    "views",
    "gradients",
    "caption_texts",
    "caption_embeddings",
    "reward_model",
    "labels",
    "random_labels",
]
"""What a test-time method uses: the model's scores; features of a dual encoder; other items' features; views of images;
gradients; the texts of captions; gradients of their token embeddings; a second model; labels, or random ones, which
only built-ins may."""


@dataclass(frozen=True)
class MethodSpec:
    """A test-time method by name.

    Attributes:
        name: value of ``--methods``, and what its numbers are called (``group_match,NAME``); letters, digits, ``_``.
        target: ``"module:callable"``, imported when the method is used. Called with the task, and its settings as
            keywords; their annotations say which values are allowed, their defaults are the method's. With
            ``gradients`` among its needs it is a generator of `ttmbench.methods.task.MethodStep`; otherwise it returns
            the new scores, a tensor [groups, images, captions].
        summary: one line for ``ttmbench ls methods``.
        reference: the paper, such as ``arXiv:2006.10726``.
        needs: inputs that it uses. They determine the type of its task: `ScoreTask`, `FeatureTask`, or with gradients
            `TrainingTask`. ``labels`` and ``random_labels`` are for built-in methods only.
        scope: what the scores of an image depend on: the ``row`` of one image, its ``group``, a ``batch`` of groups,
            the ``stream`` of groups so far, or the whole ``task``.
        reset: when the model is restored: before each ``group``, each ``batch``, or ``never``, which leaves a trained
            model to be saved and evaluated on other tasks; None if nothing is trained.
        settings: values that replace the target's defaults; ``--method_args NAME.KEY=VALUE`` overrides them.
        sources: setting -> source of its value (paper or code).
        order_dependent: whether the order of the groups changes its scores.
        assumes_matching: whether it assumes that each caption belongs to one image of its group.
        scores_before_update: whether a group is scored before it is trained on.
        gives_logits: whether its scores are logits, so that calibration metrics apply.
        takes_ttm_args: whether it trains the whole model, of any kind, with the settings of TTM, which ``--ttm_args``
            gives for all such methods. Its target takes a `ttmbench.methods.model_task.ModelTask` alone, and yields
            what `ModelTask.train` returns.
    """

    name: str
    target: str
    summary: str = ""
    reference: str = ""
    needs: tuple[Need, ...] = ("scores",)
    scope: Literal["row", "group", "batch", "stream", "task"] = "group"
    reset: Literal["group", "batch", "never"] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    order_dependent: bool = False
    assumes_matching: bool = False
    scores_before_update: bool = False
    gives_logits: bool = True
    takes_ttm_args: bool = False

    @property
    def needs_model(self) -> bool:
        """Whether it needs the whole model, of any kind, to train it: its task is a `ModelTask`."""
        return self.takes_ttm_args or "labels" in self.needs

    @property
    def trains(self) -> bool:
        """Whether it computes gradients."""
        return "gradients" in self.needs

    @property
    def track(self) -> Literal["matching", "test_time", "supervised", "oracle"] | None:
        """Leaderboard track of its numbers; None for controls.

        ``matching`` where scores use the matching assumption without training: SimpleMatch is then the fair baseline.
        """
        if "random_labels" in self.needs:
            return None
        if "labels" in self.needs:
            return "oracle" if self.takes_ttm_args else "supervised"
        return "matching" if self.assumes_matching and not self.trains else "test_time"

    @property
    def takes_features(self) -> bool:
        """Whether it needs the features of a dual encoder, not only scores."""
        return not self.needs_model and any(need not in ("scores", "random_labels") for need in self.needs)


PartKind = Literal["selection", "pseudo_labels", "loss", "optimizer", "lr_schedule", "stopping", "teacher"]
"""Names of the settings that replace a part of TTM."""


@dataclass(frozen=True)
class MethodPart:
    """A part of TTM by name.

    Attributes:
        kind: part that it replaces; defines the arguments of the target (`ttmbench.methods.parts`).
        name: value of ``--ttm_args KIND=NAME``.
        target: ``"module:callable"``, imported when the part is used. Its keyword arguments are settings
            (``--ttm_args KIND.KEY=VALUE``), and their annotations give the allowed values.
        summary: one line for lists.
    """

    kind: PartKind
    name: str
    target: str
    summary: str = ""
