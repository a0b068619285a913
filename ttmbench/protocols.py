"""What an adapter is: two capabilities, and options on top. An adapter knows its model, never a task.

Whoever writes one implements `PairScorer` (one method) or `DualEncoder`. TTM can adapt a `DualEncoder` that is
`Trainable`, and a `PreparedPairScorer` (a pair scorer that prepares images once) that is `PairTrainable`.
`Augmentable`, `Savable` and `StoredFeatures` are further options, each found by its methods. `ChoiceScorer` is for
models that answer in words and give no score; `ManyAtOnce`, `MayRefuse`, `Bounding` and `Reporting` for those
behind a server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from ttmbench._annotations import Batch as Batch
from ttmbench._annotations import Image, torch


@runtime_checkable
class Adapter(Protocol):
    """What every adapter states about itself."""

    def fingerprint(self) -> Mapping[str, Any] | str:
        """Everything that changes a score: weights digest or API model id, preprocessing, dtype, prompt."""
        ...


class Preparing(Protocol):
    """What a model's inputs are prepared by, once each."""

    def prepare_images(self, images: Sequence[Image]) -> Batch:
        """Preprocesses upright RGB images; runs once per image. Returns one row per image, on the CPU."""
        ...

    def prepare_captions(self, captions: Sequence[str]) -> Batch:
        """Prepares or tokenises captions; runs once, over all of a task's captions. One row per caption, on the CPU."""
        ...


class Learning(Protocol):
    """What training needs of any model: its parameters, and a state to go back to."""

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """The parameters that adaptation trains."""
        ...

    def state_dict(self) -> Mapping[str, torch.Tensor]:
        """Everything that training changes."""
        ...

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> Any:
        """Goes back to a state that ``state_dict`` gave."""
        ...


@runtime_checkable
class PairScorer(Protocol):
    """A model that scores an image with a caption, one pair at a time (ITM heads, generative models, APIs)."""

    def score_pairs(self, images: Sequence[Image], captions: Sequence[str]) -> np.ndarray:
        """Scores image i with caption i.

        Args:
            images: upright RGB images.
            captions: as many captions.

        Returns:
            float32 [pairs], logits or log-odds; larger is a better fit.
        """
        ...


@runtime_checkable
class PreparedPairScorer(Preparing, PairScorer, Protocol):
    """A pair scorer whose images are preprocessed and encoded once each, however many captions they meet."""

    def encode_images(self, prepared: Batch) -> Batch:
        """Prepared images -> what scoring needs of them; runs once per image and pass. One row per image."""
        ...

    def score_prepared(self, images: Batch, captions: Batch) -> np.ndarray:
        """Scores encoded image i with prepared caption i; float32 [pairs] as ``score_pairs`` gives them."""
        ...


@runtime_checkable
class DualEncoder(Preparing, Protocol):
    """A model with one tower for images and one for captions (CLIP, SigLIP, open_clip)."""

    def encode_images(self, prepared: Batch) -> torch.Tensor:
        """Prepared images -> float32 features [images, d], as the model's own loss takes them."""
        ...

    def encode_captions(self, prepared: Batch) -> torch.Tensor:
        """Prepared captions -> float32 features [captions, d], as the model's own loss takes them."""
        ...

    def logits(self, image_features: torch.Tensor, caption_features: torch.Tensor) -> torch.Tensor:
        """Every image against every caption: float32 [images, captions], temperature and bias included."""
        ...


@runtime_checkable
class Trainable(Learning, Protocol):
    """The option that TTM needs: parameters, the model's own loss on matched pairs, and a state to go back to."""

    def matching_loss(self, images: Batch, captions: Batch) -> torch.Tensor:
        """The model's own contrastive loss on a flat batch, in which image i matches caption i. A scalar."""
        ...


@runtime_checkable
class TrainableInParts(Trainable, Protocol):
    """An option of `Trainable`: the loss as a function of features, so that a batch need not be in memory at once.

    ``matching_loss(images, captions)`` equals ``loss_of(train_images(images), train_captions(captions))``.
    """

    @property
    def trains_in_parts(self) -> bool:
        """Whether a row's features do not depend on the other rows of the batch."""
        ...

    def train_images(self, prepared: Batch) -> torch.Tensor:
        """Features [images, d] with gradients."""
        ...

    def train_captions(self, prepared: Batch) -> torch.Tensor:
        """Features [captions, d] with gradients."""
        ...

    def loss_of(self, image_features: torch.Tensor, caption_features: torch.Tensor) -> torch.Tensor:
        """The loss of features of matched pairs, row by row. A scalar."""
        ...


@runtime_checkable
class PairTrainable(Learning, Protocol):
    """The option that TTM needs of a `PreparedPairScorer`: a loss on pairs that are said to match or not to."""

    def pair_loss(self, images: Batch, captions: Batch, matched: np.ndarray) -> torch.Tensor:
        """The model's own loss for answering, of each pair, whether it matches.

        Args:
            images: prepared, not encoded: training goes through the vision encoder.
            captions: prepared, as many.
            matched: what to answer, bool [pairs].

        Returns:
            A scalar, the mean over pairs: a batch may be trained on in parts.
        """
        ...


