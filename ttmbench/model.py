"""The interfaces of a model adapter; ttmbench finds out which ones an adapter implements from its methods.

Implement `PairScorer` (one method) or `DualEncoder`. TTM can adapt a `DualEncoder` that is `Trainable`, and a
`PreparedPairScorer` that is `PairTrainable`. `ChoiceScorer` is for models that answer in words and give no score;
`ManyAtOnce`, `MayRefuse`, `Bounding` and `Reporting` are for models behind a server. The others are optional. An
adapter contains nothing that is specific to a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from ttmbench._annotations import Batch as Batch
from ttmbench._annotations import Image, torch

if TYPE_CHECKING:
    from abc import ABCMeta as _ProtocolMeta
else:
    _ProtocolMeta = type(Protocol)


class _AskedByName(_ProtocolMeta):
    """Asks an object itself for a protocol's members, ``__getattr__`` included; Python 3.12 and later ask its class."""

    def __instancecheck__(cls, instance: object) -> bool:
        if not vars(cls).get("_is_protocol"):
            return super().__instancecheck__(instance)
        members = {name for base in cls.__mro__ for name in (*vars(base), *getattr(base, "__annotations__", ()))}
        wanted = [name for name in members if not name.startswith("_")]
        return all(hasattr(instance, name) for name in wanted) and not any(
            callable(getattr(cls, name, None)) and getattr(instance, name) is None  # a method that a class takes back
            for name in wanted
        )


class _ByName(Protocol, metaclass=_AskedByName):
    """What all protocols below inherit from."""


@runtime_checkable
class Adapter(_ByName, Protocol):
    """A model adapter: everything that has a fingerprint."""

    def fingerprint(self) -> Mapping[str, Any] | str:
        """Everything that changes a score: weights digest or API model id, preprocessing, dtype, prompt."""


class Preparing(_ByName, Protocol):
    """A model that prepares each image and caption once."""

    def prepare_images(self, images: Sequence[Image]) -> Batch:
        """Preprocesses upright RGB images, once each. Returns one row per image, on the CPU."""

    def prepare_captions(self, captions: Sequence[str]) -> Batch:
        """Tokenises all of a task's captions, once. Returns one row per caption, on the CPU."""


class Learning(_ByName, Protocol):
    """A model with parameters and a state to restore."""

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """The parameters that adaptation trains."""

    def state_dict(self) -> Mapping[str, torch.Tensor]:
        """All tensors that training changes, by name."""

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> Any:
        """Restores a state that ``state_dict`` returned."""


@runtime_checkable
class PairScorer(_ByName, Protocol):
    """A model that scores an image with a caption, one pair at a time (ITM heads, generative models, APIs)."""

    def score_pairs(self, images: Sequence[Image], captions: Sequence[str]) -> np.ndarray:
        """Scores upright RGB image i with caption i: float32 [pairs], logits or log-odds; larger is a better fit."""


@runtime_checkable
class PreparedPairScorer(Preparing, PairScorer, Protocol):
    """A pair scorer that preprocesses and encodes each image once, for any number of captions."""

    def encode_images(self, prepared: Batch) -> Batch:
        """Encodes prepared images for scoring, once per image and pass. Returns one row per image."""

    def score_prepared(self, images: Batch, captions: Batch) -> np.ndarray:
        """Scores encoded image i with prepared caption i: float32 [pairs], in the same unit as ``score_pairs``."""


@runtime_checkable
class DualEncoder(Preparing, Protocol):
    """A model with one tower for images and one for captions (CLIP, SigLIP, open_clip)."""

    def encode_images(self, prepared: Batch) -> torch.Tensor:
        """Prepared images -> float32 features [images, d], as the model's own loss uses them."""

    def encode_captions(self, prepared: Batch) -> torch.Tensor:
        """Prepared captions -> float32 features [captions, d], as the model's own loss uses them."""

    def logits(self, image_features: torch.Tensor, caption_features: torch.Tensor) -> torch.Tensor:
        """Scores every image with every caption: float32 [images, captions], temperature and bias included."""


@runtime_checkable
class Trainable(Learning, Protocol):
    """A dual encoder that TTM can adapt by the model's own loss on matched pairs."""

    def matching_loss(self, images: Batch, captions: Batch) -> torch.Tensor:
        """The model's own contrastive loss on a batch in which image i matches caption i; a scalar."""


