"""Published numbers as tables: one of docs/published.md, and the site's page of models by benchmark."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from page_parts import table

from ttmbench.plugins.registry import Registry, build_registry
from ttmbench.reproduce.lookup import PublishedRow, model_of_config, published_rows
from ttmbench.reproduce.tables import load_table
from ttmbench.results.labels import RAW
from ttmbench.results.numbers import numbers_of
from ttmbench.results.reader import walk_documents

RESULTS = Path(__file__).resolve().parents[2] / "results"
SOURCES = {
    "mteb": ("M", "mteb"),
    "arXiv:2406.09388": ("V", "The Spectrum of Visio-Linguistic Compositionality and Recognition, its repository"),
    "open_clip": ("O", "open_clip's documents"),
    "arXiv:2510.07632": ("T", "Test-Time Matching"),
    "arXiv:2204.03162": ("W", "Winoground"),
    "arXiv:2402.04492": ("C", "ColorSwap"),
    "arXiv:2306.01879": ("P", "Language Priors"),
    "arXiv:2409.17958": ("H", "Hard Positive Truth"),
    "arXiv:2305.07558": ("G", "Measuring Progress in Fine-grained Vision-and-Language Understanding"),
    "github.com/ytaek-oh/fsc-clip": ("F", "FSC-CLIP's repository"),
    "github.com/SeanSun6814/11777-project": ("S", "a course project's stored scores"),
}
"""Source, without what follows a comma -> its letter in a cell, and its name."""
SUBSETS = tuple(f"sugarcrepe_{name}" for name in ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel"))
SUBSETS += ("sugarcrepe_swap_att", "sugarcrepe_swap_obj")
COLUMNS = {
    "Winoground, group score": ("winoground", "group_score"),
    "ColorSwap, group score": ("colorswap", "group_score"),
    "SugarCrepe, all groups": ("sugarcrepe", "text_score"),
    "ARO relations": ("aro_vg_relation", "text_score/macro_48"),
    "ARO attributes": ("aro_vg_attribution", "text_score/macro_117"),
    "ARO COCO order": ("aro_coco_order", "text_score_ties_right"),
    "ARO Flickr30k order": ("aro_flickr30k_order", "text_score_ties_right"),
    "What'sUp A": ("whatsup_a", "text_score"),
    "MMVP-VLM, group score": ("mmvp_vlm", "group_score"),
    "Flickr30k R@1, image to text": ("flickr30k_retrieval", "i2t_recall_at_1"),
    "Flickr30k R@1, text to image": ("flickr30k_retrieval", "t2i_recall_at_1"),
    "COCO R@1, image to text": ("coco_retrieval", "i2t_recall_at_1"),
    "COCO R@1, text to image": ("coco_retrieval", "t2i_recall_at_1"),
    "ImageNet, top 1": ("imagenet", "accuracy_top1"),
}
FAMILIES = {
    "CLIP (OpenAI)": r"clip-b\d+$|openai/",
    "CLIP (LAION-2B, DataComp)": r"open_clip-vit|laion/",
    "EVA-02": r"QuanSun/",
    "SigLIP": r"siglip-|google/siglip",
    "CLIP ViT-B/32 for compositionality": r"negclip$|ce-clip|clove|dac-|tsvlc|gnm-clip|fsc-clip",
    "BLIP, BLIP-2": r"blip2?-it[cm]$|Salesforce/",
    "Others": r"kakaobrain/|jinaai/jina-clip|nomic-ai/|BAAI/",
    "Embeddings by language models": r"royokong|TIGER-Lab|BidirLM|Haon-Chen|LCO-|jinaai/jina-emb|Tevat|encord|voyage",
}
"""Family -> the models in it, by the beginning of their name; the first that fits."""


OTHER = "arXiv:2406.09388"


def models() -> str:
    """A line a model: what each source measured on each benchmark, and ours where there is a run."""
    registry = build_registry()
    numbers = _cells(published_rows(registry))
    ours = dict(_ours(registry))
    known = {model for model, *_ in numbers}
    head = ["family", "model", *COLUMNS]
    rows = []
    for family, of_family in _by_family(known).items():
        for model in of_family:
            cells = []
            for place in COLUMNS.values():
                values = numbers.get((model, *place), {})
                shown = [f"{100 * value:.2f} {SOURCES[name][0]}" for name in SOURCES for value in values.get(name, ())]
                if (model, *place) in ours:
                    shown.append(f"**{100 * ours[model, *place]:.2f}** ttmbench")
                cells.append("<br>".join(shown) or "-")
            if set(cells) != {"-"}:
                rows.append([family, f"`{model}`", *cells])
    used = {name for (model, *place), same in numbers.items() if tuple(place) in COLUMNS.values() for name in same}
    letters = "; ".join(f"{letter}: {title}" for name, (letter, title) in SOURCES.items() if name in used)
    count = f"Bold: {len(ours)} computed" if ours else "No value was computed"
    return f"Letters name the sources: {letters}. {count} with ttmbench.\n\n{table(head, rows)}"


PAGE = """# Models by benchmark

Published numbers of models without adaptation, in percent. Several values in a cell come from several sources;
`-` means that no table has the number. [Published results](published.md) explains why sources differ.

{models}

SugarCrepe is computed over the groups of its seven subsets. ARO's relations and attributes are means over relations and
pairs of attributes. mteb's numbers on other data or prompts are excluded.

## mteb

mteb's rules differ from those of ttmbench:

