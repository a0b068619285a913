"""CLIP, SigLIP and models with the same interface, through transformers; of videos also X-CLIP and VideoPrism."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ttmbench._util.images import frames_of
from ttmbench.errors import UsageError
from ttmbench.model_adapters._shared.contrastive import (
    ADVICE_ON_GELU,
    GELU,
    PIXELS,
    QUICK,
    ContrastiveModel,
    PixelScale,
    Tower,
    longer_than,
    normalised,
    pixel_scale,
    random_crop,
)
from ttmbench.model_adapters._shared.options import HfOptions, ItcOptions, takes
from ttmbench.model_adapters._shared.pretrained import (
    PROBES,
    LoadedModel,
    as_text,
    captions_read,
    find,
    load_part,
    load_weights,
    locate,
)

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PretrainedConfig, PreTrainedModel, ProcessorMixin
    from transformers.image_processing_utils import BaseImageProcessor

__all__ = ["TransformersModel", "load", "locate", "wrap"]
# How captions are cleaned, by open_clip's names: by model type, or by the tokenizer.
CLEANING = {"siglip": "canonicalize", "videoprism": "videoprism", "CLIPTokenizer": "lower"}
UNSCALED = {"do_rescale": False, "do_normalize": False}
_WIDEST = 1024  # OpenAI's largest image tower, ViT-L/14
VIDEOPRISM_TEMPERATURE = 0.01
_PUNCTUATION = re.compile(f"[{re.escape(string.punctuation)}]")
_PAIRS = 2**14  # whose attention X-CLIP computes at a time
_TRAINED_WITH_GELU = "laion/"  # the one publisher on the Hub of CLIPs with GELU in OpenAI's shapes, for transformers


@takes(HfOptions)
def load(asked: HfOptions) -> TransformersModel:
    """Loads a contrastive dual encoder from the Hub or a folder; DataError for its weights, or UsageError."""
    import transformers

    pretrained, quick = find(asked), asked.quick_gelu
    config = load_part(transformers.AutoConfig, pretrained)
    if config.model_type in ("blip", "blip-2", "flava"):
        raise UsageError(f"{asked.pretrained} is a {config.model_type} model, whose scores need its own heads")
    if quick is not None:
        if config.model_type != "clip":
            raise UsageError(f"quick_gelu is for CLIP, and this is a model of type {config.model_type}; omit it")
        for tower in (config.vision_config, config.text_config):
            if quick or tower.hidden_act == QUICK:
                tower.hidden_act = QUICK if quick else GELU
    kind = VIDEO_MODELS.get(config.model_type, TransformersModel)
    model = load_weights(transformers.AutoModel, pretrained, config=None if quick is None else config)
    has_temperature = hasattr(model, "logit_scale") or hasattr(model, "temperature")
    has_towers = hasattr(model, "get_image_features") and hasattr(model, "get_text_features")
    if kind is TransformersModel and not (has_temperature and has_towers):
        raise UsageError(f"{asked.pretrained} is a {type(model).__name__}, not a dual encoder with a temperature")
    prepares = pretrained.processor or pretrained
    parts = (load_part(getattr(transformers, part), prepares) for part in ("AutoTokenizer", kind.preprocessor))
    return kind(LoadedModel(model, pretrained.files, *parts), asked)


def wrap(
    model: PreTrainedModel, processor: ProcessorMixin, *, device: str, dtype: str, compile: bool
) -> TransformersModel:
    """An adapter for a dual encoder that a program has loaded, with its tokenizer and image processor."""
    name = model.name_or_path or type(model).__name__
    how = {"pretrained": name, "device": device, "dtype": dtype, "compile": compile}
    images = getattr(processor, "image_processor", None) or processor.video_processor
    loaded = LoadedModel(model, None, processor.tokenizer, images)
    return VIDEO_MODELS.get(model.config.model_type, TransformersModel)(loaded, HfOptions.read(how))


class TransformersModel(ContrastiveModel[Mapping[str, torch.Tensor]]):
    """A dual encoder of transformers as an adapter."""

    preprocessor = "AutoImageProcessor"

    def __init__(self, loaded: LoadedModel, asked: HfOptions | ItcOptions) -> None:
        model, device = loaded.model, asked.device
        super().__init__(model, self._towers(model), device=device, dtype=asked.dtype, compile=asked.compile)
        self.loaded, self.files, self.name = loaded, loaded.files, asked.pretrained
        self.image_processor = loaded.image_processor
        self.tokenizer, self.special_tokens = as_text(loaded.tokenizer)
        self.is_sigmoid = self._scale_and_bias()[1] is not None
        self.max_tokens = self._longest(asked)
        self._padding = "max_length" if self.is_sigmoid else "longest"  # SigLIP was trained so
        kinds = self.model.config.model_type, type(loaded.tokenizer).__name__.removesuffix("Fast")
        self._cleaning = next((CLEANING[kind] for kind in kinds if kind in CLEANING), None)
        stated, notes = activation(model.config, asked.pretrained)
        self._notes = notes if getattr(asked, QUICK, None) is None else []
        self._declared = {
            **loaded.describe(self.name, self.state_sha256, self.device, asked.dtype),
            "image_processor": type(self.image_processor).__name__,
            "compiled": asked.compile,
            **stated,
        }
        self._scale, self._size = scale_and_size(self.image_processor, self.device)

    def _longest(self, asked: HfOptions | ItcOptions) -> int:
        """The longest caption in tokens."""
        length = int(self.model.config.text_config.max_position_embeddings)
        return length if self.is_sigmoid else min(length, self.tokenizer.model_max_length)

    def fingerprint(self) -> Mapping[str, object]:
        """Digest of the weights as they were loaded, and what else changes a score."""
        ids = self.prepare_captions(PROBES)["input_ids"]
        read = captions_read(ids, self._cleaning, self._padding, self.max_tokens, self.special_tokens)
        return {**self._declared, "captions": read}

    def save(self, folder: Path) -> None:
        """Weights, tokenizer and preprocessing, as ``from_pretrained`` loads them."""
        self.loaded.save(folder)

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
        """Tokens: padded to the model's maximum for SigLIP, else to the longest caption."""
        how = {"padding": self._padding, "max_length": self.max_tokens, "truncation": True, "return_tensors": "pt"}
        # Token types are all zero, as towers that know them assume; others may warn of them.
        return dict(self.tokenizer(self._cleaned(captions), **how, return_token_type_ids=False))

    def truncated(self, captions: Sequence[str]) -> list[bool]:
        """Which captions have more tokens than the text tower has positions."""
        return longer_than(self.tokenizer, self._cleaned(captions), self.max_tokens)

    def _cleaned(self, captions: Sequence[str]) -> list[str]:
        """As open_clip and the authors clean them: SigLIP's lower case without punctuation, CLIP's with fixed text."""
        if self._cleaning is None:
            return list(captions)
        from open_clip.tokenizer import get_clean_fn

        return list(map(get_clean_fn(self._cleaning), captions))

    def _token_embedding(self) -> torch.nn.Embedding | None:
        embeddings = getattr(getattr(self.model, "text_model", None), "embeddings", None)
        return getattr(embeddings, "token_embedding", None)

    def _towers(self, model: Any) -> tuple[Tower, Tower]:
        """Functions from prepared images and prepared captions to features."""
        return model.get_image_features, model.get_text_features

    def _trimmed(self, prepared: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Tokens without columns of padding: a causal tower, or one with a mask, never looks at it; SigLIP's does."""
        mask = None if self.is_sigmoid else prepared.get("attention_mask")
        length = 0 if mask is None else int(mask.sum(dim=1).max())
        if mask is None or mask[:, length:].any():  # padded on the left: the columns cannot be dropped
            return prepared
        return {name: tensor[:, :length] if tensor.shape == mask.shape else tensor for name, tensor in prepared.items()}

    def _tower(self, tower: Tower, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        output = tower(**{name: normalised(value, self._scale) for name, value in inputs.items()})
        return getattr(output, "pooler_output", output)


class _FrameProcessor:
    """A library's processor of videos, for frames one by one: pixels [frames, channels, height, width]."""

    def __init__(self, own: Any, is_for_videos: bool) -> None:
        self.own, self._is_for_videos = own, is_for_videos

    def __call__(self, images: Sequence[Image], **options: object) -> dict[str, torch.Tensor]:
        videos = [[image] for image in images]
        given = {"videos": videos, "do_sample_frames": False} if self._is_for_videos else {"images": videos}
        (pixels,) = self.own(**given, **options).values()
        return {PIXELS: pixels.reshape(len(images), *pixels.shape[-3:])}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


class VideoModel(TransformersModel):
    """A dual encoder of videos as an adapter; subclasses know one architecture.

    A prepared video is one row, [frames, ...]. An image is shown as equal frames, which are prepared and stored once.
    """

    def __init__(self, loaded: LoadedModel, asked: HfOptions | ItcOptions) -> None:
        self.shows_frames = int(loaded.model.config.vision_config.num_frames)
        loaded = replace(loaded, image_processor=_FrameProcessor(loaded.image_processor, "Video" in self.preprocessor))
        super().__init__(loaded, asked)
        self._declared |= {"image_processor": type(self.image_processor.own).__name__, "frames": self.shows_frames}
        self._has_task = False

    def notes(self) -> list[str]:
        """What was noticed when it was loaded, and what becomes of a task's images; no task has begun at first."""
        shows_images, self._has_task = self._has_task and self.frames == 1, True
        count = self.shows_frames
        still = f"{self.name} takes videos of {count} frames; an image is shown as {count} equal ones"
        return [*super().notes(), *([still] if shows_images else [])]

    def prepare_images(self, images: Sequence[Image]) -> dict[str, torch.Tensor]:
        """The library's preprocessing of every frame: pixels [videos, frames, ...], of images [images, 1, ...]."""
        return {PIXELS: self._rows(images, super().prepare_images(self._frames(images))[PIXELS])}

    def prepare_enlarged(self, images: Sequence[Image], scale: float) -> Any:
        """For each video a list of enlarged frames, as `TransformersModel.prepare_enlarged` has images."""
        enlarged = super().prepare_enlarged(self._frames(images), scale)
        frames = list(enlarged[PIXELS] if isinstance(enlarged, Mapping) else enlarged)
        each = len(frames) // len(images)
        return [frames[start : start + each] for start in range(0, len(frames), each)]

    def crop(self, enlarged: Any, corners: np.ndarray) -> dict[str, torch.Tensor]:
        """The same window of every frame of a video."""
        frames = [frame for video in enlarged for frame in video]
        cropped = super().crop(frames, corners.repeat(len(frames) // len(enlarged), axis=0))  # type: ignore[arg-type]
        return {PIXELS: self._rows(enlarged, cropped[PIXELS])}

    def _frames(self, images: Sequence[Image]) -> list[Image]:
        return [frame for image in images for frame in frames_of(image)]

    def _rows(self, videos: Sequence[object], frames: torch.Tensor) -> torch.Tensor:
        return frames.reshape(len(videos), -1, *frames.shape[1:])

    def _shown(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels [videos, frames, ...]; images are repeated."""
        return pixels.expand(-1, self.shows_frames, -1, -1, -1)


class XClip(VideoModel):
    """X-CLIP (arXiv:2208.02816): captions are changed by the video that they are compared with.

    The first vector of a video is its embedding; the others are its patches, averaged over frames, by which the
    prompt generator changes a caption's embedding before both are normalised. A caption has one vector, of its own
    norm: [captions, 1, d].
    """

    vectors = "many"
    towers = (("vision", "visual", "mit."), ("text",))

    def logits(self, image_features: torch.Tensor, caption_features: torch.Tensor) -> torch.Tensor:
        """Temperature times cosine of each video with captions as the prompt generator changes them for it."""
        videos = torch.split(image_features, max(1, _PAIRS // max(1, len(caption_features))))
        return torch.cat([self._logits(some, caption_features) for some in videos])

    def _logits(self, videos: torch.Tensor, captions: torch.Tensor) -> torch.Tensor:
        texts = captions[:, 0].expand(len(videos), -1, -1)
        texts = texts + self.model.prompts_generator(texts, videos[:, 1:])
        units = (torch.nn.functional.normalize(one, dim=-1) for one in (videos[:, 0], texts))
        return torch.einsum("vd,vcd->vc", *units) * self._scale_and_bias()[0]

    def _features(self, tower: Tower, prepared: Any, training: bool = False, of_any_norm: bool = False) -> torch.Tensor:
        return super()._features(tower, prepared, training, of_any_norm=True)

    def _towers(self, model: Any) -> tuple[Tower, Tower]:
        def video(pixel_values: torch.Tensor) -> torch.Tensor:
            frames = self._shown(pixel_values)
            states = model.vision_model(pixel_values=frames.flatten(0, 1))
            each = model.visual_projection(states.pooler_output).unflatten(0, frames.shape[:2])
            patches = model.prompts_visual_layernorm(states.last_hidden_state[:, 1:]) @ model.prompts_visual_projection
            patches = patches.unflatten(0, frames.shape[:2]).mean(dim=1)
            return torch.cat([model.mit(each, return_dict=True).pooler_output[:, None], patches], dim=1)

        return video, lambda **tokens: model.get_text_features(**tokens).pooler_output[:, None]


class VideoPrism(VideoModel):
    """A video-text encoder of VideoPrism (arXiv:2402.13217), which stores no temperature; its loss is CLIP's.

    Captions and temperature are those of the authors' code and demonstration (github.com/google-deepmind/videoprism).
    What transformers calls ``logits_per_video`` is a softmax over the videos of a batch.
    """

    preprocessor = "AutoVideoProcessor"
    towers = (("video",), ("text",))

    def fingerprint(self) -> Mapping[str, object]:
        """As for other dual encoders, and the temperature."""
        return {**super().fingerprint(), "temperature": VIDEOPRISM_TEMPERATURE}

    def _cleaned(self, captions: Sequence[str]) -> list[str]:
        words = (_PUNCTUATION.sub(" ", caption).lower().split() for caption in captions)
        return [f"{' '.join(one)}." for one in words]

    def _scale_and_bias(self) -> tuple[torch.Tensor, None]:
        return torch.full((), 1 / VIDEOPRISM_TEMPERATURE, device=self.device), None

    def _towers(self, model: Any) -> tuple[Tower, Tower]:
        def video(pixel_values: torch.Tensor) -> Any:
            return model.get_video_features(pixel_values_videos=self._shown(pixel_values)).pooler_output.flatten(1)

        return video, model.get_text_features


def scale_and_size(processor: BaseImageProcessor, device: torch.device) -> tuple[PixelScale | None, tuple[int, int]]:
    """How to normalise this processor's uint8 pixels, and their height and width.

    None for a processor whose images are not of one size before normalisation (SigLIP 2 NaFlex cuts patches).
    """
    from PIL import Image

    probe = [Image.fromarray(np.arange(48 * 40 * 3, dtype=np.uint32).astype(np.uint8).reshape(48, 40, 3))]
    plain = processor(images=probe, return_tensors="pt")
    try:
        raw = processor(images=probe, return_tensors="pt", **UNSCALED)
    except TypeError:  # EfficientNet's (ALIGN) may normalise once more, which integers cannot be
        raw = plain
    if set(raw) - {"pixel_mask"} == {PIXELS} and raw[PIXELS].dtype == torch.uint8 and raw[PIXELS].ndim == 4:
        channels, *size = raw[PIXELS].shape[1:]
        normalises, rescale = processor.do_normalize, processor.rescale_factor if processor.do_rescale else 1.0
        mean, std = (processor.image_mean, processor.image_std) if normalises else ([0.0] * channels, [1.0] * channels)
        scale = pixel_scale(rescale, mean, std, device)
        if torch.allclose(normalised(raw[PIXELS].to(device), scale).cpu(), plain[PIXELS], atol=1e-5, rtol=0):
            return scale, (size[0], size[1])
    return None, (0, 0)


def activation(config: PretrainedConfig, name: str) -> tuple[dict[str, bool | None], list[str]]:
    """A CLIP's ``quick_gelu`` for its fingerprint, and a note where the conversion of OpenAI's may have lost it.

    The entry is None if the two towers differ; of what cannot descend from OpenAI's there is no note.
    """
    if config.model_type != "clip":
        return {}, []
    image, text = config.vision_config.hidden_act, config.text_config.hidden_act
    stated = {QUICK: image == QUICK if (image == QUICK) == (text == QUICK) else None}
    is_small = config.vision_config.hidden_size <= _WIDEST and not name.startswith(_TRAINED_WITH_GELU)
    if image == text and not (image == GELU and is_small):
        return stated, []
    return stated, [f"config.json of {name} states hidden_act {image} for images, {text} for text. {ADVICE_ON_GELU}"]


VIDEO_MODELS: dict[str, type[VideoModel]] = {"xclip": XClip, "videoprism": VideoPrism}
