"""Writes the published tables of mteb's results from a checkout of github.com/embeddings-benchmark/results.

python scripts/mteb_results.py CHECKOUT    # writes ttmbench/reproduce/published/mteb_*.csv

Models and their commits are those of _mteb.yaml in the same folder, which also states the commit of the checkout. A
rate is written as the number of correct groups or queries, of how many.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

PUBLISHED = Path(__file__).resolve().parents[1] / "ttmbench" / "reproduce" / "published"
HEAD = ("source", "table", "task", "model", "method", "metric", "percent", "correct", "of")


@dataclass(frozen=True)
class Kept:
    """What is kept of a task of mteb.

    Attributes:
        table: the table that it goes to.
        task: its task there.
        of: number of groups or queries behind each rate.
        metrics: mteb's name -> the one here; `IN_PERCENT` is not a count.
    """

    table: str
    task: str
    of: int
    metrics: Mapping[str, str]


def _recalls(side: str) -> dict[str, str]:
    """Any relevant item among the first k, under its names in mteb 1 and 2; and mteb's main score."""
    names = {f"{name}_at_{k}": f"{side}_recall_at_{k}" for k in (1, 5, 10) for name in ("cv_recall", "hit_rate")}
    return {**names, "ndcg_at_10": f"{side}_ndcg_at_10"}


_TEXTS = {"text_acc": "text_score_ties_right"}
KEPT = {
    "Winoground": Kept(
        *("mteb_winoground", "winoground", 400),
        {"text_acc": "text_score", "image_acc": "image_score", "accuracy": "group_score"},
    ),
    "SugarCrepe": Kept("mteb_sugarcrepe", "sugarcrepe", 7511, {"text_acc": "text_score"}),
    "AROCocoOrder": Kept("mteb_aro_coco_order", "aro_coco_order", 25010, _TEXTS),
    "AROFlickrOrder": Kept("mteb_aro_flickr_order", "aro_flickr30k_order", 5000, _TEXTS),
    "AROVisualRelation": Kept("mteb_aro_visual", "aro_vg_relation (whole images)", 23937, _TEXTS),
    "AROVisualAttribution": Kept("mteb_aro_visual", "aro_vg_attribution (whole images)", 28748, _TEXTS),
    "ImageCoDe": Kept(
        *("mteb_imagecode", "imagecode (images of 256 pixels)", 2302),
        {"accuracy": "image_score", "image_acc": "image_score"},
    ),
    "Imagenet1kZeroShot": Kept("mteb_imagenet", "imagenet (one prompt)", 50000, {"accuracy": "accuracy_top1"}),
    "Flickr30kI2TRetrieval": Kept("mteb_retrieval", "flickr30k_retrieval", 1000, _recalls("i2t")),
    "Flickr30kT2IRetrieval": Kept("mteb_retrieval", "flickr30k_retrieval", 5000, _recalls("t2i")),
    "MSCOCOI2TRetrieval": Kept("mteb_retrieval", "coco_retrieval", 5000, _recalls("i2t")),
    "MSCOCOT2IRetrieval": Kept("mteb_retrieval", "coco_retrieval", 24809, _recalls("t2i")),
}
ONE_BY_K = ("SugarCrepe", "AROCocoOrder", "AROFlickrOrder", "AROVisualRelation", "AROVisualAttribution")
IN_PERCENT = "ndcg_at_10"
NOISE = ("Salesforce/blip-image-captioning-base", "Salesforce/blip-image-captioning-large")


def is_left_out(model: str, task: str, metric: str, scores: Mapping[str, object]) -> bool:
    """Whether a number is in no table: another task or metric, a copy of another number, or 0 by construction."""
    kept = KEPT.get(task)
    if kept is None or model in NOISE or metric == "main_score":
        return True
    if task in ONE_BY_K and metric in ("accuracy", "image_acc"):
        return True
    if task == "ImageCoDe" and "image_acc" in scores and metric in ("accuracy", "text_acc"):
        return True
    return metric not in kept.metrics


def numbers(checkout: Path, models: Mapping[str, str]) -> Iterator[tuple[str, str, str, float]]:
    """Model, task, metric and value of every number that is kept."""
    for model, revision in models.items():
        folder = checkout / "results" / model.replace("/", "__") / revision
        for task in KEPT:
            path = folder / f"{task}.json"
            if not path.is_file():
                continue
            (scores,) = json.loads(path.read_text(encoding="utf-8"))["scores"]["test"]
            for metric, value in scores.items():
                if not is_left_out(model, task, metric, scores):
                    yield model, task, metric, value


def line(model: str, task: str, metric: str, value: float) -> list[str]:
    """A line of the CSV. SystemExit if a rate is not a count of the groups."""
    kept = KEPT[task]
    cells = ["mteb", task, kept.task, model, "raw", kept.metrics[metric]]
    if metric == IN_PERCENT:
        return [*cells, f"{100 * value:.3f}", "", ""]
    correct = round(value * kept.of)
    if abs(correct / kept.of - value) > 1e-5:  # mteb rounds to five digits, or computes in float32
        sys.exit(f"{model}, {task}: {metric} is {value}, which is not a count of {kept.of}")
    return [*cells, "", str(correct), str(kept.of)]


def main() -> None:
    """Writes the tables."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    models = yaml.safe_load((PUBLISHED / "_mteb.yaml").read_text(encoding="utf-8"))["models"]
    revisions = {name: entry["revision"] for name, entry in models.items()}
    tables: dict[str, list[list[str]]] = {kept.table: [] for kept in KEPT.values()}
    for model, task, metric, value in numbers(Path(sys.argv[1]), revisions):
        tables[KEPT[task].table].append(line(model, task, metric, value))
    for name, rows in tables.items():
        with (PUBLISHED / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([HEAD, *sorted(rows)])


if __name__ == "__main__":
    main()
