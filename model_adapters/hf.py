"""CLIP, SigLIP and models with the same interface, through transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters._shared.contrastive import (
    ADVICE_ON_GELU,
    GELU,
    PIXELS,
    QUICK,
    CaptionTokens,
    PixelScale,
    Tower,
    declared_name,
    longer_than,
    random_crop,
    trimmed,
)
from ttmbench.model_adapters._shared.options import (
    ContrastiveHalfOptions,
    ContrastiveOptions,
    DualEncoderFiles,
    takes,
)
from ttmbench.model_adapters._shared.placement import weights_digest
from ttmbench.model_adapters._shared.pretrained import (
    PROBES,
    LoadedModel,
    as_text,
    captions_read,
    fetch_weights,
    find,
    load_config,
    load_part,
    load_weights,
    not_text,
    processor_of,
)
from ttmbench.types import ModelFiles

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PretrainedConfig, PreTrainedModel, ProcessorMixin

__all__ = ["TransformersModel", "check_image_size", "load", "locate", "pixel_scale"]
# How captions are cleaned, by open_clip's names: by model type, or by the tokenizer.
CLEANING = {"siglip": "canonicalize", "CLIPTokenizer": "lower"}
UNSCALED = {"do_rescale": False, "do_normalize": False}
_WIDEST = 1024  # OpenAI's largest image tower, ViT-L/14
_TRAINED_WITH_GELU = "laion/"  # the one publisher on the Hub of CLIPs with GELU in OpenAI's shapes, for transformers


@takes(ContrastiveOptions)
def load(asked: ContrastiveOptions) -> TransformersModel:
    """Loads a contrastive dual encoder from the Hub or a folder.

    Raises:
        DataError: the weights are unavailable, damaged, or have tensors missing.
        UsageError: the model is not of this kind, or an argument is wrong.
    """
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    pretrained, quick = find(asked), asked.quick_gelu
    config = load_config(pretrained)
    if config.model_type in ("blip", "blip-2", "flava"):
        raise UsageError(
            f"{asked.pretrained} is a {config.model_type} model, whose scores need its own heads; use --model itc "
            "(contrastive) or --model itm (matching)"
        )
    if quick is not None:
        if config.model_type != "clip":
            raise UsageError(f"quick_gelu is for CLIP, and this is a model of type {config.model_type}; omit it")
        for tower in (config.vision_config, config.text_config):
            if quick or tower.hidden_act == QUICK:
                tower.hidden_act = QUICK if quick else GELU
    model = load_weights(AutoModel, pretrained, config=None if quick is None else config)
    note = note_on_activation(model.config, asked.pretrained)
    has_temperature = hasattr(model, "logit_scale") or hasattr(model, "temperature")
    if not (has_temperature and hasattr(model, "get_image_features") and hasattr(model, "get_text_features")):
        raise UsageError(
            f"{asked.pretrained} is a {type(model).__name__}, not a contrastive dual encoder with a temperature"
        )
    parts_of, files = processor_of(pretrained, asked)
    parts = load_part(AutoTokenizer, parts_of), load_part(AutoImageProcessor, parts_of)
    adapter = TransformersModel(LoadedModel(model, files, *parts), asked)
    adapter._notes = () if note is None or quick is not None else (note,)
    return adapter


def wrap(
    model: PreTrainedModel, processor: ProcessorMixin, *, device: str, dtype: str, compile: bool
) -> TransformersModel:
    """An adapter for a dual encoder that a program has loaded, with its tokenizer and image processor."""
    name = model.name_or_path or type(model).__name__
    how = {"pretrained": name, "device": device, "dtype": dtype, "compile": compile}
    note = note_on_activation(model.config, name)
    loaded = LoadedModel(model, None, processor.tokenizer, processor.image_processor)
    adapter = TransformersModel(loaded, ContrastiveOptions.read(how))
    adapter._notes = () if note is None else (note,)
    return adapter


@takes(DualEncoderFiles)
def locate(asked: DualEncoderFiles) -> list[ModelFiles]:
    """The files that a dual encoder is loaded from, fetched unless ``offline``; errors as for `load`."""
    pretrained = find(asked)
    fetch_weights(pretrained)
    files = processor_of(pretrained, asked)[1]
    return [files, *files.beside]


class TransformersModel(CaptionTokens[Mapping[str, torch.Tensor]]):
    """A dual encoder of transformers as an adapter."""

    def __init__(self, loaded: LoadedModel, asked: ContrastiveOptions | ContrastiveHalfOptions) -> None:
        digest = weights_digest(loaded.model)
        super().__init__(loaded.model, device=asked.device, dtype=asked.dtype, digest=digest)
        self.loaded, self.files, self.name = loaded, loaded.files, asked.pretrained
        self.image_processor = loaded.image_processor
        self.tokenizer = as_text(loaded.tokenizer)
        self._not_text = not_text(self.tokenizer)
        self.is_sigmoid = self._bias() is not None
        kinds = self.model.config.model_type, type(loaded.tokenizer).__name__.removesuffix("Fast")
        self._cleaning = next((CLEANING[kind] for kind in kinds if kind in CLEANING), None)
        self._declared = {
            "pretrained": declared_name(self.name),
            "architecture": type(self.model).__name__,
            "weights_sha256": self.state_sha256,
            "image_processor": type(self.image_processor).__name__,
            "dtype": self.dtype_name,
            "compiled": asked.compile,
            "n_parameters": sum(parameter.numel() for parameter in self.parameters()),
            **loaded.describe(self.device),
            **stated_activation(self.model.config),
        }
        self._set_towers(self._towers(), asked.compile)
        self.is_compiled = asked.compile
        self._scale, self._size = pixel_scale(self.image_processor)
        check_image_size(self, self._size, self.model.config)

    def fingerprint(self) -> Mapping[str, object]:
        """Digest of the weights as they were loaded, and what else changes a score."""
        padding = "max_length" if self.is_sigmoid else "longest"
        ids = self.prepare_captions(PROBES)["input_ids"]
        read = captions_read(ids, self._cleaning, padding, self._max_tokens(), self._not_text)
        return {**self._declared, "captions": read}

    def save(self, folder: Path) -> None:
        """Weights, tokenizer and preprocessing, as ``from_pretrained`` loads them."""
        config = self.model.config
        for name, quick in stated_activation(config).items():
            setattr(config, name, quick)  # for `note_on_activation`, when they are loaded again
        self.loaded.save(folder)
        vars(config).pop(QUICK, None)

    def prepare_images(self, images: Sequence[Image]) -> dict[str, torch.Tensor]:
        """The model's own preprocessing: uint8 pixels still to be normalised, where the preprocessing allows that."""
        options = {} if self._scale is None else UNSCALED
        return dict(self.image_processor(images=list(images), return_tensors="pt", **options))

    def prepare_enlarged(self, images: Sequence[Image], scale: float) -> dict[str, torch.Tensor] | list[torch.Tensor]:
        """Images after the model's own resizing, but ``scale`` times as large, for `crop` to cut from.

        Where it resizes the short side (CLIP), the middle is not cut out: images are a list of uint8 pixels of
        different sizes, each [channels, height, width].
        """
        if self._scale is None:
            raise UsageError(f"{self.name} has no images of one fixed size, so they cannot be augmented by cropping")
        size = {side: length for side, length in dict(self.image_processor.size).items() if length is not None}
        options: dict[str, object] = {
            **UNSCALED,
            "return_tensors": "pt",
            "size": {side: int(length * scale) for side, length in size.items()},
        }
        if getattr(self.image_processor, "do_center_crop", None):
            options["do_center_crop"] = False
        if "shortest_edge" not in size:
            return dict(self.image_processor(images=list(images), **options))
        return [self.image_processor(images=[image], **options)[PIXELS][0] for image in images]

    def crop(self, enlarged: Mapping[str, torch.Tensor], corners: np.ndarray) -> dict[str, torch.Tensor]:
        """Windows of the model's own size, on the device."""
        larger = enlarged[PIXELS] if isinstance(enlarged, Mapping) else enlarged
        return {PIXELS: random_crop(larger, corners, self._size, self.device)}

    def prepare_captions(self, captions: Sequence[str]) -> dict[str, torch.Tensor]:
        """Tokens: padded to the model's maximum for SigLIP, which was trained so; else to the longest caption."""
        return dict(
            self.tokenizer(
                self._cleaned(captions),
                padding="max_length" if self.is_sigmoid else "longest",
                max_length=self._max_tokens(),
                truncation=True,
                return_token_type_ids=False,  # all zero, as towers that know types assume; others may warn of them
                return_tensors="pt",
            )
        )

    def truncated(self, captions: Sequence[str]) -> list[bool]:
        """Which captions have more tokens than the text tower has positions."""
        return longer_than(self.tokenizer, self._cleaned(captions), self._max_tokens())

    def _cleaned(self, captions: Sequence[str]) -> list[str]:
        """As open_clip and the authors have them: SigLIP's in lower case without punctuation, CLIP's with mended text.

        SigLIP's own tokenizer does almost the same, SigLIP 2's of one resolution nothing, and CLIP's leaves HTML
        entities and curly quotes; NaFlex has a model type of its own and a tokenizer that writes in lower case.
        """
        if self._cleaning is None:
            return list(captions)
        from open_clip.tokenizer import get_clean_fn

        return list(map(get_clean_fn(self._cleaning), captions))

    def _token_embedding(self) -> torch.nn.Embedding | None:
        embeddings = getattr(getattr(self.model, "text_model", None), "embeddings", None)
        return getattr(embeddings, "token_embedding", None)

    def _towers(self) -> tuple[Tower, Tower]:
        """Functions from prepared images and prepared captions to features."""
        return self.model.get_image_features, self.model.get_text_features

    def _temperature(self) -> torch.Tensor:
        divisor = getattr(self.model, "temperature", None)  # of ALIGN and TIPSv2
        return super()._temperature() if divisor is None else 1 / divisor

    def _max_tokens(self) -> int:
        length = int(self.model.config.text_config.max_position_embeddings)
        return length if self.is_sigmoid else min(length, self.tokenizer.model_max_length)

    def _trimmed(self, prepared: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        # A causal tower, and one with an attention mask, never looks at padding; SigLIP's does.
        if self.is_sigmoid:
            return prepared
        tokens = trimmed(prepared)
        # CLIP's causal tower needs no mask; on an accelerator transformers would wait to see whether it masks anything.
        behind = self.model.config.model_type == "clip" and self.tokenizer.padding_side == "right"
        if self.device.type == "cpu" or not behind:
            return tokens
        return {name: tensor for name, tensor in tokens.items() if name != "attention_mask"}

    def _image_features(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if self._scale is not None and inputs[PIXELS].dtype == torch.uint8:
            inputs = {**inputs, PIXELS: self._scale.apply(inputs[PIXELS])}
        output = self._image_tower(**inputs)
        return getattr(output, "pooler_output", output)

    def _caption_features(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        output = self._text_tower(**inputs)
        return getattr(output, "pooler_output", output)


def check_image_size(adapter: Any, size: tuple[int, int], config: PretrainedConfig) -> None:
    """DataError where preprocessing makes images of another size than the model's, which the model does not take."""
    from PIL import Image

    vision = getattr(config, "vision_config", None) or getattr(config, "image_config", None)
    side = getattr(vision, "image_size", None) or size
    own = (side, side) if isinstance(side, int) else tuple(side)
    if size in ((0, 0), own):
        return
    try:
        with torch.inference_mode():
            adapter.encode_images(adapter.prepare_images([Image.new("RGB", size[::-1])]))
    except (RuntimeError, ValueError) as error:  # some towers take every size
        raise DataError(
            f"the image processor of {adapter.name} makes images of {size[0]}x{size[1]} pixels and the model takes "
            f"{own[0]}x{own[1]}; use the image processor that belongs to these weights"
        ) from error


def pixel_scale(processor: ProcessorMixin) -> tuple[PixelScale | None, tuple[int, int]]:
    """How to normalise this processor's uint8 pixels, and their height and width.

    None for a processor whose images are not of one size before normalisation (SigLIP 2 NaFlex cuts patches).
    """
    from PIL import Image

    probe = [Image.fromarray(np.arange(48 * 40 * 3, dtype=np.uint32).astype(np.uint8).reshape(48, 40, 3))]
    plain = processor(images=probe, return_tensors="pt")
    try:
        raw = processor(images=probe, return_tensors="pt", **UNSCALED)
    except TypeError:  # EfficientNet's (ALIGN) may normalise once more, which integers cannot be
        return None, (0, 0)
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


def stated_activation(config: PretrainedConfig) -> dict[str, bool | None]:
    """A CLIP's ``quick_gelu`` for its fingerprint, None if its two towers differ; empty for other models."""
    if config.model_type != "clip":
        return {}
    quick = {tower.hidden_act == QUICK for tower in (config.vision_config, config.text_config)}
    return {QUICK: quick.pop() if len(quick) == 1 else None}


def note_on_activation(config: PretrainedConfig, name: str) -> str | None:
    """A note on a CLIP whose configuration says GELU, where the conversion of OpenAI's weights may have lost QuickGELU.

    Args:
        config: of the model; the key ``quick_gelu`` of a model that was saved here is removed.
        name: Hub id or folder.

    Returns:
        One line; None if it has QuickGELU, or if it cannot be a descendant of OpenAI's.
    """
    confirmed = vars(config).pop(QUICK, None) is not None
    if config.model_type != "clip" or confirmed:
        return None
    image, text = config.vision_config.hidden_act, config.text_config.hidden_act
    if image != text:
        return f"config.json of {name} states hidden_act {image} for images and {text} for captions. {ADVICE_ON_GELU}"
    if image != GELU or config.vision_config.hidden_size > _WIDEST or name.startswith(_TRAINED_WITH_GELU):
        return None
    return f"config.json of {name} states hidden_act {GELU}, so it is computed with GELU. {ADVICE_ON_GELU}"
