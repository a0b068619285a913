"""What a model adapter can do, asked once when it was loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, cast

from ttmbench.protocols import (
    Adapter,
    Blind,
    Bounding,
    ChoiceScorer,
    Debiasable,
    DualEncoder,
    ManyAtOnce,
    MayRefuse,
    PairScorer,
    PairTrainable,
    PreparedPairScorer,
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


@dataclass(frozen=True)
class Capabilities:
    """What a model adapter can do.

    Each field but the first is the adapter as the protocol types it, or None where it does not implement the protocol.
    """

    adapter: Model
    fingerprinted: Adapter | None
    dual_encoder: DualEncoder | None
    pair_scorer: PairScorer | None
    prepared_pair_scorer: PreparedPairScorer | None
    choice_scorer: ChoiceScorer | None
    trainable: Trainable | None
    pair_trainable: PairTrainable | None
    stored_features: StoredFeatures | None
    debiasable: Debiasable | None
    blind: Blind | None
    truncating: Truncating | None
    savable: Savable | None
    many_at_once: ManyAtOnce | None
    may_refuse: MayRefuse | None
    bounding: Bounding | None
    reporting: Reporting | None

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


def capabilities_of(adapter: Model) -> Capabilities:
    """What an adapter can do, by the methods and attributes that it has."""
    return Capabilities(
        adapter=adapter,
        fingerprinted=adapter if isinstance(adapter, Adapter) else None,
        dual_encoder=adapter if isinstance(adapter, DualEncoder) else None,
        pair_scorer=adapter if isinstance(adapter, PairScorer) else None,
        prepared_pair_scorer=adapter if isinstance(adapter, PreparedPairScorer) else None,
        choice_scorer=adapter if isinstance(adapter, ChoiceScorer) else None,
        trainable=adapter if isinstance(adapter, Trainable) else None,
        pair_trainable=adapter if isinstance(adapter, PairTrainable) else None,
        stored_features=adapter if isinstance(adapter, StoredFeatures) else None,
        debiasable=adapter if isinstance(adapter, PreparedPairScorer) and isinstance(adapter, Debiasable) else None,
        blind=adapter if isinstance(adapter, Blind) else None,
        truncating=adapter if isinstance(adapter, Truncating) and not isinstance(adapter, StoredFeatures) else None,
        savable=adapter if isinstance(adapter, Savable) else None,
        many_at_once=adapter if isinstance(adapter, ManyAtOnce) else None,
        may_refuse=adapter if isinstance(adapter, MayRefuse) else None,
        bounding=adapter if isinstance(adapter, Bounding) else None,
        reporting=adapter if isinstance(adapter, Reporting) else None,
    )
