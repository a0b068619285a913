"""What fingerprints say beside the digest of the weights: configuration, preprocessing, tokens, arithmetic."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
    from transformers.image_processing_utils import BaseImageProcessor

_LEAVES = (str, int, float)
# Where files came from and which version wrote them: the same model has others after a copy.
_VOLATILE = {"_name_or_path", "name_or_path", "transformers_version", "torch_dtype", "dtype", "processor_class"}


def describe_model(
    model: PreTrainedModel,
    device: torch.device,
    *,
    image_processor: BaseImageProcessor | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    processor: ProcessorMixin | None = None,
) -> dict[str, object]:
    """What of a model of transformers changes a score and is in no tensor.

    Args:
        model: with its configuration, in which head counts and activations are.
        device: the kind of device rounds in its own way.
        image_processor: its settings are stated in full.
        tokenizer: by a digest.
        processor: of both; what it sets itself is stated too.

    Returns:
        Entries of a fingerprint.
    """
    declared: dict[str, object] = {
        "config_sha256": digest_of(model.config.to_dict()),
        "attn_implementation": getattr(model.config, "_attn_implementation", None),
        "device": device.type,
        **quantization_of(model),
    }
    if processor is not None:
        image_processor, tokenizer = processor.image_processor, processor.tokenizer
        own = {name: value for name, value in vars(processor).items() if isinstance(value, str | int | float)}
        declared["processor_sha256"] = digest_of({"class": type(processor).__name__, **own})
    if image_processor is not None:
        declared["preprocessing"] = plain(image_processor.to_dict())
    if tokenizer is not None:
        declared["tokenizer_sha256"] = tokenizer_digest(tokenizer)
    return declared


def quantization_of(model: PreTrainedModel) -> dict[str, object]:
    """What a fingerprint says of packed weights; empty for others."""
    settings = getattr(model.config, "quantization_config", None) if getattr(model, "is_quantized", False) else None
    if settings is None:
        return {}
    known = settings if isinstance(settings, dict) else settings.to_dict()
    return {
        "quantization": {
            name: value if value is None or isinstance(value, str | int | float | list | dict) else str(value)
            for name, value in known.items()
        }
    }


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """sha256 of what a tokenizer makes tokens from, whatever it was last asked to pad or cut."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None and not hasattr(tokenizer, "get_vocab"):
        return _tables_digest(tokenizer)
    description = _settings(tokenizer)
    if backend is not None:
        description["backend"] = {
            name: value for name, value in json.loads(backend.to_str()).items() if name not in ("padding", "truncation")
        }
    else:
        description["vocabulary"] = dict(tokenizer.get_vocab())
    return digest_of(description)


@functools.lru_cache(maxsize=4)  # 50,000 words and merges, of a tokenizer that several models may share
def _tables_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """`tokenizer_digest` of open_clip's own: a dictionary and the ranks of its merges."""
    description = _settings(tokenizer)
    description["vocabulary"] = getattr(tokenizer, "encoder", None)
    description = plain(description)  # before there are 50,000 merges in it, which are plain
    description["merges"] = [(*pair, rank) for pair, rank in sorted(getattr(tokenizer, "bpe_ranks", {}).items())]
    return _sha256(description)


def _settings(tokenizer: PreTrainedTokenizerBase) -> dict[str, object]:
    names = ("model_max_length", "padding_side", "truncation_side", "context_length", "special_tokens_map")
    return {"class": type(tokenizer).__name__, **{name: getattr(tokenizer, name, None) for name in names}}


def digest_of(settings: Mapping[str, object]) -> str:
    """sha256 of settings, in whatever order they are and wherever their files came from."""
    return _sha256(plain(settings))


def _sha256(settings: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def plain(value: object) -> Any:
    """Settings as JSON has them, without what only says where they came from."""
    if value is None or isinstance(value, _LEAVES):
        return value
    if isinstance(value, Mapping):  # a vocabulary has leaves alone, for which a call each is most of the time
        return {
            str(name): inner if isinstance(inner, _LEAVES) else plain(inner)
            for name, inner in value.items()
            if name not in _VOLATILE
        }
    if isinstance(value, list | tuple):
        return [inner if isinstance(inner, _LEAVES) else plain(inner) for inner in value]
    return str(value)
