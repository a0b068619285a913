"""Small copies of the datasets' repositories: real columns, splits and counts, tiny images."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from support.hub_repos import Repository, write_repository

COLORS = ("red", "blue", "green", "yellow", "black", "white", "orange", "purple")
THINGS = ("cat", "dog", "mug", "box", "bottle", "star", "plant", "sign", "horse", "cup")


def made_up_commit(repo: str) -> str:
    """A commit for a repository of which none is known."""
    return hashlib.sha1(f"commit of {repo}".encode()).hexdigest()


@cache
def draw_image(seed: int, mode: str = "RGB", side: int = 16) -> bytes:
    """An image of two colours: PNG, or JPEG where PNG has no such mode."""
    from PIL import Image

    depth = {"RGB": 3, "RGBA": 4, "CMYK": 4, "L": 1}[mode]
    cells = hashlib.sha256(str(seed).encode()).digest()[: 4 * depth]
    image = Image.frombytes(mode, (2, 2), cells).resize((side, side + seed % 3), Image.Resampling.NEAREST)
    content = io.BytesIO()
    image.save(content, "JPEG" if mode == "CMYK" else "PNG")
    return content.getvalue()


def words(index: int) -> tuple[str, str]:
    """Two captions of the same words."""
    first, second = COLORS[index % 8], COLORS[(index + 1 + index // 8 % 7) % 8]
    one, other = THINGS[index % 10], THINGS[(index + 1 + index // 10 % 9) % 10]
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
            "image_1": [cell(draw_image(2 * one, mode)) for one, mode in zip(ids, modes, strict=True)],
            "image_2": [cell(draw_image(2 * one + 1)) for one in ids],
            "caption_1": [words(one)[0] for one in ids],
            "caption_2": [words(one)[1] for one in ids],
            "image_source": [("midjourney", "stable_diffusion")[one % 2] for one in ids],
            "caption_source": [("human", "gpt4")[one % 3 == 0] for one in ids],
        }
        splits.append(write_table(folder, split, columns, features))
    write_card(folder, splits, features, license="mit", extra_gated_prompt="share your contact information")


def winoground(root: Path) -> None:
    """facebook/winoground: gated, transparent images among the others, the old archive and list beside the table."""
    import datasets

    commit = "b400e173549071916ad1b3d449293bc8d8b4b763"
    _, folder = repository(root, "facebook/winoground", commit, gated="auto")
    text, image, number = datasets.Value("string"), datasets.Image(), datasets.Value("int32")
    features = {"id": number, "image_0": image, "image_1": image, "caption_0": text, "caption_1": text, "tag": text}
    features |= {"secondary_tag": text, "num_main_preds": number, "collapsed_tag": text}
    ids = range(400)
    columns = {
        "id": ids,
        "image_0": [cell(draw_image(2 * one, "RGBA" if one % 7 == 0 else "RGB"), f"ex_{one}_img_0.png") for one in ids],
        "image_1": [cell(draw_image(2 * one + 1), f"ex_{one}_img_1.png") for one in ids],
        "caption_0": [words(one)[0] for one in ids],
        "caption_1": [words(one)[1] for one in ids],
        "tag": [("Adjective-Noun", "Verb-Intransitive", "Scope, Preposition")[one % 3] for one in ids],
        "secondary_tag": ["Pragmatics, Series" if one % 4 == 0 else "" for one in ids],
        "num_main_preds": [2 if one < 108 else 1 for one in ids],
        "collapsed_tag": ["Relation" if one < 233 else "Object" if one < 374 else "Both" for one in ids],
    }
    splits = [write_table(folder, "test", columns, features)]
    write_card(folder, splits, features, pretty_name="Winoground", task_categories=["image-to-text"])
    for name in (
        "data/images.zip",
        "data/examples.jsonl",
        "license_agreement.txt",
        "statistics/model_scores/clip.jsonl",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"nobody needs this file\n" * 500)


WHATSUP = {
    "Controlled_Images_A": ("on", "under", "to the left of", "to the right of"),
    "Controlled_Images_B": ("in front of", "behind", "to the left of", "to the right of"),
}
SPATIAL = {"COCO_QA_one_obj": 2247, "COCO_QA_two_obj": 440, "VG_QA_one_obj": 1160, "VG_QA_two_obj": 291}


def whatsup(root: Path) -> None:
    """ServiceNow/whatsup_all: nine splits, three of them large and read by no task; grey and CMYK images."""
    import datasets

    _, folder = repository(root, "ServiceNow/whatsup_all")
    features = {"image_options": datasets.Image(), "caption_options": datasets.List(datasets.Value("string"))}
    splits = []
    for split, relations in WHATSUP.items():
        objects = [(f"{THINGS[index % 10]} {index}", "chair") for index in range(103 if split.endswith("A") else 102)]
        if split.endswith("A"):
            objects[7] = ("pillow", "chair")
        captions, images = [], []
        for index, (first, second) in enumerate(objects):
            for at, relation in enumerate(relations):
                order = [relation, *(other for other in relations if other != relation)]
                captions.append([f"A {first} {one} a {second}" for one in order])
                images.append(cell(draw_image(1000 * at + index), f"{index}_{at}.jpeg"))
        columns = {"image_options": images, "caption_options": captions}
        splits.append(write_table(folder, split, columns, features))
    for split, count in SPATIAL.items():
        modes = ["CMYK" if index % 100 == 3 else "L" if index % 50 == 2 else "RGB" for index in range(count)]
        columns = {
            "image_options": [cell(draw_image(index, mode)) for index, mode in enumerate(modes)],
            "caption_options": [
                [f"A photo of a {THINGS[i % 10]} on the {side}" for side in _sides(i)] for i in range(count)
            ],
        }
        splits.append(write_table(folder, split, columns, features))
    for split, count in (("VG_Relation", 23937), ("VG_Attribution", 28748), ("COCO_Order", 25010)):
        content = f"nobody asked for {split}".encode() * 5000
        (folder / "data" / f"{split}-00000-of-00001.parquet").write_bytes(content)
        splits.append({"name": split, "num_bytes": len(content), "num_examples": count, "stored": len(content)})
    write_card(folder, splits, features)


def _sides(index: int) -> tuple[str, str]:
    return ("left", "right") if index % 2 else ("right", "left")


SUGARCREPE = {
    "add_att": (692, None),
    "add_obj": (2062, None),
    "replace_att": (788, None),
    "replace_obj": (1652, None),
    "replace_rel": (1406, None),
    "swap_att": (666, "6a00094a51bd114da1af8b431eebf1811284205e"),
    "swap_obj": (246, "ab00ee1d8013758ca0cbde7149a5514f7579cbab"),
}


def sugarcrepe(root: Path, subset: str) -> None:
    """HuggingFaceM4/SugarCrepe_*: of August 2023, so swap_obj still has the group whose caption is wrong."""
    import datasets

    count, commit = SUGARCREPE[subset]
    _, folder = repository(root, f"HuggingFaceM4/SugarCrepe_{subset}", commit)
    labels = [list(words(index)) for index in range(count)]
    if subset == "swap_obj":
        labels[108] = ["A West 32nd sign under a Korea Way road sign.", "A Korea Way road sign under a West 32nd sign."]
    features = {
        "image": datasets.Image(),
        "tested_labels": datasets.List(datasets.Value("string")),
        "true_label": datasets.ClassLabel(names=sorted({label for pair in labels for label in pair})),
    }
    names = features["true_label"]
    columns = {
        "image": [cell(draw_image(index), f"{index:012d}.jpg") for index in range(count)],
        "tested_labels": labels,
        "true_label": [names.str2int(pair[0]) for pair in labels],
    }
    write_card(folder, [write_table(folder, "test", columns, features)], features)


def imagenet(root: Path) -> None:
    """ILSVRC/imagenet-1k: gated; the split that is read, of which this copy has 1,000 of 50,000, and two others."""
    import datasets

    _, folder = repository(root, "ILSVRC/imagenet-1k", gated="auto")
    names = [f"class {number}" for number in range(1000)]
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=names)}
    splits = []
    for split, count in (("train", 3), ("validation", 1000), ("test", 3)):
        labels = [(7 * index) % 1000 if split != "test" else -1 for index in range(count)]
        modes = ["L" if index % 50 == 2 else "CMYK" if index == 9 else "RGB" for index in range(count)]
        images = [cell(draw_image(index, mode), f"ILSVRC2012_val_{index:08d}.JPEG") for index, mode in enumerate(modes)]
        splits.append(write_table(folder, split, {"image": images, "label": labels}, features))
    write_card(folder, splits, features, license="other", extra_gated_prompt="terms of access")


PATTERNS = [
    *("Orientation", "Presence", "State", "Quantity", "Spatial", "Color"),
    *("Structural Character", "Text", "Camera Perspective"),
]


def mmvp(root: Path) -> None:
    """MMVP/MMVP_VLM: a list of statements and nine folders of thirty images, with blanks in names."""
    import csv

    _, folder = repository(root, "MMVP/MMVP_VLM", "211372d5357398f914d806d07dc305aea1f257d2")
    rows = [
        (number, PATTERNS[(number - 1) // 30], words((number - 1) // 2)[(number - 1) % 2]) for number in range(1, 271)
    ]
    with (folder / "Questions.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("Question ID", "Type", "Statement"), *rows])
    for number, pattern, _ in rows:
        path = folder / "MLLM_VLM Images" / pattern / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw_image(number, "CMYK" if number == 150 else "RGB"))
    (folder / "README.md").write_text("---\nlicense: mit\n---\n\n# MMVP-VLM\n", encoding="utf-8")
