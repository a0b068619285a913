"""What models that see an image and a caption together have in common: device, precision, state, the pair protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from torch.nn import functional

from ttmbench.errors import UsageError
from ttmbench.model_adapters._shared.contrastive import count_parameters, declared_name
from ttmbench.model_adapters._shared.options import HubModel
from ttmbench.model_adapters._shared.placement import (
    TORCH_DTYPES,
    arithmetic,
    own_parameters,
    pick_device,
    replace_forward,
    settle,
    untrainable,
    weights_digest,
    weights_of,
)
from ttmbench.model_adapters._shared.repository import quiet_hub
from ttmbench.types import ModelFiles

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin


Images = TypeVar("Images")
"""Images as they are prepared."""
Encoded = TypeVar("Encoded")
"""Images as they are encoded."""
Captions = TypeVar("Captions")
"""Captions as they are prepared."""


class FrozenModel:
    """A model of transformers on its device, and what its fingerprint says.

    Arithmetic is in ``dtype``; answers come out of the last layer in float32 (`full_precision`).
    """

    def __init__(self, model: torch.nn.Module, asked: HubModel, files: ModelFiles | None = None) -> None:
        self.dtype = TORCH_DTYPES[asked.dtype]
        self.device = settle(model, torch.device(pick_device(asked.device)))
        self.model: Any = model.eval()
        self.weights_sha256 = weights_digest(self.model)
        self.name, self.files = asked.pretrained, files
        self.n_parameters = count_parameters(own_parameters(self.model))

    def fingerprint(self) -> Mapping[str, object]:
        """Digest of the weights as they were loaded, and what else changes a score."""
        return {
            "pretrained": declared_name(self.name),
            "architecture": type(self.model).__name__,
            "weights_sha256": self.weights_sha256,
            "dtype": str(self.dtype).removeprefix("torch."),
            "n_parameters": self.n_parameters,
        }

    def arithmetic(self) -> AbstractContextManager[object]:
        """Arithmetic in ``dtype``, where the weights are in another."""
        return arithmetic(self.device, self.dtype)


class PairModel(FrozenModel, ABC, Generic[Images, Encoded, Captions]):
    """A `PreparedPairScorer` over a torch module; subclasses say how a pair is scored."""

    @abstractmethod
    def prepare_images(self, images: Sequence[Image]) -> Images:
        """The model's own preprocessing, one row per image, on the CPU."""

    @abstractmethod
    def prepare_captions(self, captions: Sequence[str]) -> Captions:
        """One row per caption, on the CPU."""

    @abstractmethod
    def encode_images(self, prepared: Images) -> Encoded:
        """What the vision encoder gives, one row per image, on the device."""

    @abstractmethod
    def score_prepared(self, images: Encoded, captions: Captions) -> np.ndarray:
        """Scores encoded image i with prepared caption i: float32 [pairs]."""

    def score_pairs(self, images: Sequence[Image], captions: Sequence[str]) -> np.ndarray:
        """Scores image i with caption i: float32 [pairs]."""
        with torch.inference_mode():
            encoded = self.encode_images(self.prepare_images(images))
            return self.score_prepared(encoded, self.prepare_captions(captions))


class TrainablePairModel(PairModel[Images, Encoded, Captions]):
    """A `PairModel` that TTM can train: `PairTrainable` but for the loss."""

    @abstractmethod
    def pair_loss(self, images: Images, captions: Captions, matched: np.ndarray) -> torch.Tensor:
        """The model's own loss for answering which of the pairs match; the mean over pairs."""

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """Those that are trained."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def state_dict(self) -> Mapping[str, torch.Tensor]:
        """The model's."""
        return weights_of(self.model)

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Puts weights back."""
        self.model.load_state_dict(state)

    @property
    def untrainable(self) -> str | None:
        """Why the model cannot be trained as it was loaded; None if it can."""
        return untrainable(self.model)

    def check_trainable(self) -> None:
        """UsageError for fp16, whose gradients underflow, and for what is loaded in a way that cannot be trained."""
        if self.untrainable is not None:
            raise UsageError(f"the model cannot be trained as it is loaded: {self.untrainable}")
        if self.dtype == torch.float16:
            raise UsageError("fp16 cannot train (its gradients underflow); use --dtype bf16 or fp32")


def save_parts(folder: Path, *parts: PreTrainedModel | ProcessorMixin | PreTrainedTokenizerBase) -> None:
    """Writes model, tokenizer and the like as their own library loads them again."""
    with quiet_hub():
        for part in parts:
            part.save_pretrained(folder)


def full_precision(head: torch.nn.Linear) -> None:
    """Makes a last layer multiply in float32 whatever its input and weights are: bf16 answers would tie by rounding."""

    def forward(input: torch.Tensor) -> torch.Tensor:
        with torch.autocast(input.device.type, enabled=False):
            bias = None if head.bias is None else head.bias.float()
            return functional.linear(input.float(), head.weight.float(), bias)

    replace_forward(head, forward)
