"""What a model is: base classes for model adapters, with a default for everything that is optional.

Derive from `PairScorer` (one method), `DualEncoder`, or `ChoiceModel`, for models that answer in words and give no
score. A class may derive from several; a run asks a dual encoder for features, then a pair scorer for scores, then for
answers. Optional methods say no by default. A model contains nothing that is specific to a task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ttmbench._annotations import Batch as Batch
from ttmbench._annotations import Image, torch
from ttmbench.errors import UsageError
from ttmbench.types import ModelFiles

Prepared: TypeAlias = Any
"""Images or captions as a model's own ``prepare_*`` returned them, or some of their rows."""


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


class Model(ABC):
    """What all models have in common.

    Attributes:
        files: of the weights, for the results' record of where they came from.
        model_name: name in results of a model that is given as an object.
        trained_on: names of the image collections that it was trained on; None if unknown.
        untrainable: why a model that could be trained cannot be as it was loaded; None if it can.
        not_logits: why its scores are no logits, and what makes it give logits; None if they are.
        state_sha256: digest of ``state_dict()`` as it was loaded; None if unknown.
        pairs_at_once: pairs or questions that a model behind a server takes at a time; None uses the batch size. Images
            are then opened one after the other, when they are taken from the sequence, and are not cached.
        prepares_in_threads: whether ``prepare_images`` may run in several threads while the model computes.
        frames: of each video, where the items of a task are videos.
        shows_frames: whether it is given videos as they are, with their ``frames``; or the number of frames that it
            takes. A video is one image, which `ttmbench._util.images.frames_of` divides. A dual encoder that does not
            encodes each frame as an image, and its features are averaged.
        towers: how names of the parameters of its image tower, and of its caption tower, begin; others are shared.
        added: functions that undo what ``train=`` has added to the model for the time of a method.
        special_tokens: texts that it cannot read as text in a caption, such as special tokens of its prompts.
    """

    files: ModelFiles | None = None
    model_name: str | None = None
    trained_on: Sequence[str] | None = None
    untrainable: str | None = None
    not_logits: str | None = None
    state_sha256: str | None = None
    pairs_at_once: int | None = None
    prepares_in_threads: bool = False
    frames: int = 1
    shows_frames: bool | int = False
    towers: tuple[tuple[str, ...], tuple[str, ...]] = (
        ("vision", "visual", "image"),
        ("text", "caption", "transformer.", "token_embedding", "positional_embedding", "ln_final"),
    )
    added: Sequence[Callable[[], object]] = ()
    special_tokens: frozenset[str] = frozenset()

    @abstractmethod
    def fingerprint(self) -> Mapping[str, Any] | str:
        """Everything that changes a score: weights digest or API model id, preprocessing, dtype, prompt.

        Scores of a model with an empty fingerprint are not cached.
        """

    @cached_property
    def device(self) -> torch.device:
        """Where the model computes; set it where that is not the CPU."""
        return torch.device("cpu")

    def notes(self) -> list[str]:
        """What readers of a task's results should know of the model, and of its answers since the last call."""
        return []

    def usage(self) -> Mapping[str, Any]:
        """Requests, tokens and money used so far, as JSON values; scores of a model that counts them are not cached."""
        return {}

    def refused(self, captions: Sequence[str]) -> Sequence[str | None]:
        """Of each caption one of its ``special_tokens``, however that is capitalised; None for a caption of text."""
        lower = {token.lower(): token for token in sorted(self.special_tokens or ())}
        return [next((token for low, token in lower.items() if low in caption.lower()), None) for caption in captions]

    def truncated(self, captions: Sequence[str]) -> Sequence[bool] | None:
        """Whether each of these captions is longer than the model reads; None for a model that does not say."""
        return None

    def save(self, folder: Path) -> None:
        """Saves the current model into an existing folder, so that its own library can load it."""
        raise UsageError(f"{type(self).__name__} cannot be saved: it has no save(folder)")

    @property
    def savable(self) -> bool:
        """Whether it can be saved."""
        return overrides(self, "save")

    @property
    def trainable(self) -> bool:
        """Whether it can be adapted: a dual encoder by ``matching_loss``, a prepared pair scorer by ``pair_loss``."""
        if isinstance(self, DualEncoder):
            return self.gives_gradients or overrides(self, "matching_loss")
        return isinstance(self, PairScorer) and self.prepares and overrides(self, "pair_loss")

    @property
    def torch_module(self) -> torch.nn.Module | None:
        """The torch module that the model is, or that it has as its attribute ``model``."""
        import torch

        return next((one for one in (self, getattr(self, "model", None)) if isinstance(one, torch.nn.Module)), None)

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """The parameters that adaptation trains; by default those of its `torch_module`, as for the next two."""
        return self._trained.parameters()

    def state_dict(self) -> Mapping[str, torch.Tensor]:
        """All tensors that training changes, by name."""
        return self._trained.state_dict()

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> Any:
        """Restores a state that ``state_dict`` returned."""
        return self._trained.load_state_dict(state)

    @property
    def _trained(self) -> torch.nn.Module:
        """The `torch_module` with torch's own methods; UsageError if there is none."""
        module = self.torch_module
        if module is None:
            name = type(self).__name__
            raise UsageError(f"{name} has no parameters; derive it from torch.nn.Module, or keep one as its `model`")
        own: object = self
        return super() if module is own else module  # type: ignore[return-value]


