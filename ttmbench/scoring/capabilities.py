"""What a model adapter can do, asked once when it was loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias, cast

from ttmbench.model import (
    Adapter,
    Blind,
    Bounding,
    CaptionEmbeddings,
    ChoiceScorer,
    Debiasable,
    DualEncoder,
    LimitedVocabulary,
    ManyAtOnce,
    MayRefuse,
    PairScorer,
    PairTrainable,
    PreparedPairScorer,
    RefusesCaptions,
    Reporting,
    Savable,
    StoredFeatures,
    Trainable,
    Truncating,
)


class TrainableDualEncoder(DualEncoder, Trainable, Protocol):
    """A dual encoder that TTM adapts by matched pairs: all other pairs of a batch do not match."""


class TrainablePairScorer(PreparedPairScorer, PairTrainable, Protocol):
    """A pair scorer that TTM adapts by saying of every pair inside a group whether it matches."""


Trained: TypeAlias = TrainableDualEncoder | TrainablePairScorer
"""Every model that can be adapted."""

Model: TypeAlias = DualEncoder | PairScorer | ChoiceScorer
"""Every model that a run can take."""


class Capabilities:
    """What a model adapter can do, by the methods and attributes that it has.

    Each attribute but the first is the adapter as the protocol types it, or None where it does not implement it.
    """

    def __init__(self, adapter: object) -> None:
        self.adapter = cast("Model", adapter)
        self.fingerprinted = adapter if isinstance(adapter, Adapter) else None
        self.dual_encoder = adapter if isinstance(adapter, DualEncoder) else None
        self.pair_scorer = adapter if isinstance(adapter, PairScorer) else None
        self.prepared_pair_scorer = adapter if isinstance(adapter, PreparedPairScorer) else None
        self.choice_scorer = adapter if isinstance(adapter, ChoiceScorer) else None
        self.trainable = adapter if isinstance(adapter, Trainable) else None
        self.pair_trainable = adapter if isinstance(adapter, PairTrainable) else None
        self.stored_features = adapter if isinstance(adapter, StoredFeatures) else None
        pair_scorer = self.prepared_pair_scorer
        self.debiasable = pair_scorer if isinstance(pair_scorer, Debiasable) else None
        self.blind = adapter if isinstance(adapter, Blind) else None
        self.truncating = adapter if isinstance(adapter, Truncating) and self.stored_features is None else None
        self.refuses_captions = adapter if isinstance(adapter, RefusesCaptions) else None
        self.savable = adapter if isinstance(adapter, Savable) else None
        self.many_at_once = adapter if isinstance(adapter, ManyAtOnce) else None
        self.may_refuse = adapter if isinstance(adapter, MayRefuse) else None
        self.bounding = adapter if isinstance(adapter, Bounding) else None
        self.reporting = adapter if isinstance(adapter, Reporting) else None

    @property
    def scores(self) -> Literal["embeddings", "pairs", "choices"]:
        """How the model scores; one that offers several ways is asked in the first of them."""
        if self.dual_encoder is not None:
            return "embeddings"
        return "choices" if self.pair_scorer is None else "pairs"

    @property
    def loss(self) -> Literal["contrastive", "matching"] | None:
        """How it is trained: by matched pairs in a batch, or by which pairs of a group match; None if it cannot be."""
        if self.dual_encoder is not None:
            return None if self.trainable is None else "contrastive"
        return None if self.prepared_pair_scorer is None or self.pair_trainable is None else "matching"

    @property
    def preparing(self) -> DualEncoder | PreparedPairScorer | None:
        """The adapter, where it prepares images once each."""
        return self.dual_encoder or self.prepared_pair_scorer

    @property
    def trained(self) -> Trained | None:
        """The adapter, where it can be trained."""
        return cast("Trained", self.adapter) if self.loss is not None else None

    @property
    def caption_embeddings(self) -> CaptionEmbeddings | None:
        """The adapter, where a method can shift the token embeddings of captions."""
        adapter: object = self.adapter
        return adapter if isinstance(adapter, CaptionEmbeddings) and adapter.caption_width is not None else None

    @property
    def names(self) -> list[str]:
        """Names of the protocols, as results list them."""
        views: dict[str, object] = {
            "DualEncoder": self.dual_encoder,
            "PairScorer": self.pair_scorer,
            "PreparedPairScorer": self.prepared_pair_scorer,
            "ChoiceScorer": self.choice_scorer,
            "Trainable": self.trainable,
            "PairTrainable": self.pair_trainable,
        }
        return [name for name, view in views.items() if view is not None]


def unknown_wrappers(adapter: object, wrappers: Sequence[str]) -> str:
    """Says which words around captions, ``a photo of {}``, a model does not know; empty if it knows all."""
    if not isinstance(adapter, LimitedVocabulary):
        return ""
    unknown = adapter.has_unknown_words([wrapper.replace("{}", "") for wrapper in wrappers])
    listed = ", ".join(repr(wrapper) for wrapper, is_unknown in zip(wrappers, unknown, strict=True) if is_unknown)
    return f"its vocabulary lacks words of the wrappers {listed}" if listed else ""
