"""The frozen types that flow through a run, one way: task -> scores -> matching -> pseudo-labels -> record.

Axis order everywhere: groups, images, captions. Scores, margins and thresholds are logits; rates are fractions
in [0, 1]; what is undefined is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

if TYPE_CHECKING:
    from PIL.Image import Image

Track = Literal["zero_shot", "matching", "test_time", "oracle"]

Exif = Literal["apply", "ignore"]
"""What becomes of an image's EXIF orientation: it is turned upright, or left as its pixels are stored."""


@dataclass(frozen=True)
class GroupShape:
    """Number of images (m) and captions (k) in each group of a task, m <= k."""

    images: int
    captions: int

    def __post_init__(self) -> None:
        if not (1 <= self.images <= self.captions and self.captions >= 2):
            raise ValueError(
                f"a group needs 1 <= images <= captions and at least 2 captions, got {self.images}x{self.captions}"
            )

    def __str__(self) -> str:
        return f"{self.images}x{self.captions}"


@dataclass(frozen=True)
class ImageRef:
    """An image by name, opened only when asked: equal names within a task mean the same image.

    Attributes:
        name: what records call it.
        open: reads and decodes it.
        file: where it lies as a file of its own, if it does.
        read: gives its file's bytes, undecoded, where there are some; cheaper than opening it.
        exif: how it is read.
    """

    name: str
    open: Callable[[], Image] = field(compare=False, repr=False)
    file: Path | None = field(default=None, compare=False, repr=False)
    read: Callable[[], bytes] | None = field(default=None, compare=False, repr=False)
    exif: Exif = field(default="apply", compare=False, repr=False)


@dataclass(frozen=True)
class Group:
    """Images and captions that are told apart together; caption i is true for image i."""

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
    """

    groups: Float[np.ndarray, "groups images captions"]
    all_pairs: Float[np.ndarray, "all_images all_captions"] | None = None

    @property
    def shape(self) -> GroupShape:
        """Images and captions per group."""
        return GroupShape(*self.groups.shape[1:])

    @property
    def truth(self) -> Int[np.ndarray, " all_images"]:
        """Column of ``all_pairs`` that is true for each of its rows."""
        groups, images, captions = self.groups.shape
        return (np.arange(groups)[:, None] * captions + np.arange(images)).reshape(-1)


@dataclass(frozen=True)
class Matching:
    """The caption that each image of each group is given, and how clear the choice was.

    Attributes:
        captions: index of the caption given to each image; where ``tie`` is set, one of several equal choices.
        margin: best total minus second-best total, in logits, never negative.
        tie: whether several matchings share the best total.
    """

    captions: Int[np.ndarray, "groups images"]
    margin: Float[np.ndarray, " groups"]
    tie: Bool[np.ndarray, " groups"]


@dataclass(frozen=True)
class GlobalMatching:
    """The one assignment of captions to all images that has the largest total (Eq. 2).

    Attributes:
        captions: index of the caption given to each image.
        scores: the score of each assigned pair, in logits.
        tie: whether some equally good assignment gives the image another caption.
    """

    captions: Int[np.ndarray, " images"]
    scores: Float[np.ndarray, " images"]
    tie: Bool[np.ndarray, " images"]


@dataclass(frozen=True)
class IterationRecord:
    """One iteration of TTM, as reported. Everything that read a label is a diagnostic and steered nothing.

    Attributes:
        seed: the run's seed.
        iteration: 1 for the first.
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


