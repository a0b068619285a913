"""Whole processes timed against each other: the package's command line and `straightforward.py`, imports and all."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from straightforward import Settings


def compare_processes(model: Path, task: Path, settings: Settings, options: argparse.Namespace) -> dict:
    """Runs both as they are started from a shell, in turns; the fastest of each counts.

    Args:
        model: folder of a model.
        task: file of a task.
        settings: of both.
        options: ``dtype``, ``repeats`` and ``threads``.

    Returns:
        Seconds, memory and ratios, by dtype; they are printed too.
    """
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
    best: dict[str, dict[str, float]] = {}
    for _ in range(options.repeats):
        for name, command in commands.items():
            measured = _timed(command, options.threads)
            if name not in best or measured["seconds"] < best[name]["seconds"]:
                best[name] = measured
    print(f"{'process':<18}{'seconds':>10}{'ratio':>8}{'of processor':>14}{'ratio':>8}{'MB at most':>12}")
    for name, measured in best.items():
        for kind, ratio in (("seconds", "ratio"), ("processor_seconds", "processor_ratio")):
            measured[ratio] = best["straightforward"][kind] / measured[kind]
        print(
            f"{name:<18}{measured['seconds']:>10.2f}{measured['ratio']:>8.2f}{measured['processor_seconds']:>14.2f}"
            f"{measured['processor_ratio']:>8.2f}{measured['megabytes']:>12.0f}"
        )
    return {"processes": best}


def _timed(command: list[str], threads: int) -> dict[str, float]:
    """Seconds from start to end, those of the processor, and the most memory in megabytes."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile() as errors:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)  # it ended, although nobody waited by its own method
        if status:
            errors.seek(0)
            raise SystemExit(f"{command[1:4]} failed: {errors.read().decode()[-500:]}")
    worked = usage.ru_utime + usage.ru_stime
    return {"seconds": seconds, "processor_seconds": worked, "megabytes": usage.ru_maxrss / 1024}
