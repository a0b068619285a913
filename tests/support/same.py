"""Changes what must change no number - batches, order, threads, company, the cache - and measures what moves.

Small random models of every way of scoring meet rendered groups: 2x2, one image with two captions, and 2x2 matched
globally. Each change is measured against one quiet run: the largest difference of a raw score, and metrics that differ.
What is permuted is put back in order first. Then runs of TTM: what each iteration selected, and the scores afterwards.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from pathlib import Path

import numpy as np
import torch
import yaml
from PIL.Image import Image

import ttmbench
from ttmbench.config import RunConfig
from ttmbench.data.rendered.scenes import make_groups, render
from ttmbench.evaluator.eval_results import EvalResults
from ttmbench.plugins.registry import build_registry
from ttmbench.protocols import StoredFeatures
from ttmbench.results.labels import RAW, TTM
from ttmbench.results.stored_files import read_scores
from ttmbench.results.summary import MethodScores, summarise
from ttmbench.scoring.capabilities import Capabilities
from ttmbench.types import GroupShape, Scores

LAYOUTS = {"pairs": ("color", (2, 2)), "one": ("replace", (1, 2)), "all": ("color", (2, 2))}
METRICS = ("text_score", "group_score", "group_match")
SHORT = {"iterations": 2, "epochs": 1, "lr": 1e-3, "tau_start": 1e-4}
SELECTION = ("selected", "candidates", "tied", "pseudo_label_accuracy")  # of an iteration's record
WIDE = "CLIP, width 256"  # wide enough for threads to share its products; too slow to train here
SIDES = ("image", "caption")
LARGEST = 1e-4  # what a raw score may move
# Tiny models of every architecture are made beside the tests, and larger ones by the benchmarks.
SHARED = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2] / "benchmarks")]
Model = Callable[[str, "Order"], object]


class Light:
    """A plain pair scorer without torch: how bright the image is, times a number of the caption."""

    def fingerprint(self) -> dict[str, str]:
        return {"weights": "none"}  # so that its scores are cached

    def score_pairs(self, images: Sequence[Image], captions: Sequence[str]) -> np.ndarray:
        light = [np.asarray(image, dtype=np.float64)[..., 0].mean() for image in images]
        codes = [sum(position * ord(letter) for position, letter in enumerate(caption)) for caption in captions]
        return np.sin(np.array(light) * np.array(codes) / 1000)


@dataclass(frozen=True)
class Order:
    """The order of groups (none: the plain one), and of images and captions inside them: new place -> old place."""

    name: str = "plain"
    groups: tuple[int, ...] = ()
    images: tuple[int, ...] = (0, 1)
    captions: tuple[int, ...] = (0, 1)

    def positions(self, count: int, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Old places of groups, images and captions; one image has no other order, so it stays."""
        images = [image for image in self.images if image < shape[0]]
        return np.array(self.groups or range(count)), np.array(images), np.array(self.captions)


PLAIN = Order()


