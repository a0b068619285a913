"""CLIP, SigLIP and models with the same interface, through transformers.

Preprocessing, temperature, bias and loss are those of the model's own forward.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from ttmbench.errors import DataError, UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

_HUB_LOGGER = getLogger("huggingface_hub")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def load(
    *,
    pretrained: str,
    revision: str | None = None,
    attn_implementation: str | None = None,
    device: str = "auto",
    dtype: str = "fp32",
    offline: bool = False,
    trust_remote_code: bool = False,
) -> ContrastiveModel:
    """Loads a contrastive dual encoder from the hub or a folder.

    Args:
        pretrained: hub id, or a folder that ``save_pretrained`` wrote. Only safetensors are read.
        revision: commit, tag or branch on the hub.
        attn_implementation: ``eager`` or ``sdpa``; by default transformers chooses.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        dtype: of the towers' arithmetic, ``fp32``, ``bf16`` or ``fp16``; weights and scores are fp32 in any case.
        offline: use what is on this machine only.
        trust_remote_code: run code that the hub repository ships.

    Returns:
        An adapter.

    Raises:
        DataError: the weights are out of reach, damaged, or have tensors missing.
        UsageError: the model is no contrastive dual encoder, or an argument is unknown.
    """
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer
    from transformers.utils import logging

    if dtype not in DTYPES:
        raise UsageError(f"dtype '{dtype}' is unknown; known: {', '.join(DTYPES)}")
    common = {"revision": revision, "local_files_only": offline, "trust_remote_code": trust_remote_code}
    with _quiet(logging):
        try:
            model, report = AutoModel.from_pretrained(
                pretrained,
                dtype=torch.float32,
                use_safetensors=True,
                attn_implementation=attn_implementation,
                output_loading_info=True,
                **common,
            )
            tokenizer = AutoTokenizer.from_pretrained(pretrained, **common)
            image_processor = AutoImageProcessor.from_pretrained(pretrained, **common)
        except Exception as error:
            raise DataError(_why_not_loaded(pretrained, error)) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise DataError(f"the weights of {pretrained} lack {len(missing)} tensors, the first is {missing[0]}")
    if not all(hasattr(model, name) for name in ("get_image_features", "get_text_features", "logit_scale")):
        raise UsageError(f"{pretrained} is a {type(model).__name__}, not a contrastive dual encoder with a temperature")
    return ContrastiveModel(model, tokenizer, image_processor, name=pretrained, device=device, dtype=dtype)


class ContrastiveModel:
    """A dual encoder of transformers as a `DualEncoder` and `Trainable` adapter.

    A model with a ``logit_bias`` (SigLIP) has the pairwise sigmoid loss, one without (CLIP) the symmetric
    cross-entropy.
    """

    def __init__(self, model: Any, tokenizer: Any, image_processor: Any, *, name: str, device: str, dtype: str) -> None:
        self.device = torch.device(_pick_device(device))
        self.model = model.to(self.device).eval()
        self.tokenizer = tokenizer
        self.image_processor = image_processor
        self.name = name
        self.dtype = DTYPES[dtype]
        self.is_sigmoid = getattr(model, "logit_bias", None) is not None
        self._digest = _digest(model.state_dict())

    def fingerprint(self) -> Mapping[str, Any]:
        """Digest of the weights as they were loaded, and what else changes a score."""
        return {
            "pretrained": self.name if not Path(self.name).exists() else Path(self.name).name,
            "architecture": type(self.model).__name__,
            "weights_sha256": self._digest,
            "image_processor": type(self.image_processor).__name__,
            "dtype": str(self.dtype).removeprefix("torch."),
            "n_parameters": sum(parameter.numel() for parameter in self.model.parameters()),
        }

    def prepare_images(self, images: Sequence[Image]) -> dict[str, torch.Tensor]:
        """The model's own preprocessing."""
        return dict(self.image_processor(images=list(images), return_tensors="pt"))

    def prepare_captions(self, captions: Sequence[str]) -> dict[str, torch.Tensor]:
        """Tokens: padded to the model's maximum for SigLIP, which was trained so; else to the longest caption."""
        length = self.model.config.text_config.max_position_embeddings
        return dict(
            self.tokenizer(
                list(captions),
                padding="max_length" if self.is_sigmoid else "longest",
                max_length=length,
                truncation=True,
                return_tensors="pt",
            )
        )

    def encode_images(self, prepared: Any) -> torch.Tensor:
        """Unit vectors [images, d], float32."""
        self.model.eval()
        return self._features(self.model.get_image_features, prepared)

    def encode_captions(self, prepared: Any) -> torch.Tensor:
        """Unit vectors [captions, d], float32."""
        self.model.eval()
        return self._features(self.model.get_text_features, prepared)

    def logits(self, image_features: torch.Tensor, caption_features: torch.Tensor) -> torch.Tensor:
        """Temperature times inner product, plus the bias if the model has one; [images, captions]."""
        logits = image_features @ caption_features.T * self.model.logit_scale.exp()
        return logits + self.model.logit_bias if self.is_sigmoid else logits

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """All parameters."""
        return self.model.parameters()

    def matching_loss(self, images: Any, captions: Any) -> torch.Tensor:
        """Symmetric cross-entropy (CLIP) or pairwise sigmoid (SigLIP) over every image and caption of the batch."""
        self.model.train()
        logits = self.logits(
            self._features(self.model.get_image_features, images),
            self._features(self.model.get_text_features, captions),
        )
        if self.is_sigmoid:
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

    def _features(self, tower: Any, prepared: Any) -> torch.Tensor:
        inputs = {name: tensor.to(self.device) for name, tensor in prepared.items()}
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            output = tower(**inputs)
        features = getattr(output, "pooler_output", output).float()
        return features / features.norm(p=2, dim=-1, keepdim=True)


def _pick_device(device: str) -> str:
    if device != "auto":
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise UsageError(f"device {device} was asked for, but torch sees no CUDA device; use --device cpu")
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def _digest(state: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _why_not_loaded(pretrained: str, error: Exception) -> str:
    kind, text = type(error).__name__, " ".join(str(error).split())[:240]
    if Path(pretrained).is_dir():
        return f"the model in folder {pretrained} cannot be loaded ({kind}: {text})"
    if "gated" in text.lower() or "Gated" in kind:
        return (
            f"{pretrained} is gated: accept its terms at https://huggingface.co/{pretrained} and set HF_TOKEN "
            "to a token of that account"
        )
    if any(sign in f"{kind} {text}".lower() for sign in ("connect", "offline", "cached", "resolve host")):
        text = "it is not in the cache and the hub cannot be reached"
    return (
        f"model {pretrained} is neither a folder here nor to be had from the hub ({text}); "
        "the built-in model 'tiny-clip' needs no hub"
    )


class _quiet:
    """Keeps loading bars, retries and advice of the libraries off the screen: errors are raised anyway."""

    def __init__(self, logging: Any) -> None:
        self._logging = logging

    def __enter__(self) -> None:
        self._verbosity = self._logging.get_verbosity()
        self._hub_level = _HUB_LOGGER.level
        _HUB_LOGGER.setLevel("ERROR")
        self._logging.set_verbosity_error()
        self._logging.disable_progress_bar()

    def __exit__(self, *error: object) -> None:
        _HUB_LOGGER.setLevel(self._hub_level)
        self._logging.set_verbosity(self._verbosity)
        self._logging.enable_progress_bar()
