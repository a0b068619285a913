"""CLIP, SigLIP and other contrastive models of open_clip."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import open_clip
import regex  # type: ignore[import-untyped,unused-ignore]
import torch
from open_clip.tokenizer import HFTokenizer
from open_clip.transform import (
    CenterCrop,
    Compose,
    Normalize,
    PreprocessCfg,
    Resize,
    ResizeKeepRatio,
    ToTensor,
    image_transform_v2,
)
from PIL import Image as Pillow
from PIL.Image import Image
from safetensors.torch import save_file
from torch.func import functional_call
from torchvision.transforms.functional import pil_to_tensor

from ttmbench._util.file_io import json_digest, tensors_digest
from ttmbench._util.images import resized
from ttmbench._util.third_party import quiet_hub
from ttmbench.errors import UsageError
from ttmbench.model_adapters._shared import open_clip_weights as sources
from ttmbench.model_adapters._shared.contrastive import (
    QUICK,
    ContrastiveModel,
    Tower,
    normalised,
    pixel_scale,
    random_crop,
)
from ttmbench.model_adapters._shared.options import OpenClipFiles, OpenClipOptions, takes
from ttmbench.model_adapters._shared.pretrained import (
    DTYPE_NAMES,
    PROBES,
    as_text,
    captions_read,
    plain,
    tokenizer_digest,
)
from ttmbench.types import ModelFiles

Tokenizer: TypeAlias = HFTokenizer | open_clip.SimpleTokenizer
Transform: TypeAlias = Callable[[Any], torch.Tensor]


@takes(OpenClipOptions)
def load(asked: OpenClipOptions) -> OpenClipModel:
    """Loads a model by open_clip's name, from the Hub, or from a folder; DataError for its weights, or UsageError."""
    with _quiet_root():
        source = sources.find(asked, asked.quick_gelu)
        with quiet_hub(offline=True):
            tokenizer = sources.tokenizer_of(source)
            built = sources.build(source)
    return OpenClipModel(built, tokenizer, asked, source.model, source.config, files=source.files, notes=source.notes)


def wrap(
    model: open_clip.CLIP, preprocess: Transform, tokenizer: Tokenizer, *, device: str, dtype: str, compile: bool
) -> OpenClipModel:
    """An adapter for a model that a program has loaded, with its transform for validation and its tokenizer."""
    name = type(model).__name__
    asked = OpenClipOptions.read({"model": name, "device": device, "dtype": dtype, "compile": compile})
    quick = any(type(module).__name__ == "QuickGELU" for module in model.modules())
    heads = [module.num_heads for module in model.modules() if hasattr(module, "num_heads")]
    masks = tensors_digest({key: buffer for key, buffer in model.named_buffers() if buffer is not None})
    config = {"model_cfg": {QUICK: quick, "modules": repr(model), "heads": heads, "buffers_sha256": masks}}
    usual = getattr(model.visual, "preprocess_cfg", None)
    known = usual and repr(image_transform_v2(PreprocessCfg(**usual), is_train=False)) == repr(preprocess)
    return LoadedOpenClip(model, tokenizer, asked, name, config, transform=None if known else preprocess)


@takes(OpenClipFiles)
def locate(asked: OpenClipFiles) -> list[ModelFiles]:
    """The files that a model is loaded from, fetched unless ``offline``; errors as for `load`."""
    with _quiet_root():
        files = sources.find(asked).files
    return [files, *files.beside]