class Tasks:
    """Task files in a folder: every layout, of ``count`` groups, in every order, over one set of images."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        mixed = np.random.default_rng(5).permutation(count).tolist()
        made = (
            PLAIN,
            Order("groups", tuple(mixed)),
            Order("captions", captions=(1, 0)),
            Order("images", images=(1, 0)),
        )
        self.orders = {order.name: order for order in made}
        (folder / "images").mkdir(parents=True)
        for layout, (kind, shape) in LAYOUTS.items():
            groups = make_groups(kind, count, 1)
            for number, group in enumerate(groups):
                for index, scene in enumerate(group.scenes):
                    render(scene).save(folder / "images" / f"{layout}_{number}_{index}.png")
            for order in made:
                self._write(layout, shape, [group.captions for group in groups], order)

    def _write(self, layout: str, shape: tuple[int, int], captions: Sequence[Sequence[str]], order: Order) -> None:
        groups, images, places = order.positions(self.count, shape)
        rows = []
        for group in groups.tolist():
            row = {"id": f"g{group}"}
            row |= {f"image_{place}": f"{layout}_{group}_{image}.png" for place, image in enumerate(images)}
            row |= {f"caption_{place}": captions[group][caption] for place, caption in enumerate(places)}
            rows.append(json.dumps(row) + "\n")
        name, is_global = self.name(layout, order), layout == "all"
        (self.folder / f"{name}.jsonl").write_text("".join(rows), encoding="utf-8")
        columns = {f"{side}s": [f"{side}_{place}" for place in range(n)] for side, n in zip(SIDES, shape, strict=True)}
        spec = {
            "task": name,
            "version": 1,
            "source": {"kind": "folder", "path": f"{name}.jsonl", "images": "images"},
            "group": {"shape": list(shape), "n_groups": self.count, "id": "id", **columns},
            "metrics": [*METRICS, *(["global_assignment_accuracy"] if is_global else [])],
            **({"matching": "global"} if is_global else {}),
        }
        self.path(layout, order).write_text(yaml.safe_dump(spec), encoding="utf-8")

    def name(self, layout: str, order: Order) -> str:
        return f"same_{layout}_{order.name}"

    def path(self, layout: str, order: Order) -> Path:
        return self.folder / f"{self.name(layout, order)}.yaml"


@dataclass(frozen=True)
class Seen:
    """Raw scores of a task in the plain order, and its metrics."""

    scores: Scores
    metrics: dict[str, float | None]

    def against(self, other: Seen) -> tuple[float, list[str]]:
        """The largest difference of a score, and the metrics that differ."""
        pairs = [(self.scores.groups, other.scores.groups)]
        if self.scores.all_pairs is not None and other.scores.all_pairs is not None:
            pairs.append((self.scores.all_pairs, other.scores.all_pairs))
        moved = max(float(np.abs(one - another).max()) for one, another in pairs)
        return moved, [name for name, value in self.metrics.items() if value != other.metrics[name]]


@dataclass(frozen=True)
class Adapted:
    """One seed of TTM: what it recorded of its iterations, and the scores afterwards."""

    iterations: list[dict]
    scores: Scores

    def against(self, other: Adapted) -> tuple[float, list[str]]:
        """The largest difference of a score, and what of the selections differs."""
        pairs = list(zip(self.iterations, other.iterations, strict=True))
        differing = [key for key in SELECTION if any(one[key] != another[key] for one, another in pairs)]
        # The same pairs in the same batches have the same loss, up to rounding; others of the same number do not.
        losses = [(one["loss"], another["loss"]) for one, another in pairs]
        if not all(np.allclose(one, another, rtol=0, atol=LARGEST) for one, another in losses):
            differing.append("loss")
        return float(np.abs(self.scores.groups - other.scores.groups).max()), differing


class Bench:
    """One model and the tasks it is scored on.

    Args:
        model: gives the adapter for a layout and an order; the same one each time, unless the model is the data.
        tasks: the tasks.
        trains: whether it is adapted too, where it can be.
    """

    def __init__(self, model: Model, tasks: Tasks, trains: bool = True) -> None:
        self.model, self.tasks, self._trains = model, tasks, trains
        self._registry = build_registry()
        self.quiet, self.quiet_ttm = cache(self._quiet), cache(self.adapted)

    def adapts(self, layout: str) -> bool:
        """Whether TTM adapts the model to this layout."""
        loss = Capabilities(self.model(layout, PLAIN)).loss
        return self._trains and loss is not None and not (loss == "matching" and layout == "all")

    def run(self, layout: str, order: Order = PLAIN, others: Sequence[str] = (), **settings: object) -> EvalResults:
        names = [str(self.tasks.path(one, order)) for one in (*others, layout)]
        common = {"device": "cpu", "bootstrap_iters": 0, "use_cache": "off", **settings}
        return ttmbench.simple_evaluate(self.model(layout, order), names, **common)

    def seen(self, layouts: Sequence[str], order: Order = PLAIN, **settings: object) -> dict[str, Seen]:
        """What one run of these layouts, in this order, gives for each, put back into the plain order."""
        scores = self.run(layouts[-1], order, layouts[:-1], **settings).scores
        return {one: self.in_order(one, order, scores[self.tasks.name(one, order)][RAW][0]) for one in layouts}

    def together(self) -> list[list[str]]:
        """Layouts that one run can have: all of them, unless the model is the data."""
        if isinstance(self.model("pairs", PLAIN), StoredFeatures):
            return [[layout] for layout in LAYOUTS]
        return [list(LAYOUTS)]

    def fellows(self, layout: str) -> list[str]:
        """Other layouts that the model of this one can be scored on: stored features fit their own groups alone."""
        stored = isinstance(self.model(layout, PLAIN), StoredFeatures)
        return [
            one for one, (_, shape) in LAYOUTS.items() if one != layout and not (stored and shape != LAYOUTS[layout][1])
        ]

    def other_batches(self, *sizes: int) -> list[int]:
        """Those of these sizes whose batches are others than the quiet run's: a small task is one batch in many."""
        pairs = 4 * self.tasks.count
        return [size for size in sizes if min(size, pairs) != min(RunConfig.model_fields["batch_size"].default, pairs)]

    def _quiet(self, layout: str) -> Seen:
        """The run that the others are measured against; the layout is alone in it."""
        return self.seen([layout])[layout]

    def adapted(self, layout: str, seeds: Sequence[int] = (0, 1), **settings: object) -> dict[int, Adapted]:
        result = self.run(layout, ttm=True, ttm_args=SHORT, seeds=list(seeds), **settings)
        name = self.tasks.name(layout, PLAIN)
        records = result["ttm"][name]["iterations"]
        return {
            seed: Adapted([one for one in records if one["seed"] == seed], scores)
            for seed, scores in zip(seeds, result.scores[name][TTM], strict=True)
        }

    def in_order(self, layout: str, order: Order, scores: Scores) -> Seen:
        """Scores put back into the plain order, and the metrics of the task."""
        count, shape = self.tasks.count, LAYOUTS[layout][1]
        groups, images, captions = (np.argsort(one) for one in order.positions(count, shape))
        inside = scores.groups[groups][:, images][:, :, captions]
        pairs = scores.all_pairs
        if pairs is not None:
            rows = (groups[:, None] * shape[0] + images).reshape(-1)
            columns = (groups[:, None] * shape[1] + captions).reshape(-1)
            pairs = pairs[np.ix_(rows, columns)]
        names = [*METRICS, *(["global_assignment_accuracy"] if pairs is not None else [])]
        back = Scores(np.ascontiguousarray(inside), pairs)
        summary = summarise([MethodScores(RAW, [back])], [self._registry.metric(name) for name in names], 0, 0)
        return Seen(back, dict(summary.results))


