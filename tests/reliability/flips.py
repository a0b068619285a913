"""Flips single bits of checkpoints of the test-time stage, headers first: none may be read as if it were whole.

An iteration's number, a threshold, a loss: what a header holds is as much a number of the run as a weight is.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
import torch
from kills import report

from ttmbench.ttm.algorithm import Step
from ttmbench.ttm.checkpoint import SeedCheckpoint, TaskCheckpoint
from ttmbench.ttm.trainer import TrainingState
from ttmbench.types import Scores


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--flips", type=int, default=10_000)


def main(options: argparse.Namespace) -> int:
    found = flip(options.flips, options.seed)
    report(found, f"checkpoints of TTM with a flipped bit (seed {options.seed})", options.json)
    return int(bool(found["header_accepted"] or found["tensors_accepted"]))


def flip(count: int, seed: int) -> dict[str, int]:
    """Flips ``count`` bits of headers and a tenth as many of tensors, each in a whole copy of all files.

    Returns:
        Flips of each kind, and how many of them were read all the same.
    """
    rng = np.random.RandomState(seed)
    found = {"header": 0, "header_accepted": 0, "tensors": 0, "tensors_accepted": 0}
    with tempfile.TemporaryDirectory() as place:
        kept = make_checkpoint(Path(place), rng)
        files = {path: path.read_bytes() for path in sorted(Path(place).rglob("*.safetensors"))}
        for number in range(count + count // 10):
            path = list(files)[number % len(files)]
            content = bytearray(files[path])
            header = 8 + int.from_bytes(content[:8], "little")
            kind = "header" if number < count else "tensors"
            low, high = (0, header) if kind == "header" else (header, len(content))
            content[rng.randint(low, high)] ^= 1 << rng.randint(8)
            for other, whole in files.items():
                other.parent.mkdir(parents=True, exist_ok=True)
                other.write_bytes(bytes(content) if other == path else whole)
            found[kind] += 1
            with redirect_stderr(io.StringIO()):  # each says that its seed starts again
                found[f"{kind}_accepted"] += bool(kept().read().steps)
    return found


def make_checkpoint(place: Path, rng: np.random.RandomState) -> Callable[[], SeedCheckpoint]:
    """Two iterations of a seed on disk; returns what opens them as a run does."""
    scores = Scores(rng.rand(3, 2, 2).astype(np.float32))

    def opened() -> SeedCheckpoint:
        return TaskCheckpoint(place / "task", "data", "run").seed("ttm", 0, scores)

    captions, flags = np.array([[0, 1], [1, 0], [0, 1]]), np.array([True, False, True])
    for number in (1, 2):
        step = Step(number, 0.5 / number, captions, flags, ~flags, (0.7, 0.6), 1e-5, scores, 1.5)
        state = TrainingState(number, scores, {"weight": torch.arange(4.0)}, (), {"cpu": torch.arange(9)})
        opened().keep(step, state)
    assert len(opened().read().steps) == 2
    return opened