@runtime_checkable
class Debiasable(Protocol):
    """The option that debiasing needs of a `PreparedPairScorer` whose scores are log P(t|i) (arXiv:2306.01879, Eq. 7).

    Attributes:
        alpha: how much of log P(t) a run takes off the scores.
        prior: where P(t) comes from: ``noise`` asks `log_priors`, ``test_images`` averages over the task's images.
    """

    alpha: float
    prior: str

    def log_priors(self, captions: Sequence[str]) -> np.ndarray:
        """Log P(t) of captions, in the unit of the scores: float32 [captions]."""
        ...


@runtime_checkable
class NoisePrior(Debiasable, Protocol):
    """A `Debiasable` whose P(t) is a mean over noise images, of which a task may ask for its own number.

    Attributes:
        noise_images: how many; None for as many as the task says.
    """

    noise_images: int | None

    def log_priors(self, captions: Sequence[str], noise_images: int | None = None) -> np.ndarray:
        """As for every `Debiasable`, from this many noise images: float32 [captions]."""
        ...


@runtime_checkable
class Blind(Protocol):
    """A scorer that may never look at the image.

    Attributes:
        blind: whether it does not: its score depends on the caption alone.
    """

    blind: bool


@runtime_checkable
class Truncating(Protocol):
    """The option of a model that reads a bounded number of tokens of a caption and leaves out the rest."""

    def truncated(self, captions: Sequence[str]) -> Sequence[bool]:
        """Which of these captions are cut, one answer each; asked once for every distinct caption of a task."""
        ...


@runtime_checkable
class PreparesInThreads(Protocol):
    """The option of a model whose ``prepare_images`` may run in several threads at once, beside the model's own work.

    Attributes:
        prepares_in_threads: whether it may; of the class. Without it, one thread calls the adapter, and others decode.
    """

    prepares_in_threads: bool


@runtime_checkable
class Augmentable(Protocol):
    """The option that augmentation needs: larger images, and windows cut from them (section B.1)."""

    def prepare_enlarged(self, images: Sequence[Image], scale: float) -> Batch:
        """As ``prepare_images``, but ``scale`` times as large in each direction, and with nothing cut off.

        One row per image, on the CPU. Rows of different sizes are a list; small numbers (uint8) keep it small.
        """
        ...

    def crop(self, enlarged: Batch, corners: np.ndarray) -> Batch:
        """Cuts a window of the model's own size out of every enlarged image.

        Args:
            enlarged: rows of ``prepare_enlarged``.
            corners: where each window lies between the top left (0) and the bottom right of its own enlarged image:
                fractions in [0, 1) [images, 2], rows then columns.

        Returns:
            What ``matching_loss`` takes as images.
        """
        ...


@runtime_checkable
class Savable(Protocol):
    """The option that ``--save_adapted`` needs."""

    def save_pretrained(self, folder: Path) -> None:
        """Writes the model as it is now into a folder that is there, so that its own library can load it again."""
        ...


@runtime_checkable
class StoredFeatures(Protocol):
    """A dual encoder whose inputs are features computed before: it needs no images and no captions."""

    def stored_images(self) -> Batch:
        """One row per image, group by group."""
        ...

    def stored_captions(self) -> Batch:
        """One row per caption, group by group."""
        ...


@dataclass(frozen=True)
class ChoiceQuestion:
    """One forced choice in words; the answer is to name one of its options.

    Attributes:
        prompt: the whole text, options included.
        images: the images that go with it, in the order in which the prompt counts them.
    """

    prompt: str
    images: Sequence[Image]


@dataclass(frozen=True)
class ChoiceStyle:
    """How a model is to be asked; see `ttmbench.scoring.forced_choice.ask`.

    Attributes:
        order: of the options: drawn at random, or both ways round, where only two right answers count.
        side_by_side: join the two images of a question into one, for models that take one.
    """

    order: Literal["random", "both"] = "random"
    side_by_side: bool = False


@runtime_checkable
class ChoiceScorer(Protocol):
    """A model that is asked to choose and answers in words: it has no scores, so it gets no matching metrics."""

    choice_style: ChoiceStyle

    def answer(self, questions: Sequence[ChoiceQuestion]) -> Sequence[str | None]:
        """Answers questions, each on its own.

        Args:
            questions: any number.

        Returns:
            One text each, as the model wrote it; None where it refused to answer.
        """
        ...


@runtime_checkable
class ManyAtOnce(Protocol):
    """The option of a model behind a server: it is handed this many pairs or questions at a time.

    Images are then opened when they are taken from the sequence, one after the other, and are not kept.
    """

    pairs_at_once: int


@runtime_checkable
class MayRefuse(Protocol):
    """The option of a pair scorer that may give no score for a pair: it returns NaN there.

    Attributes:
        refusals_are_wrong: count the pair's group as wrong in every metric; else the task fails and names the groups.
    """

    refusals_are_wrong: bool


@runtime_checkable
class Bounding(Protocol):
    """The option of a pair scorer that is not told everything, so that a score may be a bound."""

    def take_undecided(self) -> tuple[int, int]:
        """Pairs since the last call whose score is a bound or missing, and all pairs since then."""
        ...


@runtime_checkable
class Reporting(Protocol):
    """The option of a model that costs money, or whose answers need remarks."""

    def usage(self) -> Mapping[str, Any]:
        """What it has used so far, for ``model_info.usage``: requests, tokens, money. Values go into JSON."""
        ...

    def take_notes(self) -> list[str]:
        """Sentences about the answers since the last call, for the task's notes."""
        ...
