"""Bases of models of transformers that score pairs: device, precision, state, the pair protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import torch
from torch.nn import functional

from ttmbench.errors import UsageError
from ttmbench.model_adapters._shared.contrastive import count_parameters, declared_name
from ttmbench.model_adapters._shared.options import HubModel, LanguageOptions
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
from ttmbench.model_adapters._shared.pretrained import LoadedModel

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedModel

Images = TypeVar("Images")  # prepared
Encoded = TypeVar("Encoded")
Captions = TypeVar("Captions")  # prepared


class FrozenModel:
    """A model of transformers on its device, which computes in ``dtype``."""

    def __init__(self, loaded: LoadedModel, asked: HubModel) -> None:
        self.dtype = TORCH_DTYPES[asked.dtype]
        self.device = settle(loaded.model, torch.device(pick_device(asked.device)))
        self.model: PreTrainedModel = loaded.model.eval()
        self.loaded, self.name, self.files = loaded, asked.pretrained, loaded.files
        self._declared = {
            "pretrained": declared_name(self.name),
            "architecture": type(self.model).__name__,
            "weights_sha256": weights_digest(self.model),
            "dtype": str(self.dtype).removeprefix("torch."),
            "n_parameters": count_parameters(own_parameters(self.model)),
            **loaded.describe(self.device),
        }
        if isinstance(asked, LanguageOptions):
            self._declared["weights"] = str(self.model.dtype).removeprefix("torch.")

    def fingerprint(self) -> Mapping[str, object]:
        """Digest of the weights as they were loaded, and what else changes a score."""
        return self._declared

    def arithmetic(self) -> AbstractContextManager[object]:
        """A context that computes in ``dtype``, whatever the dtype of the weights is."""
        return arithmetic(self.device, self.dtype)


class PairModel(FrozenModel, ABC, Generic[Images, Encoded, Captions]):
    """A `PreparedPairScorer`; subclasses score a pair."""

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
        """The trained parameters."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def state_dict(self) -> Mapping[str, torch.Tensor]:
        """The model's state."""
        return weights_of(self.model)

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restores a state."""
        self.model.load_state_dict(state)

    @property
    def untrainable(self) -> str | None:
        """Why the model cannot be trained as it was loaded; None if it can."""
        return untrainable(self.model)

    def check_trainable(self) -> None:
        """UsageError for a model that cannot be trained as it is loaded, and for fp16."""
        if self.untrainable is not None:
            raise UsageError(f"the model cannot be trained as it is loaded: {self.untrainable}")
        if self.dtype == torch.float16:
            raise UsageError("fp16 cannot train (its gradients underflow); use --dtype bf16 or fp32")


def full_precision(head: torch.nn.Linear) -> None:
    """Makes a last layer compute in float32 whatever its input and weights are: bf16 logits would tie by rounding."""

    def forward(input: torch.Tensor) -> torch.Tensor:
        with torch.autocast(input.device.type, enabled=False):
            bias = None if head.bias is None else head.bias.float()
            return functional.linear(input.float(), head.weight.float(), bias)

    replace_forward(head, forward)
