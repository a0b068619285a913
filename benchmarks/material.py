"""What benchmarks run on, made here: random models in the hub's format, and images of rendered scenes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image

from ttmbench.data.sources.rendered import make_groups, render
from ttmbench.types import Group, ImageRef

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerFast
    from transformers.image_processing_utils import BaseImageProcessor

SIDE = 512
FORMATS = ("png", "jpeg")


def make_groups_of_files(folder: Path, count: int, image_format: str = "png") -> list[Group]:
    """2x2 groups of rendered scenes as files of 512 pixels, with a little noise so that they pack like photographs.

    An image's name is its path.
    """
    rng = np.random.default_rng(0)
    groups = []
    for number, group in enumerate(make_groups("color", count, 0)):
        images = []
        for index, scene in enumerate(group.scenes):
            pixels = np.asarray(render(scene).resize((SIDE, SIDE), Image.Resampling.BICUBIC), dtype=np.int16)
            noisy = np.clip(pixels + rng.normal(0, 12, pixels.shape), 0, 255).astype(np.uint8)
            path = folder / f"{number}_{index}.{image_format}"
            Image.fromarray(noisy).save(path, **({"quality": 92} if image_format == "jpeg" else {}))
            images.append(ImageRef(str(path), partial(Image.open, path), path, path.read_bytes))
        groups.append(Group(str(number), tuple(images), group.captions))
    return groups


def make_task(folder: Path, count: int, image_format: str) -> Path:
    """A task file with its rows and images, as `make_groups_of_files` makes them."""
    groups = make_groups_of_files(folder, count, image_format)
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for group in groups:
            row = {"id": group.group_id}
            row |= {f"image_{index}": Path(image.name).name for index, image in enumerate(group.images)}
            row |= {f"caption_{index}": caption for index, caption in enumerate(group.captions)}
            file.write(json.dumps(row) + "\n")
    columns = {name: [f"{name[:-1]}_{index}" for index in (0, 1)] for name in ("images", "captions")}
    spec = {
        "task": "timed",
        "version": 1,
        "source": {"kind": "folder", "path": "rows.jsonl", "images": "."},
        "group": {"shape": [2, 2], "n_groups": count, "id": "id", **columns},
        "metrics": ["group_match"],
    }
    (folder / "timed.yaml").write_text(json.dumps(spec), encoding="utf-8")  # JSON is YAML
    return folder / "timed.yaml"


def make_clip(folder: Path, width: int, layers: int, words: int = 2000, text_width: int | None = None) -> None:
    """A random CLIP of 224 pixels with patches of 32 and 77 tokens, and a vocabulary of so many words."""
    _save(folder, clip_config(width, layers, words, text_width))


def make_siglip(folder: Path, width: int, layers: int, patch: int = 16, side: int = 224) -> None:
    """A random SigLIP of 64 tokens; width 768, 12 layers, 224 pixels and patches of 16 are siglip-b16's."""
    _save(folder, siglip_config(width, layers, patch, side))


def clip_config(width: int, layers: int, words: int = 2000, text_width: int | None = None) -> PretrainedConfig:
    """As `make_clip`; CLIP B/32's are width 768 and text of 512."""
    from transformers import CLIPConfig

    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    text = {**_tower(text_width or width, layers), **ids, "vocab_size": words, "max_position_embeddings": 77}
    return CLIPConfig(
        text_config=text,
        vision_config={**_tower(width, layers), "image_size": 224, "patch_size": 32},
        projection_dim=text_width or width,
    )


def siglip_config(width: int, layers: int, patch: int = 16, side: int = 224) -> PretrainedConfig:
    """As `make_siglip`."""
    from transformers import SiglipConfig

    tower = _tower(width, layers)
    return SiglipConfig(
        text_config={**tower, "vocab_size": 32000, "max_position_embeddings": 64, "projection_size": width},
        vision_config={**tower, "image_size": side, "patch_size": patch},
    )


def image_processor(config: PretrainedConfig) -> BaseImageProcessor:
    """Preprocessing for a model of this configuration."""
    from transformers import CLIPImageProcessor, SiglipImageProcessor

    size = {"height": config.vision_config.image_size, "width": config.vision_config.image_size}
    if config.model_type == "siglip":
        return SiglipImageProcessor(size=size)
    return CLIPImageProcessor(size={"shortest_edge": size["height"]}, crop_size=size)


def _save(folder: Path, config: PretrainedConfig) -> None:
    from transformers import AutoModel

    torch.manual_seed(0)
    for part in (AutoModel.from_config(config), word_tokenizer(config), image_processor(config)):
        part.save_pretrained(folder)


def _tower(width: int, layers: int) -> dict[str, int]:
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    return {**sizes, "num_attention_heads": max(1, width // 64)}


def word_tokenizer(config: PretrainedConfig) -> PreTrainedTokenizerFast:
    """The words of rendered scenes, as long as a model of this configuration reads them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = sorted({word for group in make_groups("color", 400, 0) for text in group.captions for word in text.split()})
    vocabulary = {word: index for index, word in enumerate(["<s>", "</s>", "<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    length = config.text_config.max_position_embeddings
    names = ["input_ids"] if config.model_type == "siglip" else ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "</s>"},
        model_max_length=length,
        model_input_names=names,
    )
