"""What a plugin registers of a test-time method, and of a part of TTM; `ttmbench.types` has these names too."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

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


def scores_use_matching(assumes_matching: bool, needs: Collection[str]) -> bool:
    """Whether a method's scores of single pairs hold what a matching knows: it assumes one, and trains nothing.

    Then SimpleMatch is its fair baseline in every metric; for other methods it is the same metric of the model as it
    is. A trained model scores pairs one by one, whatever it was trained on.

    >>> scores_use_matching(True, ("scores",)), scores_use_matching(True, ("gradients",))
    (True, False)
    """
    return assumes_matching and "gradients" not in needs


@dataclass(frozen=True)
class MethodSpec:
    """A test-time method by name.

    Attributes:
        name: as ``--methods`` takes it, and the filter of its numbers (``group_match,NAME``); letters, digits, ``_``.
        target: ``"module:callable"``, imported when the method is used. Called with the task, and its settings as
            keywords; their annotations say which values are allowed, their defaults are the method's. With
            ``gradients`` among its needs it is a generator of `ttmbench.methods.task.MethodStep`; otherwise it returns
            the new scores, a tensor [groups, images, captions].
        summary: one line for ``ttmbench ls methods``.
        reference: of the paper, such as ``arXiv:2006.10726``.
        needs: what it uses; decides what it gets: a `ScoreTask`, a `FeatureTask`, or with gradients a `TrainingTask`.
            ``labels`` and ``random_labels`` are for built-in methods only.
        scope: what an answer depends on: the ``row`` of one image, its ``group``, a ``batch`` of groups, the ``stream``
            of groups so far, or the whole ``task``.
        reset: when the model is restored: before each ``group``, each ``batch``, or ``never``; None if nothing is
            trained.
        settings: arguments in place of the target's defaults; ``--method_args NAME.KEY=VALUE`` overrides them.
        sources: argument -> where its value is from.
        order_dependent: whether the order of the groups changes its scores.
        assumes_matching: whether it uses that each caption belongs to one image of its group.
        scores_before_update: whether a group is scored before it is trained on.
        gives_logits: whether its scores are logits, so that their calibration means something.
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

    @property
    def declared(self) -> dict[str, Any]:
        """What its record in results has of this registration."""
        return {
            "reference": self.reference,
            "needs": list(self.needs),
            "scope": self.scope,
            "reset": self.reset,
            "order_dependent": self.order_dependent,
            "assumes_matching": self.assumes_matching,
            "scores_before_update": self.scores_before_update,
        }

    @property
    def is_ttm(self) -> bool:
        """Whether it is TTM, with settings of its own."""
        return self.target.startswith("ttmbench.ttm.algorithm:")

    @property
    def is_finetuning(self) -> bool:
        """Whether it trains on labels before a test: by a command of its own, whose weights are then a model."""
        return "labels" in self.needs and not self.is_ttm

    @property
    def trains(self) -> bool:
        """Whether it computes gradients."""
        return "gradients" in self.needs

    @property
    def leaves_model(self) -> bool:
        """Whether a trained model is left, which can be saved, and measured on other tasks."""
        return self.trains and self.reset == "never"

    @property
    def is_random(self) -> bool:
        """Whether seeds give different scores."""
        return self.trains or "views" in self.needs

    @property
    def uses_matching(self) -> bool:
        """As `scores_use_matching`."""
        return scores_use_matching(self.assumes_matching, self.needs)

    @property
    def track(self) -> Literal["matching", "test_time", "supervised", "oracle"] | None:
        """The track of its numbers: ``matching`` if captions compete and nothing is trained; None of controls."""
        if "random_labels" in self.needs:
            return None
        if "labels" in self.needs:
            return "supervised" if self.is_finetuning else "oracle"
        return "matching" if self.uses_matching else "test_time"

    @property
    def takes_features(self) -> bool:
        """Whether it needs a dual encoder's features, and not scores alone."""
        return any(need not in ("scores", "labels", "random_labels") for need in self.needs)


PartKind = Literal["selection", "pseudo_labels", "loss", "optimizer", "lr_schedule", "stopping", "teacher"]
"""The parts of TTM that can be replaced, each by the setting of this name."""


@dataclass(frozen=True)
class MethodPart:
    """A part of TTM by name.

    Attributes:
        kind: which part it replaces; says what the target is called with (`ttmbench.ttm.parts`).
        name: as ``--ttm_args KIND=NAME`` takes it.
        target: ``"module:callable"``, imported when the part is used. Its arguments by name are settings, which
            ``--ttm_args KIND.KEY=VALUE`` gives; their annotations say which values are allowed.
        summary: one line for lists.
    """

    kind: PartKind
    name: str
    target: str
    summary: str = ""