class OpenClipModel(ContrastiveModel[torch.Tensor]):
    """A model of open_clip as an adapter."""

    def __init__(
        self,
        model: open_clip.CLIP,
        tokenizer: Tokenizer,
        asked: OpenClipOptions,
        name: str,
        config: sources.Config,
        *,
        files: ModelFiles | None = None,
        notes: tuple[str, ...] = (),
        transform: Transform | None = None,
    ) -> None:
        text = _TextTower(model)
        towers = (model.encode_image, text.encode)
        super().__init__(model, towers, device=asked.device, dtype=asked.dtype, compile=asked.compile)
        self.config, self._transform = config, transform
        self.tokenizer, self.special_tokens = without_special_tokens(tokenizer)
        self._notes, self.files = notes, files
        self.preprocessing = PreprocessCfg(**getattr(model.visual, "preprocess_cfg", {}))
        usual = image_transform_v2(self.preprocessing, is_train=False).transforms
        self._scale = None
        if (
            transform is None
            and len(usual) > 1
            and isinstance(usual[-2], ToTensor)
            and isinstance(usual[-1], Normalize)
        ):
            self._scale = pixel_scale(1 / 255, list(usual[-1].mean), list(usual[-1].std), self.device)
        self.reads_prefix, self._tokens_of = text.reads_prefix, text.token_embedding
        model_config, inner = config["model_cfg"].items(), getattr(tokenizer, "tokenizer", tokenizer)
        self._is_quick = bool(config["model_cfg"].get(QUICK))
        # Without the addresses of functions, which differ from process to process.
        folder = sources.FOLDER
        prepared = asdict(self.preprocessing) if transform is None else re.sub(" at 0x[0-9a-f]+", "", repr(transform))
        self._declared = {
            "model": f"{folder}{Path(name).name}" if name.startswith(folder) else name,
            "pretrained": Path(asked.pretrained).name if Path(asked.pretrained or "").is_file() else asked.pretrained,
            "architecture": type(self.model).__name__,
            QUICK: self._is_quick,
            "weights_sha256": self.state_sha256,
            "preprocessing": json.loads(json.dumps(prepared)),
            "tokenizer": type(inner).__name__,
            "dtype": DTYPE_NAMES[asked.dtype],
            "compiled": asked.compile,
            "n_parameters": sum(parameter.numel() for parameter in self.parameters()),
            # A configuration that names no activation means GELU.
            "config_sha256": json_digest(plain({key: value for key, value in model_config if key != QUICK or value})),
            "tokenizer_sha256": tokenizer_digest(inner),
            "context_length": getattr(tokenizer, "context_length", None),
            "device": self.device.type,
        }

    def fingerprint(self) -> Mapping[str, object]:
        """Digest of the weights as they were loaded, and what else changes a score."""
        clean = getattr(getattr(self.tokenizer, "clean_fn", None), "__name__", "").removeprefix("_clean_")
        length = getattr(self.tokenizer, "context_length", None)
        read = captions_read(self.prepare_captions(PROBES), clean or None, "max_length", length, self.special_tokens)
        return {**self._declared, "captions": read}

    def save(self, folder: Path) -> None:
        """Weights, configuration and tokenizer, as open_clip's ``local-dir:`` and ``hf-hub:`` load them."""
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}
        save_file(tensors, folder / sources.WEIGHTS, metadata={"format": "pt"})
        model_config = {**self.config["model_cfg"], QUICK: self._is_quick}
        sources.write_config({"model_cfg": model_config, "preprocess_cfg": asdict(self.preprocessing)}, folder)
        if hasattr(self.tokenizer, "save_pretrained"):  # open_clip's own tokenizer is part of the package
            self.tokenizer.save_pretrained(folder)

    def prepare_images(self, images: Sequence[Image]) -> torch.Tensor:
        """open_clip's transform for validation: uint8 pixels still to be normalised, if that is its end."""
        if self._transform is not None:
            return torch.stack([self._transform(image) for image in images])
        return torch.stack(self._transformed(images, self.preprocessing))

    def prepare_enlarged(self, images: Sequence[Image], scale: float) -> torch.Tensor | list[torch.Tensor]:
        """As `prepare_images`, but ``scale`` times as large, for `crop` to cut from.

        Where the short side is resized (CLIP), the middle is not cut out: images are a list of pixels of different
        sizes, each [channels, height, width].
        """
        if self._transform is not None:
            raise UsageError(
                f"the transform of {type(self.model).__name__} is not open_clip's, so it cannot be enlarged"
            )
        height, width = self._size()
        larger = replace(self.preprocessing, size=(int(height * scale), int(width * scale)))
        if self.preprocessing.resize_mode != "shortest":
            return torch.stack(self._transformed(images, larger))
        return self._transformed(images, larger, uncut=True)

    def crop(self, enlarged: torch.Tensor | list[torch.Tensor], corners: np.ndarray) -> torch.Tensor:
        """Windows of the model's own size, on the device."""
        return random_crop(enlarged, corners, self._size(), self.device)

    def prepare_captions(self, captions: Sequence[str]) -> torch.Tensor:
        """Tokens of open_clip's tokenizer, padded to the model's context length."""
        return self.tokenizer(list(captions))

    def truncated(self, captions: Sequence[str]) -> list[bool]:
        """Which captions have more tokens than the text tower has positions.

        With more room their tokens differ, or more follow; an empty caption shows the padding.
        """
        tokens = self.prepare_captions(captions)
        room = tokens.shape[1]
        longer: torch.Tensor = self.tokenizer([*captions, ""], context_length=2 * room)
        whole, padding = longer[:-1], longer[-1, -1]
        cut = (whole[:, :room] != tokens).any(dim=1) | (whole[:, room:] != padding).any(dim=1)
        return [bool(answer) for answer in cut]

    def _token_embedding(self) -> torch.nn.Embedding | None:
        return self._tokens_of

    def _transformed(
        self, images: Sequence[Image], preprocessing: PreprocessCfg, uncut: bool = False
    ) -> list[torch.Tensor]:
        steps = [_resizing(step) for step in image_transform_v2(preprocessing, is_train=False).transforms]
        if uncut:
            steps = [step for step in steps if not isinstance(step, CenterCrop)]
        if self._scale is None:
            return [Compose(steps)(image) for image in images]
        return [pil_to_tensor(Compose(steps[:-2])(image)).contiguous() for image in images]

    def _size(self) -> tuple[int, int]:
        size = self.preprocessing.size
        height, width = (size, size) if isinstance(size, int) else size
        return int(height), int(width)

    def _trimmed(self, prepared: torch.Tensor) -> torch.Tensor:
        return prepared[:, : self.reads_prefix(prepared)]

    def _tower(self, tower: Tower, inputs: torch.Tensor) -> torch.Tensor:
        return tower(normalised(inputs, self._scale))