class PairScorer(Model):
    """A model that scores an image with a caption, one pair at a time (ITM heads, generative models, APIs).

    One that has the four methods from ``prepare_images`` to ``score_prepared`` preprocesses and encodes each image
    once, for any number of captions; TTM can adapt it if it has ``pair_loss`` too.

    Attributes:
        blind: the score depends on the caption alone.
        refusals_are_wrong: None for a model that scores every pair. Others may return NaN: with True the pair's group
            is incorrect in every metric, with False the task fails, naming the groups.
        alpha: weight of log P(t) subtracted from the scores (arXiv:2306.01879, Eq. 7), of a model with ``log_priors``.
        prior: source of P(t): ``noise`` uses ``log_priors``, ``test_images`` averages over the task's images.
        noise_images: P(t) is a mean over this many noise images; None uses the task's number.
    """

    blind: bool = False
    refusals_are_wrong: bool | None = None
    alpha: float = 0.0
    prior: str = "noise"
    noise_images: int | None = None

    @abstractmethod
    def score_pairs(self, images: Sequence[Image], captions: Sequence[str]) -> np.ndarray:
        """Scores upright RGB image i with caption i: float32 [pairs], logits or log-odds; larger is a better fit."""

    def prepare_images(self, images: Sequence[Image]) -> Batch:
        """Preprocesses upright RGB images, once each. Returns one row per image, on the CPU."""
        raise NotImplementedError

    def prepare_captions(self, captions: Sequence[str]) -> Batch:
        """Tokenises all of a task's captions, once. Returns one row per caption, on the CPU."""
        raise NotImplementedError

    def encode_images(self, prepared: Prepared) -> Batch:
        """Encodes prepared images for scoring, once per image and pass. Returns one row per image."""
        raise NotImplementedError

    def score_prepared(self, images: Prepared, captions: Prepared) -> np.ndarray:
        """Scores encoded image i with prepared caption i: float32 [pairs], in the same unit as ``score_pairs``."""
        raise NotImplementedError

    @property
    def prepares(self) -> bool:
        """Whether images are prepared and encoded once each."""
        return overrides(self, "score_prepared")

    def pair_loss(self, images: Prepared, captions: Prepared, matched: np.ndarray) -> torch.Tensor:
        """The model's own loss for predicting whether each pair matches; a scalar.

        Args:
            images: prepared, not encoded: training goes through the vision encoder.
            captions: prepared, as many.
            matched: the targets, bool [pairs].

        Returns:
            The mean over pairs, so that a batch may be trained on in parts.
        """
        raise NotImplementedError

    def log_priors(self, captions: Sequence[str], noise_images: int | None = None) -> np.ndarray:
        """Log P(t) of captions in the unit of the scores, float32 [captions], from this many noise images."""
        raise NotImplementedError

    @property
    def debiases(self) -> bool:
        """Whether its scores are log P(t|i), which can be debiased by P(t)."""
        return self.prepares and overrides(self, "log_priors")

    def take_undecided(self) -> UndecidedPairs | None:
        """Pairs scored since the last call and how many are undecided; None for a model that asks no yes or no."""
        return None


