"""What a planned run takes: hours on the device that is there, downloads, and terms that have to be accepted.

Nothing is fetched and no server is asked. Operations are counted from the sizes of both towers; a step of training
takes three times those of scoring, and every group counts as selected in every iteration, so hours are at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ttmbench.config import RunConfig, make_run_config
from ttmbench.data.availability import amount
from ttmbench.data.catalog import find_task
from ttmbench.data.loader import data_locations
from ttmbench.data.paths import data_folder
from ttmbench.errors import TtmbenchError
from ttmbench.evaluator.cards import rate
from ttmbench.evaluator.settings import task_settings
from ttmbench.plugins.registry import Registry, locate_files
from ttmbench.reproduce.run import PlannedRun

Tower = tuple[int, int, int]
"""Width, layers and tokens of a transformer whose hidden layers are four times as wide."""
_CLIP_B_TEXT, _SIGLIP_B_TEXT = (512, 12, 77), (768, 12, 64)
_TOWERS: dict[str, tuple[Tower, Tower]] = {  # of images and of captions
    "clip-b32": ((768, 12, 50), _CLIP_B_TEXT),
    "clip-b16": ((768, 12, 197), _CLIP_B_TEXT),
    "siglip-b16": ((768, 12, 196), _SIGLIP_B_TEXT),
    "siglip-l16": ((1024, 24, 256), (1024, 24, 64)),
    "open_clip-vit-b32": ((768, 12, 50), _CLIP_B_TEXT),
    "open_clip-vit-b16": ((768, 12, 197), _CLIP_B_TEXT),
    "open_clip-vit-l14": ((1024, 24, 257), (768, 12, 77)),
    "open_clip-siglip-b16": ((768, 12, 196), _SIGLIP_B_TEXT),
    "open_clip-siglip2-b16": ((768, 12, 196), _SIGLIP_B_TEXT),
}


@dataclass(frozen=True)
class Estimate:
    """What one task of a planned run takes.

    Attributes:
        hours: None if unknown, for the reason in ``why``.
        data: what of its data is here, in a sentence.
        gated: pages whose terms have to be accepted first; none where the data are here.
    """

    task: str
    hours: float | None
    why: str
    data: str
    gated: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """All of it in a line."""
        hours = f"hours unknown ({self.why})" if self.hours is None else f"at most {self.hours:.2g} hours"
        return f"{self.task}: {hours}; {self.data}{'; gated' if self.gated else ''}"


def operations(tower: Tower) -> int:
    """Floating-point operations of one forward pass of one row: products of weights, and attention.

    >>> operations((768, 12, 196)), operations((768, 12, 64))
    (34710552576, 11022630912)
    """
    width, layers, tokens = tower
    return layers * (2 * tokens * 12 * width**2 + 4 * tokens**2 * width)


def estimates(run: PlannedRun, registry: Registry, card: str | None) -> Iterator[Estimate]:
    """What each task of a run takes on a GPU of this name; None without one."""
    config = make_run_config(run.settings)
    for task in config.tasks:
        hours, why = _hours(config, task, registry, card)
        yield Estimate(task, hours, why, *_data(config, task, registry))


def weights(run: PlannedRun, registry: Registry) -> tuple[str, int]:
    """What of a model's weights is here, in words, and how many bytes are to be fetched as far as that is known."""
    if run.finetuning:
        return "weights of a finetuning, made here", 0
    config = make_run_config(run.settings)
    spec = registry.adapter(config.model)
    size = spec.card.bytes if spec.card is not None and "pretrained" not in config.model_args else None
    words = f"weights {amount(size)}" if size else "weights of unknown size"
    try:
        files = locate_files(spec, config.model_args, offline=True)
    except TtmbenchError:
        gated = f", gated (https://huggingface.co/{spec.model_args.get('pretrained')})"
        return f"{words} to download{gated if spec.card is not None and spec.card.gated else ''}", size or 0
    return ("no weights" if files is None else f"{words} here" if size else "weights here"), 0


def _hours(config: RunConfig, task: str, registry: Registry, card: str | None) -> tuple[float | None, str]:
    """Hours at most; or None, and why."""
    towers = _TOWERS.get(registry.adapter(config.model).name) if not config.model_args else None
    spec, dtype = find_task(registry, task).spec, str(config.arithmetic)
    if towers is None:
        return None, "the operations of this model are not counted"
    if card is None:
        return None, "no GPU is here"
    speed = rate(card, dtype)
    if speed is None:
        return None, f"no rate of {card} in {dtype} is known"
    shape, groups = spec.group.shape, spec.group.n_groups
    if config.methods or config.simple_match or config.oracle or shape is None or groups is None:
        return None, "the work is not known before the run"
    image, caption = map(operations, towers)
    score = groups * (shape[0] * image + shape[1] * caption)
    total = float(score)
    if config.ttm:
        settings, seeds = task_settings(registry, config, spec), len(config.run_seeds)
        step = 3 * groups * min(shape) * (image + caption)
        total += seeds * settings.iterations * (settings.epochs * step + score)
    return total / speed / 3600, ""


def _data(config: RunConfig, task: str, registry: Registry) -> tuple[str, tuple[str, ...]]:
    """What of a task's data is here, and the pages with terms of what is not."""
    file = find_task(registry, task)
    folder = data_folder(Path(config.data_dir) if config.data_dir else None)
    try:
        places, tags = data_locations(registry, file, folder)
        needs = [*((places[0].needs or ()) if places else ()), *tags]
        if any(place.is_here for place in places):
            return "data here", ()
        sizes = [getattr(getattr(need, "origin_of", None), "bytes", None) for need in needs if need.missing()]
        pages = dict.fromkeys(need.origin for place in places for need in place.needs or () if need.missing())
    except TtmbenchError as error:
        return f"data unknown: {error}", ()
    known = sum(size for size in sizes if size)
    unsized = f" ({file.spec.images_needed})" if file.spec.images_needed and None in sizes else ""
    more = " and more" if known and None in sizes else ""
    words = f"data {amount(known) if known else 'of unknown size'}{more} to download{unsized}"
    return words, tuple(pages) if file.spec.gated else ()
