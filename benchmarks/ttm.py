"""Times one TTM run against a straightforward version of Algorithm 1: same model, same data, same numbers out.

    python benchmarks/ttm.py
    python benchmarks/ttm.py --processes --dtype fp32 bf16 --width 256 --words 16000 --groups 100 --iterations 2

Model (a random CLIP of 6 layers and 224 pixels) and images (200 groups of 512 pixels) are made here. The result is
the ratio of two times of one run, stage by stage; with ``--processes``, of two processes from their start to their end,
imports and all. ``--dtype`` is of the package: the straightforward version stays in float32.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from material import FORMATS, make_clip, make_groups_of_files, make_task
from straightforward import Clock, Iteration, Settings, Straightforward
from transformers.utils import logging

from ttmbench.config import TTMConfig
from ttmbench.methods.model_task import ModelTask
from ttmbench.methods.training import Iteration as Step
from ttmbench.methods.ttm import DEFAULT_PARTS, ttm
from ttmbench.metrics import group_match
from ttmbench.model_adapters import hf
from ttmbench.schedules import SCHEDULES
from ttmbench.scoring.batches import BlockStore
from ttmbench.scoring.dual_encoder import PreparedTask
from ttmbench.scoring.inputs import Inputs, prepare
from ttmbench.types import Group, Scores

STAGES = ("prepare", "score", "match", "train")


@dataclass(frozen=True)
class TimedStage(PreparedTask):
    """A stage whose scoring passes are timed."""

    clock: Clock

    def score(self, blocks: BlockStore | None = None) -> Scores:
        """One scoring pass."""
        with self.clock.stage("score"):
            return super().score(blocks)


def run_package(
    model: Path, groups: list[Group], settings: Settings, dtype: str
) -> tuple[list[Iteration], Clock, float]:
    """The package's TTM, from files to the last iteration."""
    adapter = hf.load(pretrained=str(model), device="cpu", dtype=dtype)
    clock, started = Clock(), time.perf_counter()
    with clock.stage("prepare"):
        prepared = prepare(adapter, Inputs(groups))
    stage = TimedStage(adapter, prepared, 64, False, False, clock)
    config = TTMConfig(
        iterations=settings.iterations,
        epochs=settings.epochs,
        batch_groups=settings.batch,
        lr=settings.learning_rate,
    )
    steps = list(ttm(ModelTask(stage, stage.score(), config, settings.seed, SCHEDULES[0], DEFAULT_PARTS)))
    total = time.perf_counter() - started
    clock.seconds["train"] = total - sum(clock.seconds.values())  # matching, a millisecond, is within it
    return [_iteration(step) for step in steps], clock, total


def _iteration(step: Step) -> Iteration:
    labels = [tuple(row) for row in step.captions[step.selected].tolist()]
    right = float(group_match(step.scores.groups).mean())
    return Iteration(step.threshold, np.flatnonzero(step.selected).tolist(), labels, list(step.loss), right)


def run_straightforward(model: Path, groups: list[Group], settings: Settings) -> tuple[list[Iteration], Clock, float]:
    """Algorithm 1 as it reads."""
    images = [[Path(image.name) for image in group.images] for group in groups]
    straight = Straightforward(model, images, [group.captions for group in groups])
    started = time.perf_counter()
    history = straight.run(settings)
    return history, straight.clock, time.perf_counter() - started


def compare(left: list[Iteration], right: list[Iteration]) -> dict:
    """How far apart two runs are: equal choices, and the largest differences of numbers."""
    return {
        "selected_equal": all(a.selected == b.selected for a, b in zip(left, right, strict=True)),
        "pseudo_labels_equal": all(a.labels == b.labels for a, b in zip(left, right, strict=True)),
        "threshold_difference": max(abs(a.threshold - b.threshold) for a, b in zip(left, right, strict=True)),
        "loss_difference": max(
            abs(x - y) for a, b in zip(left, right, strict=True) for x, y in zip(a.losses, b.losses, strict=True)
        ),
        "group_match_equal": all(a.group_match == b.group_match for a, b in zip(left, right, strict=True)),
    }