@runtime_checkable
class TrainableInParts(Trainable, Protocol):
    """A `Trainable` whose loss is a function of features, so that a batch can be processed in parts.

    ``matching_loss(images, captions)`` equals ``loss_of(train_images(images), train_captions(captions))``.
    """

    @property
    def trains_in_parts(self) -> bool:
        """Whether a row's features do not depend on the other rows of the batch."""

    def train_images(self, prepared: Batch) -> torch.Tensor:
        """Features [images, d] with gradients."""

    def train_captions(self, prepared: Batch) -> torch.Tensor:
        """Features [captions, d] with gradients."""

    def loss_of(self, image_features: torch.Tensor, caption_features: torch.Tensor) -> torch.Tensor:
        """The loss of features of matched pairs, row by row; a scalar."""


@runtime_checkable
class PairTrainable(Learning, Protocol):
    """A `PreparedPairScorer` that TTM can adapt by a loss on matched and unmatched pairs."""

    def pair_loss(self, images: Batch, captions: Batch, matched: np.ndarray) -> torch.Tensor:
        """The model's own loss for predicting whether each pair matches; a scalar.

        Args:
            images: prepared, not encoded: training goes through the vision encoder.
            captions: prepared, as many.
            matched: the targets, bool [pairs].

        Returns:
            The mean over pairs, so that a batch may be trained on in parts.
        """


@runtime_checkable
class BeforeNormalization(_ByName, Protocol):
    """A dual encoder that also returns image features before normalisation, to pool the frames of a video."""

    def features_before_normalization(self, prepared: Batch, training: bool) -> torch.Tensor:
        """Features [images, d]; normalised, they equal ``encode_images`` or, with ``training``, ``train_images``."""


@runtime_checkable
class ShowsFrames(_ByName, Protocol):
    """A pair scorer that accepts the frames of a video as several images of one turn.

    It receives a video as one image, which `ttmbench._util.images.frames_of` divides into ``frames``; 1 for images.
    """

    frames: int


@runtime_checkable
class Debiasable(_ByName, Protocol):
    """A `PreparedPairScorer` whose scores log P(t|i) can be debiased by P(t) (arXiv:2306.01879, Eq. 7).

    Attributes:
        alpha: weight of log P(t) subtracted from the scores.
        prior: source of P(t): ``noise`` uses `log_priors`, ``test_images`` averages over the task's images.
    """

    alpha: float
    prior: str

    def log_priors(self, captions: Sequence[str]) -> np.ndarray:
        """Log P(t) of captions in the unit of the scores, float32 [captions]."""


@runtime_checkable
class NoisePrior(Debiasable, Protocol):
    """A `Debiasable` whose P(t) is a mean over this many noise images; None uses the task's number."""

    noise_images: int | None

    def log_priors(self, captions: Sequence[str], noise_images: int | None = None) -> np.ndarray:
        """Log P(t) of captions, float32 [captions], estimated from this many noise images."""


@runtime_checkable
class Blind(_ByName, Protocol):
    """A scorer that may ignore the image; if ``blind``, its score depends on the caption alone."""

    blind: bool


@runtime_checkable
class Truncating(_ByName, Protocol):
    """A model that truncates captions to a maximum number of tokens."""

    def truncated(self, captions: Sequence[str]) -> Sequence[bool]:
        """Whether each of these captions is truncated; called once for every distinct caption of a task."""


@runtime_checkable
class RefusesCaptions(_ByName, Protocol):
    """A model for which some texts in a caption are no text, such as the special tokens of its prompts."""

    def refused(self, captions: Sequence[str]) -> Sequence[str | None]:
        """Of each caption a text in it that the model cannot read as text; None for the usual caption."""


@runtime_checkable
class LimitedVocabulary(_ByName, Protocol):
    """A model whose tokenizer has a limited vocabulary."""

    def has_unknown_words(self, captions: Sequence[str]) -> Sequence[bool]:
        """Whether each of these captions has a word that the tokenizer replaces by its unknown-word token."""


@runtime_checkable
class CaptionEmbeddings(_ByName, Protocol):
    """A dual encoder whose captions can be encoded with shifted token embeddings, which prompt tuning learns."""

    @property
    def caption_width(self) -> int | None:
        """Dimension of a token's embedding; None if the token embeddings of this model cannot be shifted."""

    def encode_shifted_captions(self, prepared: Batch, shift: torch.Tensor) -> torch.Tensor:
        """Like ``encode_captions``, with ``shift`` [k, width] added to the embeddings of each caption's first k tokens.

        Special tokens before and after a caption are not counted; captions shorter than k tokens use the first rows of
        the shift only. Gradients flow to the shift where they are enabled. A shift of zeros does not change a bit.
        """


