"""Bases of models of transformers that score pairs: device, precision, state, the pair protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from ttmbench._util.file_io import tensors_digest
from ttmbench.errors import UsageError
from ttmbench.model import Model, PairScorer
from ttmbench.model_adapters._shared.contrastive import FP16
from ttmbench.model_adapters._shared.options import HubModel, LanguageOptions
from ttmbench.model_adapters._shared.pretrained import (
    PROBES,
    TORCH_DTYPES,
    LoadedModel,
    captions_read,
    pick_device,
    replace_forward,
    settle,
    special_tokens,
    untrainable,
    weights_of,
)

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedModel


COARSE = "weights in half precision are too coarse to train; use --model_args weights_dtype=fp32"
_ROWS = 2**14  # words of a vocabulary whose weights are converted to float32 at a time


class FrozenModel(Model):
    """A model of transformers on its device, which computes in ``dtype``."""

    def __init__(self, loaded: LoadedModel, asked: HubModel) -> None:
        self.dtype = TORCH_DTYPES[asked.dtype]
        try:
            digest = tensors_digest(weights_of(loaded.model))  # before they are on a device, and would come back
        except KeyError as error:
            why = "shares its weights with a part that is elsewhere; put both on one device"
            raise UsageError(f"device_map: {error} {why}") from None
        self.device = settle(loaded.model, torch.device(pick_device(asked.device)))
        self.model: PreTrainedModel = loaded.model.eval()
        self.loaded, self.name, self.files = loaded, asked.pretrained, loaded.files
        self.special_tokens = special_tokens(loaded.tokenizer, loaded.processor)
        self._declared = loaded.describe(self.name, digest, self.device, asked.dtype)
        read = loaded.tokenizer(PROBES)["input_ids"]
        self._declared["captions"] = captions_read(read, None, "longest", None, self.special_tokens)
        if isinstance(asked, LanguageOptions):
            self._declared["weights"] = str(self.model.dtype).removeprefix("torch.")

    def fingerprint(self) -> Mapping[str, object]:
        """Digest of the weights as they were loaded, and what else changes a score."""
        return self._declared

    def arithmetic(self) -> AbstractContextManager[object]:
        """A context that computes in ``dtype``, whatever the dtype of the weights is."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)


class PairModel(FrozenModel, PairScorer):
    """A pair scorer that prepares images by the four methods that subclasses have."""

    def score_pairs(self, images: Sequence[Image], captions: Sequence[str]) -> np.ndarray:
        """Scores image i with caption i: float32 [pairs]."""
        with torch.inference_mode():
            encoded = self.encode_images(self.prepare_images(images))
            return self.score_prepared(encoded, self.prepare_captions(captions))


class TrainablePairModel(PairModel):
    """A `PairModel` that TTM can train, but for the loss."""

    def __init__(self, loaded: LoadedModel, asked: HubModel) -> None:
        super().__init__(loaded, asked)
        self.untrainable = untrainable(self.model) or (COARSE if self.model.dtype != torch.float32 else None)
        self.state_sha256 = str(self._declared["weights_sha256"])

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """The trained parameters."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def state_dict(self) -> Mapping[str, torch.Tensor]:
        """The model's state."""
        return weights_of(self.model)

    def save(self, folder: Path) -> None:
        """Weights and preprocessing, as ``from_pretrained`` loads them."""
        self.loaded.save(folder)

    def check_trainable(self) -> None:
        """UsageError for a model that cannot be trained as it is loaded, and for fp16."""
        if self.untrainable is not None:
            raise UsageError(f"the model cannot be trained as it is loaded: {self.untrainable}")
        if self.dtype == torch.float16:
            raise UsageError(FP16)


def full_precision(head: torch.nn.Linear) -> None:
    """Makes a last layer compute in float32 whatever its input and weights are: bf16 logits would tie by rounding."""

    def forward(input: torch.Tensor) -> torch.Tensor:
        with torch.autocast(input.device.type, enabled=False):
            bias = None if head.bias is None else head.bias.float()
            if head.weight.dtype == torch.float32 or head.weight.device.type == "cpu" or torch.is_grad_enabled():
                return functional.linear(input.float(), head.weight.float(), bias)
            return projected(input.float(), head.weight, bias)

    replace_forward(head, forward)


def projected(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """A linear layer in float32, whose weights are converted a part at a time: all would take gigabytes beside them."""
    parts = torch.split(weight, _ROWS)
    logits = torch.cat([functional.linear(states, part.float()) for part in parts], dim=-1)
    return logits if bias is None else logits + bias