# --- what plugins register -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelCard:
    """What a person wants to know of a named model before it is fetched.

    Attributes:
        weights: name of the file that is read.
        bytes: its size, where it is known.
        license: of the weights, as their page declares it; None where it declares none.
        gated: whether terms have to be accepted on the hub first.
        trained_on: names of the image collections that it was trained on, as its authors state them (``coco``,
            ``visual-genome``, ...); empty where they do not say.
    """

    weights: str
    bytes: int | None = None
    license: str | None = None
    gated: bool = False
    trained_on: tuple[str, ...] = ()

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
    """

    name: str
    target: str
    summary: str = ""
    needs: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    model_args: Mapping[str, Any] = field(default_factory=dict)
    ttm_defaults: Mapping[str, Any] = field(default_factory=dict)
    card: ModelCard | None = None


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
        own = Path(self.name)
        return {
            "name": own.resolve().name if own.exists() else self.name,
            "commit": self.commit,
            "files": list(self.weights),
            **({"format": "pickle" if self.are_pickles else "safetensors"} if self.weights else {}),
            **({"beside": [other.provenance() for other in self.beside]} if self.beside else {}),
        }


@dataclass(frozen=True)
class SourceRequest:
    """What a source is asked for.

    Attributes:
        options: the ``source:`` mapping of the task file without ``kind``.
        columns: the ``group:`` mapping's column names (``id``, ``images``, ``captions``, ``tags``).
        shape: images and captions per group; of tasks of another kind, whose rows have one image each, 1x2.
        n_groups: how many groups the task file promises, if it does.
        folder: folder of the task file, for relative paths; None for tasks inside a package archive.
        limit: read no more groups than this, if set.
        offline: never touch the network.
        data_dir: folder of the files that users fetch themselves; may not exist.
        kind: of the task. Of ``retrieval`` a group is an image with its captions, any number from one; of
            ``classification`` an image with its label as the only caption.
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


@dataclass(frozen=True)
class Loaded:
    """A task's data, as a source gives them.

    Attributes:
        groups: in the source's order.
        source: where they came from and what was done to them, for the results: JSON values only.
    """

    groups: list[Group]
    source: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceSpec:
    """A reader of raw data.

    Attributes:
        kind: what task files name.
        target: ``"module:callable"``: a request -> groups.
        summary: one line.
        needs: ``"module:callable"``: a request -> the places that have the data (`data.availability.Place`), in the
            order in which the reader tries them, for ``ttmbench download`` and ``doctor``. Without it a download
            reads the task once, with the network.
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
        compute: scores [groups, images, captions] -> bool or fraction [groups]. With ``scope="global"``:
            scores [all images, all captions] and true caption [all images] -> bool [all images]. With the scopes of
            retrieval (``i2t``, ``t2i``) and classification (``class``): `ttmbench.results.ranks.Ranks` -> bool or
            fraction [queries], or None where these ranks do not tell.
        summary: one line for ``ttmbench ls metrics``.
        ties: same arguments -> bool of the same length: a comparison that the metric makes is an equality.
        chance: (images, captions) -> expected value of i.i.d. continuous scores, None if unknown. With
            ``scope="global"`` the arguments are the numbers of all images and all captions; with ranks they are the
            argument.
        defined: (images, captions) -> whether the metric means anything for this shape.
        scope: what it is a metric of: a ``group``, all pairs (``global``), the captions that an image finds (``i2t``),
            the images that a caption finds (``t2i``), or an image's ``class``.
        track: which leaderboard track the raw value belongs to.
        higher_is_better: as lm-evaluation-harness has it.
        plugin: that registered it, for messages; left to the registry.
    """

    name: str
    compute: Callable[..., Any]
    summary: str = ""
    ties: Callable[..., np.ndarray] | None = None
    chance: Callable[..., float | None] | None = None
    defined: Callable[[int, int], bool] = lambda images, captions: True
    scope: Literal["group", "global", "i2t", "t2i", "class"] = "group"
    track: Track = "zero_shot"
    higher_is_better: bool = True
    plugin: str = ""


@dataclass(frozen=True)
class ScheduleSpec:
    """A threshold schedule: (tau_start, tau_end, iterations) -> thresholds [iterations]."""

    name: str
    compute: Callable[[float, float, int], np.ndarray]
    summary: str = ""