@runtime_checkable
class PreparesInThreads(_ByName, Protocol):
    """A model whose class declares whether ``prepare_images`` may run in several threads while the model computes.

    Otherwise one thread calls the adapter, and other threads only decode images.
    """

    prepares_in_threads: bool


@runtime_checkable
class Augmentable(_ByName, Protocol):
    """A model that can train on random crops of enlarged images (section B.1 of arXiv:2510.07632)."""

    def prepare_enlarged(self, images: Sequence[Image], scale: float) -> Batch:
        """Like ``prepare_images``, but ``scale`` times as large in each direction and uncropped; uint8 saves memory.

        Returns one row per image, on the CPU; rows of different sizes as a list.
        """

    def crop(self, enlarged: Batch, corners: np.ndarray) -> Batch:
        """Crops a window of the model's input size from every enlarged image.

        Args:
            enlarged: rows of ``prepare_enlarged``.
            corners: position of each window between the top left (0) and the bottom right of its enlarged image:
                fractions in [0, 1) [images, 2], rows then columns.

        Returns:
            Images as ``matching_loss`` takes them.
        """


@runtime_checkable
class Savable(_ByName, Protocol):
    """A model that ``--save_adapted`` can save."""

    def save_pretrained(self, folder: Path) -> None:
        """Saves the current model into an existing folder, so that its own library can load it."""


@runtime_checkable
class StoredFeatures(_ByName, Protocol):
    """A dual encoder on precomputed embeddings, which reads neither images nor captions."""

    def stored_images(self) -> Batch:
        """One row per image, group by group."""

    def stored_captions(self) -> Batch:
        """One row per caption, group by group."""


@dataclass(frozen=True)
class ChoiceQuestion:
    """One forced choice in words; the answer should name one of its options.

    Attributes:
        prompt: the whole text, options included.
        images: the images, in the order in which the prompt refers to them.
        options: a short answer for each option, in the prompt's order, for models that are constrained to these
            answers.
    """

    prompt: str
    images: Sequence[Image]
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChoiceStyle:
    """The form of a model's questions; see `ttmbench.scoring.forced_choice.ask`.

    Attributes:
        order: order of the options: random, or both orders, in which case both answers must be correct.
        side_by_side: join the two images of a question into one, for models that take one.
    """

    order: Literal["random", "both"] = "random"
    side_by_side: bool = False


@runtime_checkable
class ChoiceScorer(_ByName, Protocol):
    """A model that answers forced choices in words; it has no scores, so matching metrics are undefined for it."""

    choice_style: ChoiceStyle

    def answer(self, questions: Sequence[ChoiceQuestion]) -> Sequence[str | None]:
        """Answers each question independently: the model's text for each, or None if it refused."""


@runtime_checkable
class ManyAtOnce(_ByName, Protocol):
    """A model behind a server, which receives this many pairs or questions at a time.

    Images are then opened one after the other, when they are taken from the sequence, and are not cached.
    """

    pairs_at_once: int


@runtime_checkable
class MayRefuse(_ByName, Protocol):
    """A pair scorer that may refuse to score a pair: it returns NaN there.

    If ``refusals_are_wrong``, the pair's group is incorrect in every metric; else the task fails, naming the groups.
    """

    refusals_are_wrong: bool


class UndecidedPairs(NamedTuple):
    """Pairs that a model was asked about, and those whose score says little."""

    pairs: int
    """Pairs whose score is a bound or missing, or for which yes and no are improbable."""
    of: int
    """All pairs."""
    mass: float | None = None
    """Mean of P(yes) + P(no) over all pairs."""
    instead: str | None = None
    """The most frequent first token where yes and no are improbable."""

    @property
    def remedy(self) -> str:
        """What reduces the undecided pairs, in a sentence."""
        if self.instead is None:
            return "their scores are bounds: a larger top_logprobs or score_as=probability helps"
        return (
            f"answers begin with {self.instead!r}; chat_template_kwargs.enable_thinking=false or (vqascore) "
            "answer_prefix=TEXT helps"
        )


@runtime_checkable
class Bounding(_ByName, Protocol):
    """A pair scorer that asks for yes or no: a score may be a bound, or the model may say something else."""

    def take_undecided(self) -> UndecidedPairs:
        """Returns how many pairs were scored since the last call, and how many of them are undecided."""


@runtime_checkable
class Reporting(_ByName, Protocol):
    """A model that reports its usage (requests, tokens, money) and notes on its answers."""

    def usage(self) -> Mapping[str, Any]:
        """Requests, tokens and money used so far, as JSON values for ``model_info.usage``."""

    def take_notes(self) -> list[str]:
        """Returns notes on the answers since the last call, to report with the task."""
