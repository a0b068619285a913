"""Small copies of the datasets' repositories: real columns, splits and counts, tiny pictures."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from support.hub_repos import Repository, write_repository

COLORS = ("red", "blue", "green", "yellow", "black", "white", "orange", "purple")
THINGS = ("cat", "dog", "mug", "box", "bottle", "star", "plant", "sign", "horse", "cup")


def made_up_commit(repo: str) -> str:
    """A commit for a repository of which none is known."""
    return hashlib.sha1(f"commit of {repo}".encode()).hexdigest()


def picture(seed: int, mode: str = "RGB", side: int = 16) -> bytes:
    """A picture of two colours: PNG, or JPEG where PNG has no such mode."""
    from PIL import Image

    depth = {"RGB": 3, "RGBA": 4, "CMYK": 4, "L": 1}[mode]
    cells = hashlib.sha256(str(seed).encode()).digest()[: 4 * depth]
    image = Image.frombytes(mode, (2, 2), cells).resize((side, side + seed % 3), Image.Resampling.NEAREST)
    content = io.BytesIO()
    image.save(content, "JPEG" if mode == "CMYK" else "PNG")
    return content.getvalue()


def words(index: int) -> tuple[str, str]:
    """Two captions of the same words."""
    first, second = COLORS[index % 8], COLORS[(index // 8 + index + 1) % 8]
    one, other = THINGS[index % 10], THINGS[(index // 10 + index + 3) % 10]
    return f"a {first} {one} and a {second} {other}", f"a {second} {one} and a {first} {other}"


def cell(content: bytes, name: str | None = None) -> dict[str, Any]:
    """An image as a table of the hub holds it."""
    return {"bytes": content, "path": name}


def write_table(folder: Path, split: str, columns: dict[str, Sequence[Any]], features: dict[str, Any], shards: int = 1):
    """A split as ``push_to_hub`` writes it; returns its entry of the card."""
    import datasets

    table = datasets.Dataset.from_dict(dict(columns), features=datasets.Features(features))
    (folder / "data").mkdir(parents=True, exist_ok=True)
    size = 0
    for index in range(shards):
        path = folder / "data" / f"{split}-{index:05d}-of-{shards:05d}.parquet"
        table.shard(shards, index, contiguous=True).to_parquet(path)
        size += path.stat().st_size
    return {"name": split, "num_bytes": int(table.data.nbytes), "num_examples": len(table), "stored": size}


def write_card(folder: Path, splits: list[dict[str, Any]], features: dict[str, Any], **more: Any) -> dict[str, Any]:
    """README.md with the configuration and the counts of the splits, as the hub's own library writes it."""
    import datasets

    listed = datasets.Features(features)._to_yaml_list()
    stored = sum(split.pop("stored") for split in splits)
    info = {"features": listed, "splits": splits, "download_size": stored}
    info["dataset_size"] = sum(split["num_bytes"] for split in splits)
    files = [{"split": split["name"], "path": f"data/{split['name']}-*"} for split in splits]
    card = {**more, "dataset_info": info, "configs": [{"config_name": "default", "data_files": files}]}
    text = yaml.safe_dump(card, sort_keys=False, allow_unicode=True)
    (folder / "README.md").write_text(f"---\n{text}---\n\n# Dataset card\n", encoding="utf-8")
    return card


def repository(root: Path, repo: str, commit: str | None = None, **how: Any) -> tuple[Repository, Path]:
    made = write_repository(root, "datasets", repo, {"main": commit or made_up_commit(repo)}, **how)
    folder = made.folder / made.refs["main"]
    (folder / ".gitattributes").write_text("*.parquet filter=lfs diff=lfs merge=lfs -text\n", encoding="utf-8")
    return made, folder


def colorswap(root: Path) -> None:
    """stanfordnlp/colorswap: gated, a train split of 700 that no test run needs, ids that are no row numbers."""
    import datasets

    _, folder = repository(root, "stanfordnlp/colorswap", gated="manual")
    text, image = datasets.Value("string"), datasets.Image()
    features = {"id": datasets.Value("int32"), "image_1": image, "image_2": image, "caption_1": text}
    features |= {"caption_2": text, "image_source": text, "caption_source": text}
    test = sorted({9, 11, 19, 989, *(3 * index for index in range(1, 334))} - {3, 6, 12, 15, 18, 21, 24})[:300]
    train = [index for index in range(1000) if index not in test]
    splits = []
    for split, ids in (("train", train), ("test", test)):
        modes = ["RGBA" if index % 50 == 0 else "RGB" for index in range(len(ids))]
        columns = {
            "id": ids,
            "image_1": [cell(picture(2 * one, mode)) for one, mode in zip(ids, modes, strict=True)],
            "image_2": [cell(picture(2 * one + 1)) for one in ids],
            "caption_1": [words(one)[0] for one in ids],
            "caption_2": [words(one)[1] for one in ids],
            "image_source": [("midjourney", "stable_diffusion")[one % 2] for one in ids],
            "caption_source": [("human", "gpt4")[one % 3 == 0] for one in ids],
        }
        splits.append(write_table(folder, split, columns, features))
    write_card(folder, splits, features, license="mit", extra_gated_prompt="share your contact information")
