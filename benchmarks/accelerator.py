"""Times TTM on an accelerator: a SigLIP or CLIP with random weights.

    python benchmarks/accelerator.py                      # siglip-b16 on CUDA, fp32, tf32 and bf16
    python benchmarks/accelerator.py --dtypes bf16 --width 1024 --layers 24 --side 256          # siglip-l16
    python benchmarks/accelerator.py --model clip                                               # CLIP B/32
    python benchmarks/accelerator.py --device cpu --dtypes fp32 --width 64 --layers 1 --groups 8

Reports seconds, images a second in training, memory, and the share of what a large matrix product reaches on the same
device in the same precision. The file of ``--output`` is written after every run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from material import FORMATS, make_clip, make_groups_of_files, make_siglip
from torch.utils.flop_counter import FlopCounterMode
from transformers.utils import logging

from ttmbench.config import RunConfig, TTMConfig
from ttmbench.methods.model_task import ModelTask
from ttmbench.methods.ttm import DEFAULT_PARTS, ttm
from ttmbench.model_adapters import hf
from ttmbench.schedules import SCHEDULES
from ttmbench.scoring.dual_encoder import PreparedTask
from ttmbench.scoring.inputs import Inputs, images_on_device, prepare, take
from ttmbench.types import Group

RATE = 1e-5


def time_run(model: Path, groups: list[Group], dtype: str, options: argparse.Namespace) -> dict:
    """One TTM run: seconds by stage, images a second, share of the peak."""
    if options.device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    adapter = hf.load(pretrained=str(model), device=options.device, dtype=dtype)
    started = time.perf_counter()
    prepared = prepare(adapter, Inputs(groups))
    prepare_seconds, started = time.perf_counter() - started, time.perf_counter()
    stage = PreparedTask(adapter, images_on_device(adapter, prepared), 256, False, False)
    raw = stage.score()
    _wait(options.device)
    score_seconds = time.perf_counter() - started
    flops = flops_of_a_step(adapter, prepared, options.batch)
    config = TTMConfig(iterations=options.iterations, epochs=options.epochs, batch_groups=options.batch, lr=RATE)
    started = time.perf_counter()
    steps = list(ttm(ModelTask(stage, raw, config, 0, SCHEDULES[0], DEFAULT_PARTS)))
    _wait(options.device)
    seconds = time.perf_counter() - started
    on_cuda = options.device.startswith("cuda")
    images = 2 * options.epochs * sum(int(step.selected.sum()) for step in steps)
    peak = matrix_peak(options.device, dtype, options.matrix or (8192 if on_cuda else 1024))
    return {
        "prepare_seconds": prepare_seconds,
        "score_seconds": score_seconds,
        "ttm_seconds": seconds,
        "total_seconds": prepare_seconds + score_seconds + seconds,
        "trained_images": images,
        "images_per_second": images / seconds,
        "flops_per_trained_image": flops / (2 * options.batch),
        "peak_flops": peak,
        "gigabytes": torch.cuda.max_memory_allocated() / 1e9 if on_cuda else None,
        "share_of_peak": images / seconds * flops / (2 * options.batch) / peak,
    }


def flops_of_a_step(adapter: Any, prepared: Any, batch: int) -> float:
    """Floating-point operations of one forward and backward pass of a full batch, as torch counts them."""
    images = prepared.rows.images[:batch].reshape(-1)
    captions = prepared.rows.captions[:batch].reshape(-1)
    with FlopCounterMode(display=False) as counter:
        adapter.matching_loss(take(prepared.images, images), take(prepared.captions, captions)).backward()
    for parameter in adapter.parameters():
        parameter.grad = None
    return float(counter.get_total_flops()) * batch / min(batch, len(prepared.rows.images))


def matrix_peak(device: str, dtype: str, size: int) -> float:
    """Floating-point operations a second of the best of several products of square matrices."""
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    matrix = torch.randn(size, size, device=device, dtype=kind)
    best = np.inf
    for _ in range(10):
        _wait(device)
        started = time.perf_counter()
        matrix @ matrix
        _wait(device)
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def main() -> None:
    """Makes the material, runs each precision, prints and, on request, writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtypes", nargs="+", choices=("fp32", "tf32", "bf16"), default=["fp32", "tf32", "bf16"])
    parser.add_argument("--model", choices=("siglip", "clip"), default="siglip")
    parser.add_argument("--groups", type=int, default=400)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--side", type=int, default=224, help="of a SigLIP's image, in pixels")
    parser.add_argument("--images", choices=FORMATS, default="jpeg")
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=50, help="groups in a batch")
    parser.add_argument("--matrix", type=int, help="side of the matrices of the peak")
    parser.add_argument("--output", type=Path, help="JSON file")
    options = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    report: dict = {
        "settings": {name: value for name, value in vars(options).items() if name != "output"},
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU",
        "runs": {},
    }

    with tempfile.TemporaryDirectory() as folder:
        model, images = Path(folder) / "model", Path(folder) / "images"
        images.mkdir()
        if options.model == "clip":
            make_clip(model, options.width, options.layers, text_width=max(64, options.width * 2 // 3 // 64 * 64))
        else:
            make_siglip(model, options.width, options.layers, side=options.side)
        groups = make_groups_of_files(images, options.groups, options.images)
        for dtype in options.dtypes:
            settings = RunConfig(model="hf", tasks=["timed"], device=options.device, dtype=dtype)  # type: ignore[arg-type]
            with settings.arithmetic():
                report["runs"][dtype] = time_run(model, groups, dtype, options)
            print(f"{dtype}: {json.dumps(report['runs'][dtype])}", flush=True)
            if options.output is not None:
                options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