def compare_stages(model: Path, groups: list[Group], settings: Settings, dtype: str, repeats: int) -> dict:
    """Runs both versions in this process, prints the table of stages and returns what it shows."""
    # In turns, and the fastest of each: another program on the machine slows down whatever runs just then.
    turns = [
        (run_package(model, groups, settings, dtype), run_straightforward(model, groups, settings))
        for _ in range(repeats)
    ]
    ours, our_clock, our_seconds = min((turn[0] for turn in turns), key=lambda run: run[2])
    theirs, their_clock, their_seconds = min((turn[1] for turn in turns), key=lambda run: run[2])
    seconds = {
        "package": {**our_clock.seconds, "total": our_seconds},
        "straightforward": {**their_clock.seconds, "total": their_seconds},
    }
    print(f"{dtype + ', seconds':<14}{'package':>12}{'straightforward':>18}{'ratio':>8}")
    for stage in (*STAGES, "total"):
        mine, other = (seconds[which].get(stage, 0.0) for which in ("package", "straightforward"))
        ratio = f"{other / mine:.1f}" if mine > 0.005 else "-"
        print(f"{stage:<14}{mine:>12.2f}{other:>18.2f}{ratio:>8}")
    same = compare(ours, theirs)
    print(f"same numbers: {json.dumps(same)}")
    return {"seconds": seconds, "times_faster": their_seconds / our_seconds, "same_numbers": same}


def compare_processes(model: Path, task: Path, settings: Settings, options: argparse.Namespace) -> dict:
    """Runs both as from a shell, in turns; seconds (the fastest of each counts) and ratios by dtype."""
    here = Path(__file__).parent
    plain = [sys.executable, str(here / "straightforward.py"), str(model), str(task.parent / "rows.jsonl")]
    commands = {"straightforward": [*plain, json.dumps(asdict(settings))]}
    for dtype in options.dtype:
        arguments = {
            "iterations": settings.iterations,
            "epochs": settings.epochs,
            "batch_groups": settings.batch,
            "lr": settings.learning_rate,
        }
        ttm_args = ",".join(f"{name}={value}" for name, value in arguments.items())
        commands[dtype] = [sys.executable, "-m", "ttmbench", "--model", "hf", "--model_args", f"pretrained={model}"]
        commands[dtype] += ["--tasks", str(task), "--ttm", "--ttm_args", ttm_args, "--seeds", str(settings.seed)]
        commands[dtype] += ["--device", "cpu", "--dtype", dtype, "--bootstrap_iters", "0", "--use_cache", "off"]
    turns = [{name: _timed(each, options.threads) for name, each in commands.items()} for _ in range(options.repeats)]
    best = {name: min(turn[name] for turn in turns) for name in commands}
    print(f"{'process':<18}{'seconds':>10}{'ratio':>8}")
    for name, seconds in best.items():
        print(f"{name:<18}{seconds:>10.2f}{best['straightforward'] / seconds:>8.2f}")
    return {"processes": best}


def _timed(command: list[str], threads: int) -> float:
    """Seconds from start to end."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command[1:4]} failed: {done.stderr[-500:]}")
    return time.perf_counter() - started


def main() -> None:
    """Makes the material, runs both versions, prints the table and, on request, writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--width", type=int, default=64, help="hidden size of both towers")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--words", type=int, default=2000, help="size of the vocabulary")
    parser.add_argument("--dtype", nargs="+", choices=("fp32", "bf16"), default=["fp32"], help="of the package")
    parser.add_argument("--processes", action="store_true", help="time whole processes, each with its imports")
    parser.add_argument("--images", choices=FORMATS, default="png")
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=50, help="groups in a batch")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--repeats", type=int, default=3, help="runs of each version; the fastest counts")
    parser.add_argument("--output", type=Path, help="JSON file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    settings = Settings(options.iterations, options.epochs, options.batch, learning_rate=1e-4, seed=0)
    report: dict = {
        "settings": {name: value for name, value in vars(options).items() if name != "output"},
        "torch": torch.__version__,
    }
    with tempfile.TemporaryDirectory() as folder:
        model, images = Path(folder) / "model", Path(folder) / "images"
        images.mkdir()
        make_clip(model, options.width, options.layers, options.words)
        if options.processes:
            task = make_task(images, options.groups, options.images)
            report |= compare_processes(model, task, settings, options)
        else:
            groups = make_groups_of_files(images, options.groups, options.images)
            for dtype in options.dtype:
                report[dtype] = compare_stages(model, groups, settings, dtype, options.repeats)
    if options.output is not None:
        options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
