"""Times what the cache of scores saves, and costs, and what `Evaluator` adds to the forward pass of its model.

    python benchmarks/score.py

Model (a random SigLIP of 224 pixels) and images (400 groups of 512 pixels, as JPEG) of the first are made here; the
second are tiny-clip and shapes_color. Results are ratios of two times of one run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from material import make_siglip, make_task
from transformers.utils import logging

import ttmbench
from ttmbench.model_adapters import hf

TO_FIRST_SCORE = ("load", "prepare")


def beside_forward_pass(limit: int | None, calls: int = 20) -> float:
    """Median time of a call of `Evaluator` after the first, as a multiple of the forward pass in it."""
    model: Any = hf.load(pretrained="tiny_clip", device="cpu")
    evaluator, towers, seconds = ttmbench.Evaluator("shapes_color", limit=limit), model._features, [0.0]

    def timed(*given: Any) -> torch.Tensor:
        began = time.perf_counter()
        features = towers(*given)
        seconds[-1] += time.perf_counter() - began
        return features

    model._features, ratios = timed, list[float]()
    for _ in range(calls + 1):
        began = time.perf_counter()
        evaluator(model)
        ratios.append((time.perf_counter() - began) / seconds[-1])
        seconds.append(0.0)
    return statistics.median(ratios[1:])


def main() -> None:
    """Makes the material, runs the task four times, prints the table and, on request, writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--groups", type=int, help="of the first (400) and of the second (all)")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--output", type=Path, help="also write the report as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task = make_task(folder, options.groups or 400, "jpeg")
        make_siglip(folder / "one", 64, options.layers)
        how, runs = {"model_args": {"pretrained": str(folder / "one")}, "device": "cpu", "bootstrap_iters": 0}, {}

        def run(label: str, store: str) -> Any:
            result = ttmbench.simple_evaluate("hf", str(task), use_cache=store, **how)
            seconds = result["timing"]["timed"]
            runs[label] = {
                "to_first_score": sum(seconds.get(step, 0.0) for step in TO_FIRST_SCORE),
                "total": sum(seconds.values()),
            }
            return result.scores["timed"]["none"][0].groups

        store = str(folder / "store")
        run("warming up", "off")
        plain = run("off", "off")
        first = run("first", store)
        again = run("again", store)
    off = runs["off"]
    report = {
        "options": {name: value for name, value in vars(options).items() if name != "output"},
        "same_scores": bool(np.array_equal(plain, first) and np.array_equal(plain, again)),
        "seconds": runs,
        "ratios": {
            "first run, to its first score": off["to_first_score"] / runs["first"]["to_first_score"],
            "first run, all": off["total"] / runs["first"]["total"],
            "same model again, all": off["total"] / runs["again"]["total"],
        },
        "call": beside_forward_pass(options.groups),
    }
    for label, ratio in report["ratios"].items():
        print(f"{label:<36}  {ratio:5.2f} times as fast as without the cache")
    print(f"same scores: {report['same_scores']}; a call of Evaluator: {report['call']:.2f} times the forward pass")
    if options.output:
        options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
