"""Times how long commands and small runs take to start, beside the imports that they cannot do without.

    python benchmarks/startup.py

Every command is a process of its own. They take turns, round after round, so that a busy minute slows all of them; what
is printed are medians, and the medians of the ratios within a round. Models are random and small, made here.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from material import make_clip, make_siglip

RUN = ("--tasks", "shapes_color", "--limit", "4", "--device", "cpu")
CLASSES = "import torch, transformers; from transformers import {0}Model, {0}Processor"


def commands(folder: Path) -> dict[str, tuple[tuple[str, ...], str, int]]:
    """Name -> words behind ``python``, the name of what it is compared with, and its exit code."""
    ours, nothing = ("-m", "ttmbench"), "nothing"
    clip, siglip = ((*ours, "--model", "hf", "--model_args", f"pretrained={folder / name}") for name in MODELS)
    return {
        "nothing": (("-c", "pass"), nothing, 0),
        "imports of CLIP": (("-c", CLASSES.format("CLIP")), nothing, 0),
        "imports of SigLIP": (("-c", CLASSES.format("Siglip")), nothing, 0),
        "import ttmbench": (("-c", "import ttmbench"), nothing, 0),
        "--help": ((*ours, "--help"), nothing, 0),
        "ls tasks": ((*ours, "ls", "tasks"), nothing, 0),
        "wrong option": ((*ours, "--model", "tiny-clip", *RUN, "--nonsense"), nothing, 2),
        "wrong model": ((*ours, "--model", "nonsense", *RUN), nothing, 2),
        "wrong task": ((*ours, "--model", "tiny-clip", "--tasks", "nonsense"), nothing, 2),
        "run of tiny-clip": ((*ours, "--model", "tiny-clip", *RUN), "imports of CLIP", 0),
        "run of a CLIP": ((*clip, *RUN), "imports of CLIP", 0),
        "run of a SigLIP": ((*siglip, *RUN), "imports of SigLIP", 0),
    }


MODELS = {"clip": make_clip, "siglip": make_siglip}


def measure(words: tuple[str, ...], code: int, folder: Path) -> float:
    """Seconds on the clock, of one process."""
    environment, began = {**os.environ, "TTMBENCH_CACHE": "off", "HF_HUB_OFFLINE": "1"}, time.perf_counter()
    done = subprocess.run([sys.executable, *words], env=environment, cwd=folder, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode != code:
        sys.exit(f"{words}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return seconds


def main() -> None:
    """Makes the models, runs every command once to fill caches, then in turns, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, default=5, help="rounds that count")
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model, make in MODELS.items():
            make(folder / model, 64, 2)
        chosen = commands(folder)
        rounds = [
            {key: measure(words, code, folder) for key, (words, _, code) in chosen.items()} for _ in range(repeats + 1)
        ][1:]  # the first compiles modules and reads files into memory
    print(f"{'':20}{'seconds':>8}{'ratio':>8}  beside")
    for key, (_, beside, _) in chosen.items():
        ratio = statistics.median(one[key] / one[beside] for one in rounds)
        print(f"{key:20}{statistics.median(one[key] for one in rounds):8.2f}{ratio:8.2f}  {beside}")


if __name__ == "__main__":
    main()
