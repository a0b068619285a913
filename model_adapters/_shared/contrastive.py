"""Contrastive dual encoders of every library: precision, temperature, bias, loss, pixels and tokens.

Towers may compute in bf16; weights, features and scores are float32. Pixels are uint8 until each pass, which crops and
normalises them on the device.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from ttmbench._util.file_io import tensors_digest
from ttmbench.errors import UsageError
from ttmbench.model import DualEncoder
from ttmbench.model_adapters._shared.pretrained import TORCH_DTYPES, pick_device

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PIXELS = "pixel_values"
Prepared = TypeVar("Prepared", torch.Tensor, Mapping[str, torch.Tensor])
"""Images after a model's own preprocessing, or tokens of captions."""
Tower = Callable[..., Any]
"""Features of prepared images or captions, in the form that a library returns them."""
QUICK, GELU = "quick_gelu", "gelu"
ADVICE_ON_GELU = (
    "If the weights were fine-tuned from OpenAI's CLIP (NegCLIP, CE-CLIP and others), set --model_args "
    "quick_gelu=true; quick_gelu=false silences this"
)
FP16 = "fp16 cannot train (its gradients underflow); use --dtype bf16 or fp32"


class ContrastiveModel(DualEncoder, Generic[Prepared]):
    """A `DualEncoder` over a torch module with two towers, a temperature and maybe a bias, on a device (``auto`` too).

    With a bias (SigLIP) its loss is the pairwise sigmoid, without (CLIP) the symmetric cross-entropy.
    """

    prepares_in_threads = True
    tokenizer: Any = None  # a library's own
    _notes: Sequence[str] = ()  # for readers of its scores

    def __init__(
        self, model: torch.nn.Module, towers: tuple[Tower, Tower], *, device: str, dtype: str, compile: bool = False
    ) -> None:
        self.dtype, self.is_compiled = TORCH_DTYPES[dtype], compile
        self.state_sha256: str = tensors_digest(model.state_dict())  # before the weights leave for a device
        self.device = torch.device(pick_device(device))
        self.model: Any = model.to(self.device).eval()
        self._image_tower, self._text_tower = map(torch.compile, towers) if compile else towers

    @abstractmethod
    def _tower(self, tower: Tower, inputs: Prepared) -> torch.Tensor:
        """Features [rows, d] of inputs on the device, of any norm, by one of the two towers."""

    def _scale_and_bias(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The temperature, by which inner products are multiplied, and what is added; None as trained with softmax."""
        divisor = getattr(self.model, "temperature", None)  # of ALIGN and TIPSv2
        scale = self.model.logit_scale.exp() if divisor is None else 1 / divisor
        return scale, getattr(self.model, "logit_bias", None)

    def encode_images(self, prepared: Prepared) -> torch.Tensor:
        """Unit vectors [images, d], float32."""
        return self._features(self._image_tower, prepared)

    def encode_captions(self, prepared: Prepared) -> torch.Tensor:
        """Unit vectors [captions, d], float32."""
        return self._features(self._text_tower, self._trimmed(prepared))

    def logits(self, image_features: torch.Tensor, caption_features: torch.Tensor) -> torch.Tensor:
        """Temperature times inner product, plus the bias if the model has one; [images, captions]."""
        scale, bias = self._scale_and_bias()
        logits = image_features @ caption_features.T * scale
        return logits if bias is None else logits + bias

    def notes(self) -> list[str]:
        """What was noticed when it was loaded."""
        return list(self._notes)

    @property
    def trains_in_parts(self) -> bool:
        """Whether features are independent of the other rows of a batch: no batch normalisation."""
        return not any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in self.model.modules())

    def train_images(self, prepared: Prepared) -> torch.Tensor:
        """As `encode_images`, in training mode; UsageError if the towers compute in fp16, whose gradients underflow."""
        return self._features(self._image_tower, prepared, training=True)

    def train_captions(self, prepared: Prepared) -> torch.Tensor:
        """As `encode_captions`, in training mode."""
        return self._features(self._text_tower, self._trimmed(prepared), training=True)

    def loss_of(self, image_features: torch.Tensor, caption_features: torch.Tensor) -> torch.Tensor:
        """Symmetric cross-entropy (CLIP) or pairwise sigmoid (SigLIP) over every image and caption of the batch."""
        logits = self.logits(image_features, caption_features)
        if self._scale_and_bias()[1] is not None:
            signs = 2 * torch.eye(len(logits), device=logits.device) - 1
            return -functional.logsigmoid(signs * logits).sum(dim=-1).mean()
        truth = torch.arange(len(logits), device=logits.device)
        return (functional.cross_entropy(logits, truth) + functional.cross_entropy(logits.T, truth)) / 2

    def _trimmed(self, prepared: Prepared) -> Prepared:
        """Captions without columns that change no feature."""
        return prepared

    def features_before_normalization(self, prepared: Prepared, training: bool) -> torch.Tensor:
        """Image features as the tower returns them, float32 [images, d]."""
        return self._features(self._image_tower, prepared, training, of_any_norm=True)

    def _features(
        self, tower: Tower, prepared: Prepared, training: bool = False, of_any_norm: bool = False
    ) -> torch.Tensor:
        if training and self.dtype == torch.float16:
            raise UsageError(FP16)
        if self.model.training != training:  # torch walks over all modules, which costs as much as a small layer
            self.model.train(training)
        inputs = on_device(prepared, self.device)
        # The backward pass of torch's fused attention in bf16 on a CPU would take more time than all the rest.
        is_slow = self.device.type == "cpu" and self.dtype == torch.bfloat16
        half = torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)
        with half, sdpa_kernel(SDPBackend.MATH) if is_slow else nullcontext():
            features = self._tower(tower, inputs).float()
        return features if of_any_norm else features / features.norm(p=2, dim=-1, keepdim=True)

    def _token_embedding(self) -> nn.Embedding | None:
        """The module that embeds the tokens of captions; None if there is none of CLIP's kind."""
        return None

    @property
    def caption_width(self) -> int | None:
        """Dimension of a token's embedding, in text towers as CLIP and SigLIP have them; None in others."""
        embedding = self._token_embedding()
        return None if embedding is None else embedding.embedding_dim

    def encode_shifted_captions(self, prepared: Prepared, shift: torch.Tensor) -> torch.Tensor:
        """As `encode_captions`, with ``shift`` [k, width] added to the embeddings of each caption's first k tokens."""
        if self.dtype == torch.float16 and shift.requires_grad:
            raise UsageError(FP16)
        if (embedding := self._token_embedding()) is None:
            raise UsageError(f"token embeddings of {type(self.model).__name__} cannot be shifted")
        # An empty caption has its end where one of a word has the word.
        empty, word = _ids(self.prepare_captions(["", "a"]))
        first, ids = int((empty != word).nonzero()[0]), _ids(self._trimmed(prepared))
        has_ended = (ids[:, first:] == empty[first]).cumsum(dim=1) > 0
        own = functional.pad(~has_ended, (first, 0), value=False)  # the captions' own tokens, bool [captions, length]
        position = (own.cumsum(dim=1) - 1).to(self.device)
        row = position.masked_fill(~own.to(self.device) | (position >= len(shift)), len(shift))
        shift = shift.to(self.device)
        added = functional.embedding(row, torch.cat([shift, torch.zeros_like(shift[:1])]))
        hook = embedding.register_forward_hook(lambda module, inputs, output: output + added)
        try:
            with torch.compiler.set_stance("force_eager") if self.is_compiled else nullcontext():  # it ignores hooks
                return self.encode_captions(prepared)
        finally:
            hook.remove()

    def has_unknown_words(self, captions: Sequence[str]) -> list[bool]:
        """Which captions have a word that the tokenizer does not know; none where it spells words out of parts."""
        own = self.tokenizer if hasattr(self.tokenizer, "unk_token_id") else getattr(self.tokenizer, "tokenizer", None)
        unknown = getattr(own, "unk_token_id", None)
        if own is None or unknown in (None, own.bos_token_id, own.eos_token_id, own.pad_token_id):
            return [False] * len(captions)
        # verbose: it would warn of lengths, which do not matter here.
        ids = own(list(captions), padding=False, truncation=False, verbose=False)["input_ids"]
        return [unknown in row for row in ids]


def _ids(prepared: Any) -> torch.Tensor:
    return prepared if isinstance(prepared, torch.Tensor) else prepared["input_ids"]


def on_device(inputs: Prepared, device: torch.device) -> Prepared:
    """Tensors, by name or alone, on a device; to a GPU from pinned memory, so that the program does not wait."""
    if isinstance(inputs, Mapping):
        return {name: on_device(tensor, device) for name, tensor in inputs.items()}
    if not isinstance(inputs, torch.Tensor):  # what a processor says beside its tensors
        return inputs
    if device.type == "cuda" and inputs.device.type == "cpu":
        inputs = inputs.pin_memory()
    return inputs.to(device, non_blocking=True)


def longer_than(tokenizer: PreTrainedTokenizerBase, captions: Sequence[str], read: int | Sequence[int]) -> list[bool]:
    """Which captions have more tokens than a model reads: ``read``, of all captions or of each."""
    # verbose: it would warn of lengths that are only counted here.
    whole = tokenizer(list(captions), padding=False, truncation=False, verbose=False)["input_ids"]
    limits = [read] * len(whole) if isinstance(read, int) else read
    return [len(ids) > limit for ids, limit in zip(whole, limits, strict=True)]


PixelScale = tuple[torch.Tensor, torch.Tensor]
"""What uint8 pixels are multiplied by and what is subtracted then, in each channel, to normalise them."""


def pixel_scale(rescale: float, mean: Sequence[float], std: Sequence[float], device: torch.device) -> PixelScale:
    """Normalises uint8 pixels as ``(pixel * rescale - mean) / std``; of shape [channels, 1, 1]."""
    means, deviations = (torch.tensor(values, dtype=torch.float32)[:, None, None] for values in (mean, std))
    return (rescale / deviations).to(device), (means / deviations).to(device)


def normalised(pixels: torch.Tensor, scale: PixelScale | None) -> torch.Tensor:
    """uint8 [images, channels, height, width] -> float32; other pixels, or without a scale, as they are."""
    return pixels if scale is None or pixels.dtype != torch.uint8 else pixels.float().mul_(scale[0]).sub_(scale[1])


def random_crop(
    enlarged: torch.Tensor | Sequence[torch.Tensor], corners: np.ndarray, size: tuple[int, int], device: torch.device
) -> torch.Tensor:
    """Cuts a window out of every image, pixels [channels, height, width]; returns pixels [images, channels, *size].

    ``corners``: where each window lies between the top left (0) and the bottom right, fractions in [0, 1) [images, 2].
    """
    windows = []
    for image, (down, right) in zip(enlarged, corners, strict=True):
        top, left = int(down * (image.shape[1] - size[0] + 1)), int(right * (image.shape[2] - size[1] + 1))
        windows.append(image[:, top : top + size[0], left : left + size[1]])
    return torch.stack(windows).to(device, non_blocking=True)