@contextmanager
def threads(count: int):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


Change = Callable[[Bench, Sequence[str]], list[dict[str, Seen]]]
"""Makes runs of layouts that one run can have: what each gives."""


def batch_sizes(bench: Bench, layouts: Sequence[str]) -> list[dict[str, Seen]]:
    """Small and odd batches, and one larger than the task."""
    return [bench.seen(layouts, batch_size=size) for size in bench.other_batches(1, 3, 7, 1000)]


def order_of(what: str) -> Change:
    """Groups, or images or captions inside groups, in another order."""
    return lambda bench, layouts: [bench.seen(layouts, bench.tasks.orders[what])]


def thread_counts(bench: Bench, layouts: Sequence[str]) -> list[dict[str, Seen]]:
    """One, two and four threads, less those that the quiet run has."""
    found = []
    for count in sorted({1, 2, 4} - {torch.get_num_threads()}):
        with threads(count):
            found.append(bench.seen(layouts))
    return found


def company(bench: Bench, layouts: Sequence[str]) -> list[dict[str, Seen]]:
    """After other tasks of the same run: each layout after each other one."""
    if len(layouts) > 1:
        return [bench.seen(order) for order in (layouts, layouts[::-1])]
    return [bench.seen([*bench.fellows(layout), layout]) for layout in layouts]


def store(bench: Bench, layouts: Sequence[str]) -> list[dict[str, Seen]]:
    """A cache that is empty, and one that has the scores; kept with another batch size."""
    with tempfile.TemporaryDirectory() as folder:
        return [bench.seen(layouts, use_cache=folder, batch_size=size) for size in (7, 64)]


def after_ttm(bench: Bench, layouts: Sequence[str]) -> list[dict[str, Seen]]:
    """Raw scores of runs that adapt, of tasks after others that were adapted to, and of the model afterwards."""
    adapted = [layout for layout in layouts if bench.adapts(layout)]
    if not adapted:
        return []
    adapting = {"ttm": True, "ttm_args": SHORT}
    if len(layouts) > 1:
        orders = [adapted, adapted[::-1]]
    else:
        fellows = [one for one in bench.fellows(layouts[0]) if bench.adapts(one)]
        orders = [[*fellows, *layouts]]
    return [*(bench.seen(order, **adapting) for order in orders), bench.seen(adapted)]


def saved(bench: Bench, layouts: Sequence[str]) -> list[dict[str, Seen]]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        bench.run(layouts[-1], others=layouts[:-1], save_scores=True, output_path=f"{folder}/x.json")
        for layout in layouts:
            (path,) = Path(folder).glob(f"*_{bench.tasks.name(layout, PLAIN)}.safetensors")
            scores = read_scores(path, GroupShape(*LAYOUTS[layout][1])).scores[RAW][0]
            found[layout] = bench.in_order(layout, PLAIN, scores)
    return [found]


CHANGES: dict[str, Change] = {
    "batch size 1, 3, 7, 1000": batch_sizes,
    "order of groups": order_of("groups"),
    "order of captions in groups": order_of("captions"),
    "order of images in groups": order_of("images"),
    "1, 2, 4 threads": thread_counts,
    "other tasks before it": company,
    "the cache, empty and full": store,
    "test-time stages before it": after_ttm,
    "saved and read back": saved,
}


def ttm_batch_size(bench: Bench, layout: str) -> list[dict[int, Adapted]]:
    """Scoring in other batches, one larger than the task."""
    return [bench.adapted(layout, seeds=(0,), batch_size=size) for size in bench.other_batches(1, 7, 1000)]