| subject | mteb | ttmbench |
|---|---|---|
| ties on 2x2 and 1xk groups | first option wins | incorrect; correct in `text_score_ties_right` |
| ties in retrieval | ordered by document name | incorrect; first wins in `_as_topk` |
| ARO relations, attributes | whole images | cropped: not comparable |
| ImageCoDe | images of 256 pixels; scores of 12 to 15 % | original images |
| ImageNet | one prompt | 80 prompts, 1 to 4.5 points higher |
| COCO | 24,809 distinct captions | all 25,010 |
| LAION's CLIP, EVA-02 | half precision (inferred from its code) | float32 by default |
| BLIP | contrastive half | `blip-itc`, not `blip-itm` |

This table shows mteb's values minus those of [arXiv:2406.09388](https://arxiv.org/abs/2406.09388) (`vl_compo`), in this
order: CLIP ViT-B/32, ViT-B/16, ViT-L/14, SigLIP ViT-B/16 and ViT-L/16. On ARO's word-order tasks the values differ
because the shuffled captions differ; `reproduce` compares runs on mteb's captions.

{differences}
"""


def page() -> str:
    """The site's page of models by benchmark."""
    return PAGE.format(models=models(), differences=differences())


def spread() -> str:
    """CLIP ViT-B/32 on Winoground by source."""
    rows = [row for row in published_rows(build_registry()) if (row.model, row.task) == ("clip-b32", "winoground")]
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if row.number.method == "raw":
            place = row.number.as_number().file, row.table
            found.setdefault(place, {})[row.metric] = row.number.measured.value
    metrics = ("text_score", "image_score", "group_score")
    values = [(f"{file} (`{table}`)", *(same.get(name) for name in metrics)) for (file, table), same in found.items()]
    lines = []
    for name, *three in sorted(values, key=lambda line: (line[3], line[0])):
        correct = str(round(400 * three[2]))
        lines.append([name, *("-" if value is None else f"{100 * value:.2f}" for value in three), correct])
    return table(("source", "text score", "image score", "group score", "correct groups"), lines)


def differences() -> str:
    """How far mteb lies from `OTHER`, for the models that both measured."""
    numbers = _cells(published_rows(build_registry()))
    names = ("clip-b32", "clip-b16", "openai/clip-vit-large-patch14", "siglip-b16", "siglip-l16")
    tables = {"winoground": "mteb_winoground", "sugarcrepe": "mteb_sugarcrepe", "aro_coco_order": "mteb_aro_coco_order"}
    tables |= {"aro_flickr30k_order": "mteb_aro_flickr_order"}
    tables |= dict.fromkeys(("flickr30k_retrieval", "coco_retrieval"), "mteb_retrieval")
    places = [("winoground", metric) for metric in ("text_score", "image_score", "group_score")]
    places += [COLUMNS[name] for name in COLUMNS if name.startswith(("Sugar", "ARO COCO", "ARO Fl", "Flickr", "COCO"))]
    lines = []
    for task, metric in places:
        both = [(numbers[name, task, metric]["mteb"][0], numbers[name, task, metric][OTHER][0]) for name in names]
        allowed = load_table(tables[task if task in tables else task.partition("_")[0]]).spec.tolerance.points
        points = ", ".join(f"{100 * (ours - theirs):+.2f}" for ours, theirs in both)
        lines.append([f"`{task}`", metric.replace("_", " "), points, f"{allowed:.1f}"])
    return table(("task", "metric", "differences in points", "allowed in `reproduce`"), lines)


def _cells(rows: Sequence[PublishedRow]) -> dict[tuple[str, str, str], dict[str, list[float]]]:
    """Model, task and metric -> source -> its raw values, each once; of SugarCrepe also all groups together."""
    cells: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for row in rows:
        source = row.number.source.partition(",")[0]
        if row.number.method == "raw" and row.number.of_model != "forced_choice" and source in SOURCES:
            values = cells.setdefault((row.model, row.task, row.label), {}).setdefault(source, [])
            if row.number.measured.value not in values:
                values.append(row.number.measured.value)
    sizes = {name: entry.groups for name, entry in load_table("mteb_sugarcrepe").spec.tasks.items() if entry.groups}
    for model, source in {(place[0], source) for place, same in cells.items() for source in same}:
        parts = [cells.get((model, task, "text_score"), {}).get(source, []) for task in SUBSETS]
        if all(parts):
            correct = sum(round(sizes[task] * values[0]) for task, values in zip(SUBSETS, parts, strict=True))
            cells.setdefault((model, "sugarcrepe", "text_score"), {})[source] = [correct / sum(sizes.values())]
    return cells


def _ours(registry: Registry) -> Iterator[tuple[tuple[str, str, str], float]]:
    """Numbers of raw models in this repository's results, of whole tasks."""
    for path, document in walk_documents(RESULTS):
        if not isinstance(document, str):
            model = model_of_config(document.config, registry)
            for number in numbers_of(document, str(path)):
                if number.filter == RAW and not number.limited and number.value is not None:
                    task, _, mean = number.task.partition("/")
                    label = f"{number.metric}/{mean}" if mean else number.metric
                    if (task, label) in COLUMNS.values():
                        yield (model, task, label), number.value


def _by_family(models: set[str]) -> dict[str, list[str]]:
    families: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for model in sorted(models, key=str.casefold):
        family = next((name for name, pattern in FAMILIES.items() if re.match(pattern, model)), None)
        if family:
            families[family].append(model)
    return families
