"""Specifications of test-time methods and of parts of TTM, for plugins; import them from `ttmbench.types`."""

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
    """Whether a method's scores use the matching assumption without training.

    SimpleMatch is then the fair baseline in every metric; for other methods the baseline is the same metric of the raw
    model. A trained model scores each pair separately, so training on matchings does not count.

    >>> scores_use_matching(True, ("scores",)), scores_use_matching(True, ("gradients",))
    (True, False)
    """
    return assumes_matching and "gradients" not in needs


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
        reset: when the model is restored: before each ``group``, each ``batch``, or ``never``; None if nothing is
            trained.
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
    def declared(self) -> dict[str, Any]:
        """The fields of this specification that its record in results contains."""
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
    def is_finetuning(self) -> bool:
        """Whether it is supervised finetuning before the test, run by ``ttmbench finetune``."""
        return "labels" in self.needs and not self.takes_ttm_args

    @property
    def needs_model(self) -> bool:
        """Whether it needs the whole model, of any kind, to train it: its task is a `ModelTask`."""
        return self.takes_ttm_args or "labels" in self.needs

    @property
    def trains(self) -> bool:
        """Whether it computes gradients."""
        return "gradients" in self.needs

    @property
    def leaves_model(self) -> bool:
        """Whether it ends with a trained model, which can be saved and evaluated on other tasks."""
        return self.trains and self.reset == "never"

    @property
    def is_random(self) -> bool:
        """Whether its scores depend on the seed."""
        return self.trains or "views" in self.needs

    @property
    def uses_matching(self) -> bool:
        """See `scores_use_matching`."""
        return scores_use_matching(self.assumes_matching, self.needs)

    @property
    def track(self) -> Literal["matching", "test_time", "supervised", "oracle"] | None:
        """Leaderboard track of its numbers: ``matching`` if it uses a matching without training; None for controls."""
        if "random_labels" in self.needs:
            return None
        if "labels" in self.needs:
            return "supervised" if self.is_finetuning else "oracle"
        return "matching" if self.uses_matching else "test_time"

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