class DualEncoder(Model):
    """A model with one tower for images and one for captions (CLIP, SigLIP, open_clip).

    TTM can adapt one with ``matching_loss``; other training methods need ``train_images``, ``train_captions`` and
    ``loss_of``, which give ``matching_loss`` too.

    Attributes:
        vectors: ``one`` for an image or a caption, features [rows, d]; or ``many``: [rows, tokens, d], on one side or
            both, padded with zero rows, which change no logit. Methods that work on features need one.
    """

    vectors: Literal["one", "many"] = "one"

    @abstractmethod
    def prepare_images(self, images: Sequence[Image]) -> Batch:
        """Preprocesses upright RGB images, once each. Returns one row per image, on the CPU."""

    @abstractmethod
    def prepare_captions(self, captions: Sequence[str]) -> Batch:
        """Tokenises all of a task's captions, once. Returns one row per caption, on the CPU."""

    @abstractmethod
    def encode_images(self, prepared: Prepared) -> torch.Tensor:
        """Prepared images -> float32 features [images, d], as the model's own loss uses them."""

    @abstractmethod
    def encode_captions(self, prepared: Prepared) -> torch.Tensor:
        """Prepared captions -> float32 features [captions, d], as the model's own loss uses them."""

    @abstractmethod
    def logits(self, image_features: torch.Tensor, caption_features: torch.Tensor) -> torch.Tensor:
        """Scores every image with every caption: float32 [images, captions], temperature and bias included."""

    def matching_loss(self, images: Prepared, captions: Prepared) -> torch.Tensor:
        """The model's own contrastive loss on a batch in which image i matches caption i; a scalar."""
        return self.loss_of(self.train_images(images), self.train_captions(captions))

    def train_images(self, prepared: Prepared) -> torch.Tensor:
        """Features [images, d] with gradients."""
        raise NotImplementedError

    def train_captions(self, prepared: Prepared) -> torch.Tensor:
        """Features [captions, d] with gradients."""
        raise NotImplementedError

    def loss_of(self, image_features: torch.Tensor, caption_features: torch.Tensor) -> torch.Tensor:
        """The loss of features of matched pairs, row by row; a scalar."""
        raise NotImplementedError

    @property
    def gives_gradients(self) -> bool:
        """Whether it gives features with gradients, so that its loss is a function of features."""
        return overrides(self, "train_images")

    @property
    def trains_in_parts(self) -> bool:
        """Whether a row's features do not depend on the other rows, so that a batch can be processed in parts."""
        return False

    def features_before_normalization(self, prepared: Prepared, training: bool) -> torch.Tensor:
        """Image features [images, d], to pool the frames of a video.

        Normalised, they equal ``encode_images`` or, with ``training``, ``train_images``.
        """
        raise NotImplementedError

    @property
    def caption_width(self) -> int | None:
        """Dimension of a caption token's embedding; None if the token embeddings cannot be shifted."""
        return None

    def encode_shifted_captions(self, prepared: Prepared, shift: torch.Tensor) -> torch.Tensor:
        """Like ``encode_captions``, with ``shift`` [k, width] added to the embeddings of each caption's first k tokens.

        Special tokens before and after a caption are not counted; captions shorter than k tokens use the first rows of
        the shift only. Gradients flow to the shift where they are enabled. A shift of zeros does not change a bit.
        """
        raise NotImplementedError

    def has_unknown_words(self, captions: Sequence[str]) -> Sequence[bool]:
        """Whether each of these captions has a word that the tokenizer replaces by its unknown-word token."""
        return [False] * len(captions)

    def prepare_enlarged(self, images: Sequence[Image], scale: float) -> Batch:
        """Like ``prepare_images``, but ``scale`` times as large in each direction and uncropped; uint8 saves memory.

        For training on random crops (section B.1 of arXiv:2510.07632). Returns one row per image, on the CPU; rows of
        different sizes as a list.
        """
        raise NotImplementedError

    def crop(self, enlarged: Prepared, corners: np.ndarray) -> Prepared:
        """Crops a window of the model's input size from every enlarged image.

        Args:
            enlarged: rows of ``prepare_enlarged``.
            corners: position of each window between the top left (0) and the bottom right of its enlarged image:
                fractions in [0, 1) [images, 2], rows then columns.

        Returns:
            Images as ``matching_loss`` takes them.
        """
        raise NotImplementedError

    @property
    def augments(self) -> bool:
        """Whether it can train on random crops of enlarged images."""
        return overrides(self, "prepare_enlarged")


