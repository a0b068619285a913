"""CLIP, SigLIP and models with the same interface, through transformers.

Preprocessing, temperature, bias and loss are those of the model's own forward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ttmbench.errors import UsageError
from ttmbench.model_adapters._shared.contrastive import (
    PIXELS,
    ContrastiveModel,
    compiled,
    count_parameters,
    declared_name,
    trimmed,
)
from ttmbench.model_adapters._shared.fingerprints import describe_model
from ttmbench.model_adapters._shared.hub import quiet_hub
from ttmbench.model_adapters._shared.pixels import PixelScale, multiply_patches, random_crop
from ttmbench.model_adapters._shared.precision import check_dtype
from ttmbench.model_adapters._shared.pretrained import find, load_config, load_part, load_weights, locate
from ttmbench.model_adapters._shared.quick_gelu import (
    check_quick_gelu,
    note_on_transformers,
    set_activation,
    stated_activation,
    states_activation,
)
from ttmbench.model_adapters._shared.tokens import longer_than
from ttmbench.types import ModelFiles

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["TransformersModel", "load", "locate", "pixel_scale"]
UNSCALED = {"do_rescale": False, "do_normalize": False}


def load(
    *,
    pretrained: str,
    revision: str | None = None,
    weights: str = "auto",
    quick_gelu: bool | None = None,
    attn_implementation: str | None = None,
    device: str = "auto",
    dtype: str = "fp32",
    compile: bool = False,
    offline: bool = False,
    trust_remote_code: bool = False,
) -> TransformersModel:
    """Loads a contrastive dual encoder from the hub or a folder.

    Args:
        pretrained: hub id, or a folder that ``save_pretrained`` wrote.
        revision: commit, tag or branch on the hub.
        weights: ``auto``: safetensors, else a pickle, read as tensors alone; ``safetensors`` refuses pickles.
        quick_gelu: the activation of a CLIP: QuickGELU (OpenAI's CLIP and what was finetuned from it) or GELU. By
            default that of its configuration.
        attn_implementation: ``eager`` or ``sdpa``; by default transformers chooses.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        dtype: of the towers' arithmetic, ``fp32``, ``bf16`` or ``fp16``; weights and scores are fp32 in any case.
        compile: run both towers through ``torch.compile``.
        offline: use what is on this machine only.
        trust_remote_code: run code that the hub repository ships.

    Returns:
        An adapter.

    Raises:
        DataError: the weights are out of reach, damaged, or have tensors missing.
        UsageError: the model is no contrastive dual encoder, or an argument is unknown.
    """
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    check_dtype(dtype)
    quick = check_quick_gelu(quick_gelu)
    found = find(pretrained, revision, weights=weights, offline=offline, trust_remote_code=trust_remote_code)
    config = None if quick is None else set_activation(load_config(found), quick)
    model = load_weights(AutoModel, found, attn_implementation=attn_implementation, config=config)
    note = note_on_transformers(model.config, pretrained)
    if not all(hasattr(model, name) for name in ("get_image_features", "get_text_features", "logit_scale")):
        raise UsageError(f"{pretrained} is a {type(model).__name__}, not a contrastive dual encoder with a temperature")
    return TransformersModel(
        model,
        load_part(AutoTokenizer, found),
        load_part(AutoImageProcessor, found),
        name=pretrained,
        files=found.files,
        device=device,
        dtype=dtype,
        compile_towers=compile,
        notes=() if note is None or quick is not None else (note,),
    )


class TransformersModel(ContrastiveModel):
    """A dual encoder of transformers as an adapter."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        image_processor: Any,
        *,
        name: str,
        device: str,
        dtype: str,
        files: ModelFiles | None = None,
        compile_towers: bool = False,
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(model, device=device, dtype=dtype)
        self.model_notes = tuple(notes)
        self.files = files
        self.tokenizer = tokenizer
        self.image_processor = image_processor
        self.name = name
        self.is_sigmoid = self._bias() is not None
        self.compiled = compile_towers
        self._parts = describe_model(model, self.device, image_processor=image_processor, tokenizer=tokenizer)
        self._parts |= stated_activation(model.config)
        if not compile_towers:
            multiply_patches(model)
        self._tower: Any = compiled if compile_towers else lambda function: function
        wrap: Callable[[Any], Any] = compiled if compile_towers else lambda tower: tower
        self._image_tower, self._text_tower = map(wrap, self._towers())
        self._scale, self._size = pixel_scale(image_processor)

    def fingerprint(self) -> Mapping[str, Any]:
        """Digest of the weights as they were loaded, and what else changes a score."""
        return {
            "pretrained": declared_name(self.name),
            "architecture": type(self.model).__name__,
            "weights_sha256": self.weights_sha256,
            "image_processor": type(self.image_processor).__name__,
            "dtype": str(self.dtype).removeprefix("torch."),
            "compiled": self.compiled,
            "n_parameters": count_parameters(self.parameters()),
            **self._parts,
        }

    def save_pretrained(self, folder: Path) -> None:
        """Weights, tokenizer and preprocessing, as ``from_pretrained`` loads them."""
        with quiet_hub(), states_activation(self.model.config):
            for part in (self.model, self.tokenizer, self.image_processor):
                part.save_pretrained(folder)

    def prepare_images(self, images: Sequence[Image]) -> dict[str, torch.Tensor]:
        """The model's own preprocessing: uint8 pixels still to be normalised, where the preprocessing allows that."""
        return self._process(images) if self._scale is None else self._process(images, **UNSCALED)

    def prepare_enlarged(self, images: Sequence[Image], scale: float) -> dict[str, torch.Tensor] | list[torch.Tensor]:
        """Images resized as the model's preprocessing does, but ``scale`` times as large, for `crop` to cut from.

        Where it resizes the short side and then cuts the middle (CLIP), nothing is cut here: the long side stays, and
        images are a list of uint8 pixels of different sizes, each [channels, height, width].
        """
        if self._scale is None:
            raise UsageError(f"{self.name} has no images of one fixed size, so they cannot be augmented by cropping")
        size = {side: length for side, length in dict(self.image_processor.size).items() if length is not None}
        options: dict[str, Any] = {**UNSCALED, "size": {side: int(length * scale) for side, length in size.items()}}
        if getattr(self.image_processor, "do_center_crop", None):
            options["do_center_crop"] = False
        if "shortest_edge" not in size:
            return self._process(images, **options)
        return [self._process([image], **options)[PIXELS][0] for image in images]

    def crop(self, enlarged: Any, corners: np.ndarray) -> dict[str, torch.Tensor]:
        """Windows of the model's own size, on the device."""
        larger = enlarged[PIXELS] if isinstance(enlarged, Mapping) else enlarged
        return {PIXELS: random_crop(larger, corners, self._size, self.device)}

    def prepare_captions(self, captions: Sequence[str]) -> dict[str, torch.Tensor]:
        """Tokens: padded to the model's maximum for SigLIP, which was trained so; else to the longest caption."""
        return dict(
            self.tokenizer(
                list(captions),
                padding="max_length" if self.is_sigmoid else "longest",
                max_length=self._max_tokens(),
                truncation=True,
                return_tensors="pt",
            )
        )

    def truncated(self, captions: Sequence[str]) -> list[bool]:
        """Which captions have more tokens than the text tower has places for."""
        return longer_than(self.tokenizer, captions, self._max_tokens())

    def _towers(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """What gives features of prepared images, and of prepared captions."""
        return self.model.get_image_features, self.model.get_text_features

    def _process(self, images: Sequence[Image], **options: Any) -> dict[str, torch.Tensor]:
        return dict(self.image_processor(images=list(images), return_tensors="pt", **options))

    def _max_tokens(self) -> int:
        length = int(self.model.config.text_config.max_position_embeddings)
        return length if self.is_sigmoid else min(length, self.tokenizer.model_max_length)

    def _unit_captions(self, prepared: Any) -> torch.Tensor:
        # A causal tower, and one with an attention mask, never looks at padding; SigLIP's does.
        return super()._unit_captions(prepared if self.is_sigmoid else self._unmasked(trimmed(prepared)))

    def _unmasked(self, tokens: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Without a mask that changes nothing, on an accelerator: transformers waits for it to ask whether it masks.

        CLIP's text tower is causal and its features are those of the end of the caption, so what stands behind that is
        never looked at. It was trained without a mask.
        """
        behind = self.model.config.model_type == "clip" and self.tokenizer.padding_side == "right"
        if self.device.type == "cpu" or not behind:
            return tokens
        return {name: tensor for name, tensor in tokens.items() if name != "attention_mask"}

    def _image_features(self, inputs: Any) -> torch.Tensor:
        if self._scale is not None and inputs[PIXELS].dtype == torch.uint8:
            inputs = {**inputs, PIXELS: self._scale.apply(inputs[PIXELS])}
        return _pooled(self._image_tower(**inputs))

    def _caption_features(self, inputs: Any) -> torch.Tensor:
        return _pooled(self._text_tower(**inputs))

    def _temperature(self) -> torch.Tensor:
        temperature: torch.Tensor = self.model.logit_scale.exp()
        return temperature

    def _bias(self) -> torch.Tensor | None:
        return getattr(self.model, "logit_bias", None)


def _pooled(output: Any) -> torch.Tensor:
    features: torch.Tensor = getattr(output, "pooler_output", output)
    return features


def pixel_scale(processor: Any) -> tuple[PixelScale | None, tuple[int, int]]:
    """How to normalise this processor's uint8 pixels, and their height and width.

    None for one whose images are no uint8 squares before it normalises them (SigLIP 2 NaFlex cuts patches).
    """
    from PIL import Image

    probe = [Image.fromarray(np.arange(48 * 40 * 3, dtype=np.uint32).astype(np.uint8).reshape(48, 40, 3))]
    plain = processor(images=probe, return_tensors="pt")
    raw = processor(images=probe, return_tensors="pt", **UNSCALED)
    if set(raw) != {PIXELS} or raw[PIXELS].dtype != torch.uint8 or raw[PIXELS].ndim != 4:
        return None, (0, 0)
    channels = raw[PIXELS].shape[1]
    normalise = bool(processor.do_normalize)
    scale = PixelScale(
        rescale=float(processor.rescale_factor) if processor.do_rescale else 1.0,
        mean=tuple(processor.image_mean) if normalise else (0.0,) * channels,
        std=tuple(processor.image_std) if normalise else (1.0,) * channels,
    )
    if not torch.allclose(scale.apply(raw[PIXELS]), plain[PIXELS], atol=1e-5, rtol=0):
        return None, (0, 0)
    return scale, (raw[PIXELS].shape[2], raw[PIXELS].shape[3])