class LoadedOpenClip(OpenClipModel):
    """A model that a program has loaded, whose architecture is not known by a configuration: it cannot be saved."""

    savable = False


class _TextTower(torch.nn.Module):
    """A model's ``encode_text``, which also takes the first columns of the tokens where the rest changes nothing.

    A causal tower that returns the feature at one token, the largest (argmax) or the first end of text (eos), needs the
    columns up to that token only. Its own forward expects positions and mask to be as long as the tokens.
    """

    def __init__(self, model: open_clip.CLIP) -> None:
        super().__init__()
        self.model = model
        self._is_plain = isinstance(model, open_clip.CLIP)  # its text tower is the model itself
        tower = self._tower
        self._pooling = getattr(tower, "text_pool_type" if self._is_plain else "pool_type", None)
        self._end: Any = getattr(tower, "text_eos_id" if self._is_plain else "eos_id", None)
        mask = getattr(tower, "attn_mask", None)
        self.is_causal = (
            mask is not None
            and torch.equal(mask, torch.full_like(mask, -torch.inf).triu(1))
            and getattr(tower, "cls_emb", None) is None
            and self._pooling in ("argmax", "eos")
        )

    @property
    def _tower(self) -> open_clip.CLIP:
        return self.model if self._is_plain else self.model.text

    @property
    def token_embedding(self) -> torch.nn.Embedding | None:
        """The module that embeds tokens; None in a text tower of another library."""
        return getattr(self._tower, "token_embedding", None)

    def reads_prefix(self, tokens: torch.Tensor) -> int:
        """How many columns the features depend on; tokens int64 [captions, context length]."""
        if not self.is_causal:
            return tokens.shape[1]
        at = tokens if self._pooling == "argmax" else torch.eq(tokens, self._end).int()
        return int(at.argmax(dim=-1).max()) + 1

    def encode(self, tokens: torch.Tensor) -> torch.Tensor:
        """Features [captions, d]."""
        length, tower = tokens.shape[1], self._tower
        if not self.is_causal or length == tower.attn_mask.shape[0]:
            return self(tokens)
        prefix = "model" if self._is_plain else "model.text"
        shorter = {
            f"{prefix}.positional_embedding": tower.positional_embedding[:length],
            f"{prefix}.attn_mask": tower.attn_mask[:length, :length],
        }
        return functional_call(self, shorter, (tokens,))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """open_clip's own."""
        return self.model.encode_text(tokens, normalize=False)


def without_special_tokens(tokenizer: Tokenizer) -> tuple[Tokenizer, frozenset[str]]:
    """As `as_text`, of open_clip's wrapper and of its own tokenizer, which splits by a pattern and remembers words."""
    made: Any = copy(tokenizer)
    if hasattr(made, "tokenizer"):
        made.tokenizer, special = as_text(made.tokenizer, getattr(made, "clean_fn", str))
        return made, special
    first = "|".join(made.decoder[number] for number in made.all_special_ids)
    made.pat, made.cache = regex.compile(made.pat.pattern.removeprefix(f"{first}|"), made.pat.flags), {}
    return made, frozenset()


def _resizing(step: Any) -> Any:
    """A step of a transform, with `resized` instead of Pillow's own resizing."""
    if not isinstance(step, Resize | ResizeKeepRatio):
        return step

    def resize(image: Image) -> Image:
        size = step(Pillow.new("1", image.size)).size  # one bit, nearest neighbour: only the size is asked for
        return resized(image, size, Pillow.Resampling[step.interpolation.name])

    return resize


@contextmanager
def _quiet_root() -> Iterator[None]:
    """A context without open_clip's messages, which go to the root logger and would give it a handler."""
    root, silent = logging.getLogger(), logging.NullHandler()
    level = root.level
    root.addHandler(silent)
    root.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(silent)
