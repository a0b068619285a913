"""Times a training step and scoring on a processor against the matrix products of the same cores, in fp32 and bf16.

    python benchmarks/cpu.py
    python benchmarks/cpu.py --size vit-b32 --pairs 100 16 --steps 3

``small`` is a CLIP of 14.6 million parameters, ``vit-b32`` the architecture of CLIP ViT-B/32. The share of the peak are
the floating-point operations that torch counts, by the seconds and by what a product of two square matrices of 2048
rows reaches in the same run. ``--kernel sdpa`` runs transformers' own blocks instead. With ``--threads 1`` the time is
that of the processor, which other programs on the machine hardly change.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from material import make_clip
from torch.utils.flop_counter import FlopCounterMode
from transformers.utils import logging

from ttmbench.config import TTMConfig
from ttmbench.model_adapters import hf
from ttmbench.model_adapters._shared.precision import DTYPES, products
from ttmbench.scoring.dual_encoder import encode
from ttmbench.scoring.inputs import Prepared, Rows
from ttmbench.ttm.finetune import TrainingPairs, finetune, make_optimizer

SIZES = {"small": (256, 6, 16000, None), "vit-b32": (768, 12, 49408, (512, 12))}


def best_of(times: int, work: Callable[[], object]) -> float:
    """Seconds of the fastest of some runs; of the processor, if it is one thread that works."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds = []
    for _ in range(times):
        started = clock()
        work()
        seconds.append(clock() - started)
    return min(seconds)


def matrix_peak(dtype: str, side: int) -> float:
    """Floating-point operations a second of the product of two square matrices, as the package multiplies them."""
    one = torch.randn(side, side, dtype=DTYPES[dtype])
    with products(torch.device("cpu"), DTYPES[dtype]):
        return 2 * side**3 / best_of(5, lambda: one @ one)


def flops(model: Path, prepared: Prepared) -> tuple[int, int]:
    """Floating-point operations of a training step and of scoring; of the library's own blocks, which torch counts."""
    adapter = hf.load(pretrained=str(model), device="cpu", attn_implementation="eager")
    with FlopCounterMode(display=False) as training:
        adapter.matching_loss(prepared.images, prepared.captions).backward()
    with FlopCounterMode(display=False) as scoring:
        encode(adapter, prepared, 64)
    return training.get_total_flops(), scoring.get_total_flops()


def time_size(model: Path, pairs: int, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds and shares of the peak of both precisions, printed."""
    rows, rng = np.arange(pairs)[:, None], np.random.default_rng(0)
    found: dict[str, Any] = {}
    work: tuple[int, int] | None = None
    for dtype in options.dtypes:
        adapter = hf.load(pretrained=str(model), device="cpu", dtype=dtype, attn_implementation=options.kernel)
        words = sorted(word for word in adapter.tokenizer.get_vocab() if word.isalpha())
        captions = adapter.prepare_captions([" ".join(rng.choice(words, 9)) for _ in range(pairs)])
        images = {"pixel_values": torch.randint(0, 256, (pairs, 3, 224, 224), dtype=torch.uint8)}
        prepared = Prepared(images, captions, Rows(rows, rows))
        work = work or flops(model, prepared)
        optimizer, config = make_optimizer(adapter, TTMConfig()), TTMConfig(epochs=1)
        settings = {"config": config, "learning_rate": 1e-5, "batch": pairs}

        def step(adapter: Any = adapter, prepared: Any = prepared, optimizer: Any = optimizer) -> None:
            finetune(adapter, prepared, TrainingPairs(rows, rows), optimizer, **settings, rng=rng)  # noqa: B023

        step()
        seconds = {"step": best_of(options.steps, step)}
        seconds["score"] = best_of(options.steps, lambda: encode(adapter, prepared, 64))  # noqa: B023
        peak = matrix_peak(dtype, options.matrix)
        shares = {name: work[place] / seconds[name] / peak for place, name in enumerate(("step", "score"))}
        found[dtype] = {"seconds": seconds, "peak_flops": peak, "share_of_peak": shares}
    print(
        f"{options.size}, {pairs} pairs{'':<8}{'step, ms':>10}{'of peak':>9}{'score, ms':>11}{'of peak':>9}{'peak':>14}"
    )
    for dtype, one in found.items():
        seconds, shares = one["seconds"], one["share_of_peak"]
        print(
            f"  {dtype:<22}{seconds['step'] * 1e3:>10.0f}{shares['step']:>9.0%}{seconds['score'] * 1e3:>11.0f}"
            f"{shares['score']:>9.0%}{one['peak_flops'] / 1e9:>8.0f} GFLOP/s"
        )
    if len(found) == 2:
        ratios = {name: found["fp32"]["seconds"][name] / found["bf16"]["seconds"][name] for name in ("step", "score")}
        ratios["peak"] = found["bf16"]["peak_flops"] / found["fp32"]["peak_flops"]
        print("  bf16 is faster by" + "".join(f"  {name} {ratio:.2f}" for name, ratio in ratios.items()), flush=True)
        found["ratios"] = ratios
    return found


def main() -> None:
    """Makes the model, times each number of pairs, prints and, on request, writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--size", choices=sorted(SIZES), default="small")
    parser.add_argument("--pairs", type=int, nargs="+", default=[100])
    parser.add_argument("--dtypes", nargs="+", choices=("bf16", "fp32"), default=["fp32", "bf16"])
    parser.add_argument("--kernel", choices=("sdpa", "eager"), help="transformers' own blocks, with this attention")
    parser.add_argument("--steps", type=int, default=5, help="the fastest counts")
    parser.add_argument("--matrix", type=int, default=2048, help="side of the matrices whose product is the peak")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--output", type=Path, help="JSON file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    report: dict[str, Any] = {
        "settings": {name: value for name, value in vars(options).items() if name != "output"},
        "torch": torch.__version__,
        "runs": {},
    }
    with tempfile.TemporaryDirectory() as name:
        width, layers, words, text = SIZES[options.size]
        make_clip(Path(name), width, layers, words, text)
        for pairs in options.pairs:
            report["runs"][pairs] = time_size(Path(name), pairs, options)
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