def ttm_company(bench: Bench, layout: str) -> list[dict[int, Adapted]]:
    """After other tasks of the same run, in either order."""
    others = [one for one in bench.fellows(layout) if bench.adapts(one)]
    return [bench.adapted(layout, seeds=(0,), others=one) for one in permutations(others)]


def ttm_seeds(bench: Bench, layout: str) -> list[dict[int, Adapted]]:
    """One seed without the other, and both in the other order."""
    return [bench.adapted(layout, seeds=(1,)), bench.adapted(layout, seeds=(1, 0))]


TTM_CHANGES: dict[str, Callable[[Bench, str], list[dict[int, Adapted]]]] = {
    "TTM: batch size 1, 7, 1000": ttm_batch_size,
    "TTM: other tasks before it": ttm_company,
    "TTM: a seed alone, or in another order": ttm_seeds,
}


def features_of(folder: Path, count: int) -> Model:
    """Precomputed embeddings of every layout and order: random ones, for each image and each caption."""
    from ttmbench.model_adapters import embeddings

    @cache
    def load(layout: str, order: Order) -> object:
        shape, rng = LAYOUTS[layout][1], np.random.default_rng(2)
        groups, *members = order.positions(count, shape)
        content = {}
        for name, size, places in zip(("img", "cap"), shape, members, strict=True):
            vectors = rng.normal(size=(count, size, 24)).astype(np.float32)
            content[name] = vectors[groups][:, places].reshape(-1, 24)
        path = folder / f"features_{layout}_{order.name}.npz"
        np.savez(path, **content)
        return embeddings.load(path=str(path), device="cpu")

    return load


def make_benches(folder: Path, count: int) -> dict[str, Bench]:
    """A tiny model of every way of scoring, by name, each with tasks of so many groups."""
    sys.path += SHARED
    try:
        from material import make_clip

        from support import tiny_models
    finally:
        del sys.path[-len(SHARED) :]
    from ttmbench.model_adapters import hf, itm, visualgpt, vqascore
    from ttmbench.model_adapters import open_clip as open_clip_models

    def written(maker: str, name: str, **options: object) -> str:
        (folder / name).mkdir()
        return str(getattr(tiny_models, maker)(folder / name, **options))

    (folder / "wide").mkdir()
    make_clip(folder / "wide", width=256, layers=2)
    chat = written("chat", "llava", kind="llava")
    adapters = {
        "CLIP": hf.load(pretrained=written("clip", "clip"), device="cpu"),
        WIDE: hf.load(pretrained=str(folder / "wide"), device="cpu"),
        "SigLIP": hf.load(pretrained=written("siglip", "siglip"), device="cpu"),
        "open_clip": open_clip_models.load(model=f"local-dir:{written('open_clip', 'open_clip')}", device="cpu"),
        "BLIP ITM": itm.load(pretrained=written("blip", "blip", captioner=False), device="cpu"),
        "VQAScore of LLaVA": vqascore.load(pretrained=chat, device="cpu"),
        "VisualGPTScore": visualgpt.load(pretrained=written("blip", "cap", captioner=True), device="cpu", alpha=0.5),
        "pair scorer": Light(),
    }
    tasks = Tasks(folder / "tasks", count)
    benches = {name: Bench(lambda *_, it=adapter: it, tasks, name != WIDE) for name, adapter in adapters.items()}
    return {**benches, "stored features": Bench(features_of(folder, count), tasks)}


@dataclass(frozen=True)
class Row:
    """One change of one model, over all layouts.

    Attributes:
        model: its name.
        change: what was changed.
        moved: the largest difference of a score; None if the change does not apply to this model.
        differing: metrics, or parts of TTM's selections, that differ.
    """

    model: str
    change: str
    moved: float | None
    differing: list[str]

    @property
    def fault(self) -> bool:
        """Whether a decision differs, or a raw score moved more than rounding moves it."""
        adapted = self.change in TTM_CHANGES  # training amplifies rounding
        return bool(self.differing) or (not adapted and self.moved is not None and self.moved > LARGEST)


def measure(name: str, bench: Bench, change: str) -> Row:
    found = []
    if change in CHANGES:
        for layouts in bench.together():
            seen = [one for run in CHANGES[change](bench, layouts) for one in run.items() if one[0] in layouts]
            found += [(layout, bench.quiet(layout).against(one)) for layout, one in seen]
    else:
        for layout in filter(bench.adapts, LAYOUTS):
            quiet, runs = bench.quiet_ttm(layout), TTM_CHANGES[change](bench, layout)
            found += [(layout, quiet[seed].against(one)) for run in runs for seed, one in run.items()]
    moved = max((difference for _, (difference, _) in found), default=None)
    return Row(name, change, moved, [f"{layout}: {what}" for layout, (_, names) in found for what in names])
