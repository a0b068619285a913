"""Small copies of further datasets' repositories: those of two images and two captions, and ARO's mirrors."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from support.hub_datasets import cell, draw_image, repository, words, write_card, write_table

BIVLC = {  # type -> subtype -> groups
    "replace": {"object": 1200, "relation": 462, "attribute": 437},
    "swap": {"attribute": 278, "object": 81},
    "add": {"object": 399, "attribute": 76},
}
VISMIN = {"relation": 622, "counting": 589, "object": 579, "attribute": 294}
RELATIONS = {"to the left of": 7741, "to the right of": 7741}  # the two frequent ones; the others share the rest
GROUPS = {"relation": 23937, "attribution": 28748, "coco": 25010, "flickr": 5000}
COMMITS = {
    "relation": "53c1115ab5871ab33b09d5bb8856236d46bdaf2d",
    "attribution": "25fe9b460426ff67cdb0608a737c94f8f49a901e",
    "coco": "53c20afc02a87fed8c0245dde2e00f054da4b861",
    "flickr": "e5d7f3502345b2c398a6645b4d09b44e650287bf",
}


def bivlc(root: Path) -> None:
    """imirandam/BiVLC: no ids; a photograph and a generated image in every group, some photographs grey."""
    import datasets

    _, folder = repository(root, "imirandam/BiVLC")
    text, image = datasets.Value("string"), datasets.Image()
    features = {"image": image, "caption": text, "negative_caption": text, "negative_image": image}
    features |= {"type": text, "subtype": text}
    kinds = [(kind, one) for kind, counts in BIVLC.items() for one, count in counts.items() for _ in range(count)]
    columns = {
        "image": [cell(draw_image(2 * n, "L" if n % 40 == 7 else "RGB"), f"{n:012d}.jpg") for n in range(len(kinds))],
        "caption": [words(n)[0] for n in range(len(kinds))],
        "negative_caption": [words(n)[1] for n in range(len(kinds))],
        "negative_image": [cell(draw_image(2 * n + 1)) for n in range(len(kinds))],
        "type": [kind for kind, _ in kinds],
        "subtype": [one for _, one in kinds],
    }
    write_card(folder, [write_table(folder, "test", columns, features)], features, license="mit")


def vismin(root: Path) -> None:
    """mair-lab/vismin-bench: what save_to_disk writes, with questions that no task of captions reads."""
    import datasets

    _, folder = repository(root, "mair-lab/vismin-bench", "2f379d5b9a3af7f10d3266f6389b7b351e54c493")
    text, image = datasets.Value("string"), datasets.Image()
    features = {"image_0": image, "text_0": text, "image_1": image, "text_1": text, "id": text, "category": text}
    features |= {"question": text}
    kinds = [kind for kind, count in VISMIN.items() for _ in range(count)]
    columns = {
        "image_0": [cell(draw_image(2 * n)) for n in range(len(kinds))],
        "text_0": [words(n)[0] for n in range(len(kinds))],
        "image_1": [cell(draw_image(2 * n + 1, "RGBA" if n % 50 == 3 else "RGB")) for n in range(len(kinds))],
        "text_1": [words(n)[1] for n in range(len(kinds))],
        "id": [f"{kind}-{n:04x}" for n, kind in enumerate(kinds)],
        "category": kinds,
        "question": ["Does <image_0> match?"] * len(kinds),
    }
    table = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    datasets.DatasetDict({"test": table}).save_to_disk(str(folder / "data"), num_shards={"test": 2})
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n\n# VisMin\n", encoding="utf-8")


def aro_relation(root: Path) -> None:
    """mteb/ARO-Visual-Relation: whole images, of which many rows share one, and boxes of 32-bit floats."""
    import datasets

    from ttmbench.data.catalog import find_task
    from ttmbench.plugins.registry import build_registry

    listed = find_task(build_registry(), "aro_vg_relation").spec.means["macro_48"].only["relation_name"]
    others = [*(one for one in listed if one not in RELATIONS), "near", "with", "by", "next to"]
    frequent = [one for one, count in RELATIONS.items() for _ in range(count)]
    rest = GROUPS["relation"] - len(frequent)
    names = frequent + [others[n % len(others)] for n in range(rest)]
    _aro_table(root, "relation", "mteb/ARO-Visual-Relation", {"relation_name": datasets.Value("string")}, [names])


def aro_attribution(root: Path) -> None:
    """mteb/ARO-Visual-Attribution: 117 pairs of attributes with at least 25 rows, and many with fewer."""
    import datasets

    count, frequent = GROUPS["attribution"], 117 * 150
    pairs = [[f"big{n % 117}", "small"] for n in range(frequent)]
    pairs += [[f"rare{n // 20}", "small"] for n in range(count - frequent)]
    text = datasets.Value("string")
    extra = {"attributes": datasets.List(text), "obj1": text, "obj2": text}
    columns = [pairs, ["cat"] * count, ["dog"] * count]
    _aro_table(root, "attribution", "mteb/ARO-Visual-Attribution", extra, columns)


def _aro_table(root: Path, which: str, repo: str, extra: dict[str, Any], columns: list[Any]) -> None:
    import datasets

    _, folder = repository(root, repo, COMMITS[which])
    text, number, count = datasets.Value("string"), datasets.Value("float32"), GROUPS[which]
    box = dict.fromkeys(("x", "y", "w", "h"), number)
    features = {"image": datasets.Image(), "true_caption": text, "false_caption": text, **extra, "bbox": box}
    images = [cell(draw_image(n, "L" if n == 5 else "RGB")) for n in range(60)]
    table = {
        "image": [images[n % len(images)] for n in range(count)],
        "true_caption": [f"the {words(n)[0]} of {n}" for n in range(count)],
        "false_caption": [f"the {words(n)[1]} of {n}" for n in range(count)],
        **dict(zip(extra, columns, strict=True)),
        "bbox": [{"x": n % 5, "y": n % 3, "w": 6 + n % 4, "h": 5 + n % 6} for n in range(count)],
    }
    write_card(folder, [write_table(folder, "test", table, features, shards=2)], features)


def aro_order(root: Path, which: str, repo: str) -> None:
    """mteb/ARO-COCO-order and mteb/ARO-Flickr-Order: some shuffles are equal to the caption."""
    import datasets

    _, folder = repository(root, repo, COMMITS[which])
    text, count = datasets.Value("string"), GROUPS[which]
    hard = [f"hard_text_{n}" for n in range(1, 5)]
    features = {"images": datasets.Image(), "correct_caption": text, **dict.fromkeys(hard, text)}
    images = [cell(draw_image(n)) for n in range(60)]
    right = [f"{words(n)[0]} {n}" for n in range(count)]
    columns: dict[str, Any] = {"images": [images[n % 60] for n in range(count)], "correct_caption": right}
    for at, name in enumerate(hard):
        columns[name] = [one if n % 90 == at else " ".join(_turned(one, at + 1)) for n, one in enumerate(right)]
    write_card(folder, [write_table(folder, "test", columns, features)], features)


def wds_retrieval(root: Path, repo: str, images: int, captions: int, shards: int) -> None:
    """clip-benchmark/wds_*: shards that are counted in a file beside them, a line of a text for each caption."""
    _, folder = repository(root, repo)
    drawn = [draw_image(n, "L" if n == 5 else "RGB") for n in range(60)]
    more = captions - 5 * images
    for split, of in (("train", 1), ("test", shards)):
        (folder / split).mkdir()
        (folder / split / "nshards.txt").write_text(f"{of}\n", encoding="utf-8")
        for shard in range(of):
            with tarfile.open(folder / split / f"{shard}.tar", "w") as tar:
                for n in range(shard, 10 if split == "train" else images, of):
                    lines = [f"{words(n)[at % 2]} {n} {at}" for at in range(5 + (n < more))]
                    for ending, body in (("jpg", drawn[n % 60]), ("txt", "\n".join(lines).encode())):
                        entry = tarfile.TarInfo(f"s{n:07d}.{ending}")
                        entry.size = len(body)
                        tar.addfile(entry, io.BytesIO(body))
    (folder / "dataset_type.txt").write_text("retrieval\n", encoding="utf-8")
    (folder / "README.md").write_text("# Converted\n", encoding="utf-8")


def _turned(caption: str, by: int) -> list[str]:
    found = caption.split()
    return found[by:] + found[:by]


COPIES: dict[str, Callable[..., None]] = {
    "imirandam/BiVLC": bivlc,
    "mair-lab/vismin-bench": vismin,
    "mteb/ARO-Visual-Relation": aro_relation,
    "mteb/ARO-Visual-Attribution": aro_attribution,
    "mteb/ARO-COCO-order": partial(aro_order, which="coco", repo="mteb/ARO-COCO-order"),
    "mteb/ARO-Flickr-Order": partial(aro_order, which="flickr", repo="mteb/ARO-Flickr-Order"),
    **{
        repo: partial(wds_retrieval, repo=repo, images=images, captions=captions, shards=shards)
        for repo, images, captions, shards in (
            ("clip-benchmark/wds_mscoco_captions", 5000, 25010, 12),
            ("clip-benchmark/wds_flickr30k", 1000, 5000, 1),
        )
    },
}
TASKS = (
    *("bivlc", "vismin", *(f"vismin_{one}" for one in VISMIN)),
    *("aro_vg_relation", "aro_vg_attribution", "aro_coco_order", "aro_flickr30k_order"),
    *("coco_retrieval", "flickr30k_retrieval"),
)
