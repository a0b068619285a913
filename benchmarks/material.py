"""What benchmarks run on, made here: random models in the hub's format, and images of rendered scenes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ttmbench.data.rendered.scenes import make_groups, render
from ttmbench.types import Group, ImageRef

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


def make_clip(folder: Path, width: int, layers: int, words: int = 2000) -> None:
    """A random CLIP of 224 pixels with patches of 32 and 77 tokens, and a vocabulary of so many words."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    torch.manual_seed(0)
    tower = _tower(width, layers)
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    config = CLIPConfig(
        text_config={**tower, **ids, "vocab_size": words, "max_position_embeddings": 77},
        vision_config={**tower, "image_size": 224, "patch_size": 32},
        projection_dim=width,
    )
    CLIPModel(config).save_pretrained(folder)
    _tokenizer(length=77).save_pretrained(folder)
    CLIPImageProcessor(size={"shortest_edge": 224}, crop_size={"height": 224, "width": 224}).save_pretrained(folder)


def make_siglip(folder: Path, width: int, layers: int, patch: int = 16, side: int = 224) -> None:
    """A random SigLIP of 64 tokens; width 768, 12 layers, patches of 16 and 224 pixels are siglip-b16's."""
    from transformers import SiglipConfig, SiglipImageProcessor, SiglipModel

    torch.manual_seed(0)
    tower = _tower(width, layers)
    config = SiglipConfig(
        text_config={**tower, "vocab_size": 32000, "max_position_embeddings": 64, "projection_size": width},
        vision_config={**tower, "image_size": side, "patch_size": patch},
    )
    SiglipModel(config).save_pretrained(folder)
    _tokenizer(length=64).save_pretrained(folder)
    SiglipImageProcessor(size={"height": side, "width": side}).save_pretrained(folder)


def _tower(width: int, layers: int) -> dict[str, int]:
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    return {**sizes, "num_attention_heads": max(1, width // 64)}


def _tokenizer(length: int):  # noqa: ANN202 - transformers is imported only when it is needed
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = sorted({word for group in make_groups("color", 400, 0) for text in group.captions for word in text.split()})
    vocabulary = {word: index for index, word in enumerate(["<s>", "</s>", "<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>", pad_token="</s>", model_max_length=length
    )
