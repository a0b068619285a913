"""What contrastive dual encoders of every library share: device, precision, temperature, bias, loss.

Towers may compute in bf16; weights, features and scores are float32.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from ttmbench._util.digests import tensors_digest
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.model_adapters._shared.precision import arithmetic, check_dtype, plain_attention

PIXELS = "pixel_values"


class ContrastiveModel(ABC):
    """A `DualEncoder` and `Trainable` adapter over a torch module with two towers, a temperature and maybe a bias.

    A model with a bias (SigLIP) has the pairwise sigmoid loss, one without (CLIP) the symmetric cross-entropy.
    """

    prepares_in_threads = True
    model_notes: tuple[str, ...] = ()  # what a reader of its scores should know

    def __init__(self, model: torch.nn.Module, *, device: str, dtype: str) -> None:
        self.dtype = check_dtype(dtype)
        self.device = torch.device(pick_device(device))
        self.model = model.to(self.device).eval()
        self.weights_sha256 = tensors_digest(self.model.state_dict())

    @abstractmethod
    def fingerprint(self) -> Mapping[str, Any]:
        """Digest of the weights as they were loaded, and what else changes a score."""

    @abstractmethod
    def save_pretrained(self, folder: Path) -> None:
        """Writes the model as it is now, in the form that its own library and this adapter load."""

    @abstractmethod
    def _image_features(self, inputs: Any) -> torch.Tensor:
        """Features [images, d] of inputs on the device, of any norm."""

    @abstractmethod
    def _caption_features(self, inputs: Any) -> torch.Tensor:
        """Features [captions, d] of inputs on the device, of any norm."""

    @abstractmethod
    def _temperature(self) -> torch.Tensor:
        """What inner products are multiplied with."""

    @abstractmethod
    def _bias(self) -> torch.Tensor | None:
        """What is added to every logit; None for models trained with the softmax loss."""

    def encode_images(self, prepared: Any) -> torch.Tensor:
        """Unit vectors [images, d], float32."""
        self._put_into(training=False)
        return self._unit_images(prepared)

    def encode_captions(self, prepared: Any) -> torch.Tensor:
        """Unit vectors [captions, d], float32."""
        self._put_into(training=False)
        return self._unit_captions(prepared)

    def logits(self, image_features: torch.Tensor, caption_features: torch.Tensor) -> torch.Tensor:
        """Temperature times inner product, plus the bias if the model has one; [images, captions]."""
        logits = image_features @ caption_features.T * self._temperature()
        bias = self._bias()
        return logits if bias is None else logits + bias

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """All parameters."""
        return self.model.parameters()

    def matching_loss(self, images: Any, captions: Any) -> torch.Tensor:
        """Symmetric cross-entropy (CLIP) or pairwise sigmoid (SigLIP) over every image and caption of the batch.

        Raises:
            UsageError: the towers compute in fp16, whose gradients underflow.
        """
        if self.dtype == torch.float16:
            raise UsageError("fp16 cannot train (its gradients underflow); use --dtype bf16 or fp32")
        return self.loss_of(self.train_images(images), self.train_captions(captions))

    @property
    def trains_in_parts(self) -> bool:
        """Whether features do not depend on the other rows of a batch: no batch normalisation."""
        return not any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in self.model.modules())

    def train_images(self, prepared: Any) -> torch.Tensor:
        """As `encode_images`, in training mode."""
        self._put_into(training=True)
        return self._unit_images(prepared)

    def train_captions(self, prepared: Any) -> torch.Tensor:
        """As `encode_captions`, in training mode."""
        self._put_into(training=True)
        return self._unit_captions(prepared)

    def _put_into(self, training: bool) -> None:
        """Training or scoring: torch walks over all modules, each time, which costs as much as a small layer."""
        if self.model.training != training:
            self.model.train(training)

    def loss_of(self, image_features: torch.Tensor, caption_features: torch.Tensor) -> torch.Tensor:
        """The loss of `matching_loss` from features [rows, d] of both sides."""
        logits = self.logits(image_features, caption_features)
        if self._bias() is not None:
            signs = 2 * torch.eye(len(logits), device=logits.device) - 1
            return -functional.logsigmoid(signs * logits).sum(dim=-1).mean()
        truth = torch.arange(len(logits), device=logits.device)
        return (functional.cross_entropy(logits, truth) + functional.cross_entropy(logits.T, truth)) / 2

    def state_dict(self) -> Mapping[str, torch.Tensor]:
        """The model's."""
        return self.model.state_dict()

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Puts weights back."""
        self.model.load_state_dict(state)

    def _on_device(self, prepared: Any) -> Any:
        if isinstance(prepared, Mapping):
            return {name: tensor.to(self.device, non_blocking=True) for name, tensor in prepared.items()}
        return prepared.to(self.device, non_blocking=True)

    def _unit_images(self, prepared: Any) -> torch.Tensor:
        inputs = self._on_device(prepared)
        with arithmetic(self.device, self.dtype), plain_attention(self.device, self.dtype):
            features = self._image_features(inputs)
        return unit(features)

    def _unit_captions(self, prepared: Any) -> torch.Tensor:
        inputs = self._on_device(prepared)
        with arithmetic(self.device, self.dtype), plain_attention(self.device, self.dtype):
            features = self._caption_features(inputs)
        return unit(features)


def pick_device(device: str) -> str:
    """The device that ``auto`` means here; UsageError for one that is not here."""
    if "," in device:
        raise UsageError(f"device {device} names several devices, and only `run` divides its work among them; name one")
    if device != "auto":
        kind, _, number = device.partition(":")
        if kind == "cuda" and not torch.cuda.is_available():
            raise UsageError(f"device {device} was asked for, but torch sees no CUDA device; use --device cpu")
        if kind == "cuda" and number.isdecimal() and int(number) >= torch.cuda.device_count():
            last = torch.cuda.device_count() - 1
            raise UsageError(f"device {device} was asked for, but the last that torch sees is cuda:{last}")
        if kind == "mps" and not torch.backends.mps.is_available():
            raise UsageError("device mps was asked for, but torch has none here; use --device cpu")
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def compiled(function: Any) -> Any:
    """A tower through ``torch.compile``; what the compiler lacks (a C compiler, say) is one clear error."""
    fast = torch.compile(function)

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return fast(*args, **kwargs)  # type: ignore[no-untyped-call]
        except torch._dynamo.exc.BackendCompilerFailed as error:
            reason = " ".join(str(error).split())[:200]
            raise TtmbenchError(f"the model cannot be compiled here ({reason}); run without --compile") from error

    return run


def declared_name(pretrained: str) -> str:
    """How a fingerprint names weights: a hub id as it is, a folder or file by its last part."""
    return Path(pretrained).name if Path(pretrained).exists() else pretrained


def count_parameters(parameters: Iterable[torch.nn.Parameter]) -> int:
    """Number of numbers in all parameters."""
    return sum(parameter.numel() for parameter in parameters)


def caption_tokens(asked: Any, trained: int | None, positions: int, tokenizer: Any) -> int:
    """Where captions are cut: where it is asked for, else as in training, and never beyond the model's positions.

    Args:
        asked: ``max_tokens`` of a user, special tokens included; None for the model's own.
        trained: how long captions were in training, where that is less than what the model tells apart.
        positions: how many tokens it tells apart by place.
        tokenizer: has a limit of its own.

    Returns:
        The longest caption in tokens.

    Raises:
        UsageError: ``asked`` is no number of tokens that fits.
    """
    most = min(positions, int(tokenizer.model_max_length))
    if asked is None:
        return min(most, trained or most)
    if isinstance(asked, bool) or not isinstance(asked, int) or not 3 <= asked <= most:
        raise UsageError(
            f"max_tokens={asked}: this model takes captions of 3 to {most} tokens, the two at its ends included"
        )
    return asked


def trimmed(tokens: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tokens without the columns that are padding in every row: for towers whose answer does not depend on padding."""
    mask = tokens.get("attention_mask")
    if mask is None:
        return dict(tokens)
    length = int(mask.sum(dim=1).max())
    if bool(mask[:, length:].any()):  # padded on the left: the columns cannot be dropped
        return dict(tokens)
    return {name: tensor[:, :length] if tensor.shape == mask.shape else tensor for name, tensor in tokens.items()}


def unit(features: torch.Tensor) -> torch.Tensor:
    """The same directions with length 1, float32 [rows, d]."""
    features = features.float()
    return features / features.norm(p=2, dim=-1, keepdim=True)
