"""Counts what a training step asks of a GPU, on the stand-in of the tests: kernels, bytes that are sent, waits.

    python benchmarks/launches.py              # SigLIP B/16 and CLIP B/32, 50 groups in a batch

The models have the real shapes and no weights, so this takes a minute and no GPU. It is compared with
`straightforward.py`, which sends float32 images in every step, as the authors' code does.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from material import clip_config, image_processor, siglip_config, word_tokenizer
from straightforward import Clock, Settings, Straightforward
from transformers import AutoModel, PretrainedConfig

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.stand_in_gpu import Gpu, stand_in_gpu

from ttmbench.config import TTMConfig
from ttmbench.data.rendered.scenes import make_groups
from ttmbench.model_adapters import hf
from ttmbench.scoring.inputs import Prepared, Rows
from ttmbench.ttm.finetune import TrainingPairs, finetune, make_optimizer

SHAPES: dict[str, Callable[[int], PretrainedConfig]] = {
    "SigLIP B/16": lambda layers: siglip_config(768, layers),
    "CLIP B/32": lambda layers: clip_config(768, layers, words=49408, text_width=512),
}
Epoch = Callable[[int], object]
"""Trains an epoch of so many steps."""


def counts_of_a_step(gpu: Gpu, epoch: Epoch) -> dict[str, int]:
    """What an epoch of two steps asks beyond one of one step."""
    found = []
    for steps in (1, 1, 2):  # the first makes the optimizer's state
        gpu.reset()
        epoch(steps)
        of_weights = sum(count for count in gpu.casts.values()) if hasattr(gpu, "casts") else 0
        found.append((gpu.launches, of_weights, sum(gpu.uploads), gpu.waits))
    names = ("launches", "casts of weights", "bytes sent", "waits")
    return {name: more - fewer for name, more, fewer in zip(names, found[2], found[1], strict=True)}


def package_step(config: PretrainedConfig, dtype: str, batch: int) -> dict[str, int]:
    """Of this package."""
    side, tokenizer = config.vision_config.image_size, word_tokenizer(config)
    groups = make_groups("color", 2 * batch, 0)
    rows = np.arange(2 * len(groups)).reshape(-1, 2)
    with stand_in_gpu() as gpu:
        parts = SimpleNamespace(tokenizer=tokenizer, image_processor=image_processor(config))
        with mock.patch("ttmbench.model_adapters.hf.digest_of_weights", lambda *_: "none"):
            adapter = hf.wrap(shape_of(config), parts, device="cuda", dtype=dtype, compile=False)
        captions = adapter.prepare_captions([caption for group in groups for caption in group.captions])
        pixels = torch.empty(2 * len(groups), 3, side, side, dtype=torch.uint8, device="meta").to("cuda")
        prepared = Prepared({"pixel_values": pixels}, captions, Rows(rows, rows))
        settings = TTMConfig(epochs=1)
        optimizer = make_optimizer(adapter, settings)

        def epoch(steps: int) -> None:
            pairs, rng = TrainingPairs(rows[: steps * batch], rows[: steps * batch]), np.random.default_rng(0)
            options: Any = {"config": settings, "learning_rate": 1e-5, "batch": batch, "rng": rng}
            finetune(adapter, prepared, pairs, optimizer, **options)

        return counts_of_a_step(gpu, epoch)


class _WithoutFiles(Straightforward):
    """The straightforward version with images of no file."""

    def __init__(self, config: PretrainedConfig, batch: int) -> None:
        self.device, self.workers, self.clock = "cuda", 0, Clock()
        self.model, self.tokenizer = shape_of(config).to("cuda"), word_tokenizer(config)
        self.side = config.vision_config.image_size
        self.captions = [group.captions for group in make_groups("color", 2 * batch, 0)]

    def preprocess(self, groups: Any) -> torch.Tensor:
        """Pixels without numbers."""
        return torch.empty(2 * len(groups), 3, self.side, self.side, device="meta")


def straightforward_step(config: PretrainedConfig, batch: int) -> dict[str, int]:
    """Of the version that is written as the paper's algorithm reads."""
    with stand_in_gpu() as gpu:
        loop = _WithoutFiles(config, batch)

        def epoch(steps: int) -> None:
            selected = range(steps * batch)
            loop.finetune(selected, [(0, 1)] * len(selected), Settings(1, 1, batch, 1e-5, 0), 1)

        return counts_of_a_step(gpu, epoch)


def shape_of(config: PretrainedConfig) -> Any:
    """A model without numbers."""
    with torch.device("meta"):
        return AutoModel.from_config(config)


def main() -> None:
    """Counts each version of each shape and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--batch", type=int, default=50, help="groups in a batch")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--output", type=Path, help="JSON file")
    options = parser.parse_args()
    report: dict[str, dict[str, dict[str, int]]] = {}
    for name, shape in SHAPES.items():
        config = shape(options.layers)
        report[name] = {"straightforward, fp32": straightforward_step(config, options.batch)}
        for dtype in ("fp32", "bf16"):
            report[name][f"package, {dtype}"] = package_step(config, dtype, options.batch)
    columns = list(next(iter(next(iter(report.values())).values())))
    print("|".join(["", " a step of ", *(f" {column} " for column in columns), ""]))
    print("|".join(["", "---", *("---:" for _ in columns), ""]))
    for name, versions in report.items():
        for version, counts in versions.items():
            print("|".join(["", f" {name}: {version} ", *(f" {counts[column]:,} " for column in columns), ""]))
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
