"""Small copies of the datasets' repositories: real columns, splits and counts, tiny images."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from support.hub_repos import made_up_commit, write_repository

COLORS = ("red", "blue", "green", "yellow", "black", "white", "orange", "purple")
THINGS = ("cat", "dog", "mug", "box", "bottle", "star", "plant", "sign", "horse", "cup")
Columns = Mapping[str, Sequence[object]]


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


def cell(seed: int, mode: str = "RGB", name: str | None = None) -> dict[str, object]:
    """An image as a table of the Hub holds it."""
    return {"bytes": draw_image(seed, mode), "path": name}


def new_repository(root: Path, repo: str, commit: str | None = None, gated: str | bool = False) -> Path:
    """Makes a repository; returns the folder of its only commit."""
    made = write_repository(root, "datasets", repo, {"main": commit or made_up_commit(repo)}, gated=gated)
    return made.folder / made.refs["main"]


def write_dataset(
    root: Path,
    repo: str,
    splits: Mapping[str, Columns],
    *,
    commit: str | None = None,
    gated: str | bool = False,
    classes: Mapping[str, Sequence[str]] | None = None,
    shards: int = 1,
    unread: Sequence[str] = (),
) -> Path:
    """Writes a repository as ``push_to_hub`` does, without its card; returns the folder of the commit.

    ``classes`` are names of class indices by column; the files of ``unread`` splits hold no table.
    """
    import datasets

    folder = new_repository(root, repo, commit, gated)
    (folder / "data").mkdir()
    for split, columns in splits.items():
        table = datasets.Dataset.from_dict(dict(columns))
        for name, values in columns.items():
            if isinstance(values[0], dict) and "bytes" in values[0]:
                table = table.cast_column(name, datasets.Image())
        for name, labels in (classes or {}).items():
            table = table.cast_column(name, datasets.ClassLabel(names=list(labels)))
        for shard in range(shards):
            path = folder / "data" / f"{split}-{shard:05d}-of-{shards:05d}.parquet"
            table.shard(shards, shard, contiguous=True).to_parquet(path)
    for split in unread:
        content = f"nobody asked for {split}".encode() * 5000
        (folder / "data" / f"{split}-00000-of-00001.parquet").write_bytes(content)
    return folder


def colorswap(root: Path) -> None:
    """stanfordnlp/colorswap: gated, a train split of 700 that no test run needs, ids that are not row numbers."""
    test = sorted({9, 11, 19, 989, *(3 * index for index in range(1, 334))} - {3, 6, 12, 15, 18, 21, 24})[:300]
    rows = {"train": [index for index in range(1000) if index not in test], "test": test}
    splits = {
        split: {
            "id": ids,
            "image_1": [cell(2 * n, "RGBA" if row % 50 == 0 else "RGB") for row, n in enumerate(ids)],
            "image_2": [cell(2 * n + 1) for n in ids],
            "caption_1": [words(n)[0] for n in ids],
            "caption_2": [words(n)[1] for n in ids],
            "image_source": [("midjourney", "stable_diffusion")[n % 2] for n in ids],
            "caption_source": [("human", "gpt4")[n % 3 == 0] for n in ids],
        }
        for split, ids in rows.items()
    }
    write_dataset(root, "stanfordnlp/colorswap", splits, gated="manual")


def winoground(root: Path) -> None:
    """facebook/winoground: gated, transparent images among the others, the old archive and list beside the table."""
    ids = range(400)
    columns = {
        "id": list(ids),
        "image_0": [cell(2 * n, "RGBA" if n % 7 == 0 else "RGB", f"ex_{n}_img_0.png") for n in ids],
        "image_1": [cell(2 * n + 1, name=f"ex_{n}_img_1.png") for n in ids],
        "caption_0": [words(n)[0] for n in ids],
        "caption_1": [words(n)[1] for n in ids],
        "tag": [("Adjective-Noun", "Verb-Intransitive", "Scope, Preposition")[n % 3] for n in ids],
        "secondary_tag": ["Pragmatics, Series" if n % 4 == 0 else "" for n in ids],
        "num_main_preds": [2 if n < 108 else 1 for n in ids],
        "collapsed_tag": ["Relation" if n < 233 else "Object" if n < 374 else "Both" for n in ids],
    }
    commit = "b400e173549071916ad1b3d449293bc8d8b4b763"
    folder = write_dataset(root, "facebook/winoground", {"test": columns}, commit=commit, gated="auto")
    for name in ("data/images.zip", "data/examples.jsonl", "statistics.jsonl"):
        (folder / name).write_bytes(b"nobody needs this file\n" * 500)


WHATSUP = {
    "Controlled_Images_A": ("on", "under", "to the left of", "to the right of"),
    "Controlled_Images_B": ("in front of", "behind", "to the left of", "to the right of"),
}
SPATIAL = {"COCO_QA_one_obj": 2247, "COCO_QA_two_obj": 440, "VG_QA_one_obj": 1160, "VG_QA_two_obj": 291}
SIDES = (("right", "left"), ("left", "right"))


def whatsup(root: Path) -> None:
    """ServiceNow/whatsup_all: nine splits, three of them large and read by no task; grey and CMYK images."""
    splits = {}
    for split, relations in WHATSUP.items():
        objects = [(f"{THINGS[index % 10]} {index}", "chair") for index in range(103 if split.endswith("A") else 102)]
        if split.endswith("A"):
            objects[7] = ("pillow", "chair")
        captions, images = [], []
        for index, (first, second) in enumerate(objects):
            for at, relation in enumerate(relations):
                order = [relation, *(other for other in relations if other != relation)]
                captions.append([f"A {first} {one} a {second}" for one in order])
                images.append(cell(1000 * at + index, name=f"{index}_{at}.jpeg"))
        splits[split] = {"image_options": images, "caption_options": captions}
    for split, count in SPATIAL.items():
        modes = ["CMYK" if index % 100 == 3 else "L" if index % 50 == 2 else "RGB" for index in range(count)]
        splits[split] = {
            "image_options": [cell(index, mode) for index, mode in enumerate(modes)],
            "caption_options": [
                [f"A photo of a {THINGS[index % 10]} on the {side}" for side in SIDES[index % 2]]
                for index in range(count)
            ],
        }
    write_dataset(root, "ServiceNow/whatsup_all", splits, unread=("VG_Relation", "VG_Attribution", "COCO_Order"))


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
    count, commit = SUGARCREPE[subset]
    captions = [list(words(index)) for index in range(count)]
    if subset == "swap_obj":
        captions[108] = [
            "A West 32nd sign under a Korea Way road sign.",
            "A Korea Way road sign under a West 32nd sign.",
        ]
    names = sorted({caption for pair in captions for caption in pair})
    index_of = {name: index for index, name in enumerate(names)}
    columns = {
        "image": [cell(index, name=f"{index:012d}.jpg") for index in range(count)],
        "tested_labels": captions,
        "true_label": [index_of[pair[0]] for pair in captions],
    }
    classes = {"true_label": names}
    write_dataset(root, f"HuggingFaceM4/SugarCrepe_{subset}", {"test": columns}, commit=commit, classes=classes)


def imagenet(root: Path) -> None:
    """ILSVRC/imagenet-1k: gated; the split that is read, of which this copy has 1,000 of 50,000, and two others."""
    splits = {}
    for split, count in (("train", 3), ("validation", 1000), ("test", 3)):
        modes = ["L" if index % 50 == 2 else "CMYK" if index == 9 else "RGB" for index in range(count)]
        splits[split] = {
            "image": [cell(index, mode, f"ILSVRC2012_val_{index:08d}.JPEG") for index, mode in enumerate(modes)],
            "label": [(7 * index) % 1000 if split != "test" else -1 for index in range(count)],
        }
    classes = {"label": [f"class {number}" for number in range(1000)]}
    write_dataset(root, "ILSVRC/imagenet-1k", splits, gated="auto", classes=classes)


PATTERNS = [
    *("Orientation", "Presence", "State", "Quantity", "Spatial", "Color"),
    *("Structural Character", "Text", "Camera Perspective"),
]


def mmvp(root: Path) -> None:
    """MMVP/MMVP_VLM: a list of statements and nine folders of thirty images, with blanks in names."""
    folder = new_repository(root, "MMVP/MMVP_VLM", "211372d5357398f914d806d07dc305aea1f257d2")
    rows = [(n, PATTERNS[(n - 1) // 30], words((n - 1) // 2)[(n - 1) % 2]) for n in range(1, 271)]
    with (folder / "Questions.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("Question ID", "Type", "Statement"), *rows])
    for number, pattern, _ in rows:
        path = folder / "MLLM_VLM Images" / pattern / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw_image(number, "CMYK" if number == 150 else "RGB"))


BIVLC = {  # (type, subtype) -> groups
    **{("replace", "object"): 1200, ("replace", "relation"): 462, ("replace", "attribute"): 437},
    **{("swap", "attribute"): 278, ("swap", "object"): 81, ("add", "object"): 399, ("add", "attribute"): 76},
}


def bivlc(root: Path) -> None:
    """imirandam/BiVLC: no ids; a photograph and a generated image in every group, some photographs grey."""
    kinds = [kind for kind, count in BIVLC.items() for _ in range(count)]
    columns = {
        "image": [cell(2 * n, "L" if n % 40 == 7 else "RGB", f"{n:012d}.jpg") for n in range(len(kinds))],
        "caption": [words(n)[0] for n in range(len(kinds))],
        "negative_caption": [words(n)[1] for n in range(len(kinds))],
        "negative_image": [cell(2 * n + 1) for n in range(len(kinds))],
        "type": [kind for kind, _ in kinds],
        "subtype": [subtype for _, subtype in kinds],
    }
    write_dataset(root, "imirandam/BiVLC", {"test": columns})


VISMIN = {"relation": 622, "counting": 589, "object": 579, "attribute": 294}


def vismin(root: Path) -> None:
    """mair-lab/vismin-bench: what save_to_disk writes, with questions that no task of captions reads."""
    import datasets

    folder = new_repository(root, "mair-lab/vismin-bench", "2f379d5b9a3af7f10d3266f6389b7b351e54c493")
    kinds = [kind for kind, count in VISMIN.items() for _ in range(count)]
    columns = {
        "image_0": [cell(2 * n) for n in range(len(kinds))],
        "text_0": [words(n)[0] for n in range(len(kinds))],
        "image_1": [cell(2 * n + 1, "RGBA" if n % 50 == 3 else "RGB") for n in range(len(kinds))],
        "text_1": [words(n)[1] for n in range(len(kinds))],
        "id": [f"{kind}-{n:04x}" for n, kind in enumerate(kinds)],
        "category": kinds,
        "question": ["Does <image_0> match?"] * len(kinds),
    }
    table = datasets.Dataset.from_dict(columns)
    for name in ("image_0", "image_1"):
        table = table.cast_column(name, datasets.Image())
    datasets.DatasetDict({"test": table}).save_to_disk(str(folder / "data"), num_shards={"test": 2})


FREQUENT = ("to the left of", "to the right of")  # 7741 rows each; other relations share the rest


def aro_relation(root: Path) -> None:
    """mteb/ARO-Visual-Relation: whole images, of which many rows share one, and boxes."""
    from ttmbench.data.task_file import find_task
    from ttmbench.plugins.registry import build_registry

    listed = find_task(build_registry(), "aro_vg_relation").spec.means["macro_48"].only["relation_name"]
    others = [*(name for name in listed if name not in FREQUENT), "near", "with", "by", "next to"]
    names = [*(FREQUENT[0],) * 7741, *(FREQUENT[1],) * 7741]
    names += [others[n % len(others)] for n in range(23937 - len(names))]
    _aro_table(root, "mteb/ARO-Visual-Relation", "53c1115ab5871ab33b09d5bb8856236d46bdaf2d", {"relation_name": names})


def aro_attribution(root: Path) -> None:
    """mteb/ARO-Visual-Attribution: 117 pairs of attributes with at least 25 rows, and many with fewer."""
    count, frequent = 28748, 117 * 150
    pairs = [[f"big{n % 117}", "small"] for n in range(frequent)]
    pairs += [[f"rare{n // 20}", "small"] for n in range(count - frequent)]
    columns = {"attributes": pairs, "obj1": ["cat"] * count, "obj2": ["dog"] * count}
    _aro_table(root, "mteb/ARO-Visual-Attribution", "25fe9b460426ff67cdb0608a737c94f8f49a901e", columns)


def _aro_table(root: Path, repo: str, commit: str, columns: Columns) -> None:
    count = len(next(iter(columns.values())))
    table = {
        "image": [cell(n % 60, "L" if n % 60 == 5 else "RGB") for n in range(count)],
        "true_caption": [f"the {words(n)[0]} of {n}" for n in range(count)],
        "false_caption": [f"the {words(n)[1]} of {n}" for n in range(count)],
        **columns,
        "bbox": [dict(zip("xywh", (float(n % 5), n % 3, 6 + n % 4, 5 + n % 6), strict=True)) for n in range(count)],
    }
    write_dataset(root, repo, {"test": table}, commit=commit, shards=2)


def aro_order(root: Path, repo: str, commit: str, count: int) -> None:
    """mteb/ARO-COCO-order and mteb/ARO-Flickr-Order: some shuffles are equal to the caption."""
    correct = [f"{words(n)[0]} {n}" for n in range(count)]
    columns: dict[str, Sequence[object]] = {"images": [cell(n % 60) for n in range(count)], "correct_caption": correct}
    for at in range(4):
        columns[f"hard_text_{at + 1}"] = [
            caption if n % 90 == at else " ".join(caption.split()[at + 1 :] + caption.split()[: at + 1])
            for n, caption in enumerate(correct)
        ]
    write_dataset(root, repo, {"test": columns}, commit=commit)


def rocketscience(root: Path) -> None:
    """nilshoehing/rocketsciencebench: a split called train; the categories of a row are a list written as a text."""
    kinds = ["Horizontal Position", "Vertical Position", "Depth", "Proximity", "Order", "Absolute Position", "Other"]
    columns = {
        **{f"image{side}": [cell(2 * n + side, name=f"{n}_{side}.jpg") for n in range(241)] for side in (1, 2)},
        **{f"text{side}": [words(n)[side - 1] for n in range(241)] for side in (1, 2)},
        "Category": [str([kinds[0]] if n < 60 else [kinds[n % 7], kinds[(n + 1) % 7]]) for n in range(241)],
    }
    commit = "35a8cf32237c9469a47a226d620f03b9c6b1838c"
    write_dataset(root, "nilshoehing/rocketsciencebench", {"train": columns}, commit=commit, shards=2)


CONME = ("att", "obj", "rel")


def conme(root: Path) -> None:
    """conme/ConMe: a repository of a model, with tables before and after humans filtered them, and loose images."""
    repo, commit = "conme/ConMe", "c34cbf0e3bbd3d85a0694b89a772a58cc195a190"
    folder = write_repository(root, "models", repo, {"main": commit}).folder / commit
    header = ("image", "orig_ind", "orig_pos", "orig_neg", "new_neg", "new_change", "contradiction_check")
    for at, kind in enumerate(CONME):
        rows = []
        for n in range(12 * at, 12 * at + 12):
            image, (caption, negative) = f"{n // 2:012d}.jpg", words(n)
            rows.append((image, n, caption, f"no {caption}", negative, "", "passed"))
            path = folder / "images" / image
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(draw_image(n // 2))
        for name, part in ((f"replace-{kind}.csv", rows * 2), (f"replace-{kind}_HUMAN_FILTER.csv", rows)):
            with (folder / name).open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([header, *part])


_ORDER_COMMITS = ("53c20afc02a87fed8c0245dde2e00f054da4b861", "e5d7f3502345b2c398a6645b4d09b44e650287bf")
WRITERS: dict[str, Callable[[Path], None]] = {  # repository -> what writes it below a root
    "stanfordnlp/colorswap": colorswap,
    "facebook/winoground": winoground,
    "ServiceNow/whatsup_all": whatsup,
    "MMVP/MMVP_VLM": mmvp,
    "imirandam/BiVLC": bivlc,
    "mair-lab/vismin-bench": vismin,
    "nilshoehing/rocketsciencebench": rocketscience,
    "conme/ConMe": conme,
    "ILSVRC/imagenet-1k": imagenet,
    "mteb/ARO-Visual-Relation": aro_relation,
    "mteb/ARO-Visual-Attribution": aro_attribution,
    **{f"HuggingFaceM4/SugarCrepe_{subset}": partial(sugarcrepe, subset=subset) for subset in SUGARCREPE},
    **{
        repo: partial(aro_order, repo=repo, commit=commit, count=count)
        for repo, commit, count in (
            ("mteb/ARO-COCO-order", _ORDER_COMMITS[0], 25010),
            ("mteb/ARO-Flickr-Order", _ORDER_COMMITS[1], 5000),
        )
    },
}