class StoredFeatures(DualEncoder):
    """A dual encoder on precomputed embeddings, which reads neither images nor captions.

    Attributes:
        labels: arrays of ground truth by name, of the images and captions of retrieval or classification.
    """

    labels: Mapping[str, np.ndarray] = MappingProxyType({})

    @abstractmethod
    def stored_images(self) -> Batch:
        """One row per image, group by group."""

    @abstractmethod
    def stored_captions(self) -> Batch:
        """One row per caption, group by group."""

    def prepare_images(self, images: Sequence[Image]) -> Batch:
        """UsageError: there is no tower to run on an image."""
        raise UsageError("the model has precomputed embeddings only and cannot encode an image")

    def prepare_captions(self, captions: Sequence[str]) -> Batch:
        """UsageError: there is no tower to run on a caption."""
        raise UsageError("the model has precomputed embeddings only and cannot encode a caption")


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
    """The form of a model's questions; see `ttmbench.scoring.forced_choice`.

    Attributes:
        order: order of the options: random, or both orders, in which case both answers must be correct.
        side_by_side: join the two images of a question into one, for models that take one.
    """

    order: Literal["random", "both"] = "random"
    side_by_side: bool = False


class ChoiceModel(Model):
    """A model that answers forced choices in words; it has no scores, so matching metrics are undefined for it.

    Attributes:
        choice_style: the form of its questions.
    """

    choice_style: ChoiceStyle = ChoiceStyle()

    @abstractmethod
    def answer(self, questions: Sequence[ChoiceQuestion]) -> Sequence[str | None]:
        """Answers each question independently: the model's text for each, or None if it refused."""


def overrides(model: Model, name: str) -> bool:
    """Whether a model has an optional method of its own, in its class or set on the object."""
    return (
        name in vars(model) or next(kind for kind in type(model).__mro__ if name in vars(kind)).__module__ != __name__
    )


def _hides(base: type[Model], name: str, adapter: object) -> bool:
    """Whether a default of a base class would be found in place of another that the object has outside its class."""
    if hasattr(type(adapter), name) or not hasattr(adapter, name):
        return False
    default, found = getattr(base, name), getattr(adapter, name)
    is_seen = not callable(default) and not isinstance(default, property) and name in vars(adapter)
    return not is_seen and getattr(found, "__func__", found) is not default


_BASES = (StoredFeatures, DualEncoder, PairScorer, ChoiceModel)


def as_model(adapter: object) -> Model:
    """The object if it has a base class; one whose class has the methods of a base class is given its defaults.

    UsageError for any other object, with what to change: also where a default would hide what the object has outside
    its class (set on it, a parameter of torch, or answered by ``__getattr__``).
    """
    return adapter if isinstance(adapter, DualEncoder | PairScorer | ChoiceModel) else _with_base(adapter)


def _with_base(adapter: object) -> Model:
    """`as_model` of an object without a base class."""
    kind, name = type(adapter), type(adapter).__name__
    needed = {base: [one for one in base.__abstractmethods__ if one != "fingerprint"] for base in _BASES}
    bases = [base for base in _BASES if all(callable(getattr(kind, one, None)) for one in needed[base])]
    hidden = [one for base in bases for one in dir(base) if one[0] != "_" and _hides(base, one, adapter)]
    if bases and not hidden and not any(vars(one).get("__slots__") for one in kind.__mro__):
        body: dict[str, Any] = {key: getattr(kind, key) for key in ("__module__", "__qualname__", "__doc__")}
        body |= {"_given": adapter, "__del__": lambda _: None}  # it stays alive with the model, and is closed once
        if not hasattr(kind, "fingerprint"):
            body["fingerprint"] = lambda _: {}
        with suppress(TypeError):  # of a metaclass, or of a class that cannot be derived from so
            derived: Any = type(name, (kind, *bases), body)
            model: Model = object.__new__(derived)
            object.__setattr__(model, "__dict__", vars(adapter))  # the same object, to whoever holds it
            return model
    alike = bases or [base for base in _BASES if all(hasattr(adapter, one) for one in needed[base])]
    if alike:
        hidden.sort(key=lambda one: isinstance(getattr(alike[0], one, None), property))  # which follow from the others
        names = ", ".join(list(dict.fromkeys(hidden))[:5])
        why = f"; defaults would hide what it has outside its class, so define it in the class: {names}" * bool(hidden)
        raise UsageError(f"write `class {name}(ttmbench.{alike[0].__name__})`{why}")
    raise UsageError(
        f"{name} can neither score pairs (score_pairs) nor encode (prepare_images, prepare_captions, encode_images, "
        "encode_captions, logits) nor answer questions (answer); docs/add-an-adapter.md shows how to wrap a model"
    )
