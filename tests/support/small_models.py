"""Models and stores of a few lines: one that counts what it scores, one of two linear layers, blocks in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import ttmbench
from ttmbench.config import TTMConfig
from ttmbench.methods.model_task import ModelTask
from ttmbench.methods.overfit import overfit as overfitting
from ttmbench.methods.runner import SeedCheckpoint
from ttmbench.methods.training import Iteration
from ttmbench.methods.ttm import DEFAULT_PARTS, ttm
from ttmbench.model import DualEncoder, PairScorer
from ttmbench.schedules import SCHEDULES
from ttmbench.scoring.dual_encoder import PreparedTask
from ttmbench.scoring.inputs import Prepared, Rows

USUAL = SCHEDULES[0], DEFAULT_PARTS
QUICK = {"limit": 16, "device": "cpu", "bootstrap_iters": 0}


class Killed(BaseException):
    """Ends a run the hard way: nothing catches it but what catches a Ctrl-C."""


def killed_at_its_first_file(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> None:
    """Runs, and kills the run right after the first checkpoint that it writes."""
    keep = SeedCheckpoint.keep

    def killed(self, *given):
        keep(self, *given)
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(SeedCheckpoint, "keep", killed)
        run()


class Counting(PairScorer):
    """A pair scorer that writes a line into a file for every pair that it scores."""

    def __init__(self, log: Path, seconds: float = 0.0, **declared) -> None:
        self.log, self.seconds, self.declared = log, seconds, declared

    def fingerprint(self):
        return {"weights": "none", **self.declared}

    def score_pairs(self, images, captions):
        with self.log.open("a") as file:
            for _ in captions:
                file.write("x\n")
        time.sleep(self.seconds)
        light = [np.asarray(image, dtype=np.float64).mean() for image in images]
        found = [(one * len(caption) + ord(caption[-1])) % 17 for one, caption in zip(light, captions, strict=True)]
        return np.array(found, dtype=np.float32)

    @property
    def calls(self) -> int:
        return len(self.log.read_text().split()) if self.log.exists() else 0


def run(adapter, tasks="shapes_color", **settings):
    return ttmbench.simple_evaluate(adapter, tasks, **{**QUICK, **settings})


class Towers(DualEncoder, torch.nn.Module):
    """Two linear layers, dropout in training, and what each batch held."""

    trains_in_parts = True

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.image, self.caption = torch.nn.Linear(4, 5), torch.nn.Linear(4, 5)
        self.drop, self.seen = torch.nn.Dropout(dropout), []

    def fingerprint(self):
        return "towers"

    def prepare_images(self, images): ...

    def prepare_captions(self, captions): ...

    def encode_images(self, prepared):
        return self.image(prepared).detach()

    def encode_captions(self, prepared):
        return self.caption(prepared).detach()

    def logits(self, images, captions):
        return (images @ captions.T).detach()

    def train_images(self, prepared):
        return self.drop(self.image(prepared))

    def train_captions(self, prepared):
        return self.caption(prepared)

    def loss_of(self, images, captions):
        scores, own = images @ captions.T, torch.arange(len(images))
        return torch.nn.functional.cross_entropy(scores, own)

    def matching_loss(self, images, captions):
        self.seen.append(len(images))
        return self.loss_of(self.train_images(images), self.train_captions(captions))


def stage_of(groups, images=2, captions=2, is_global=False, model=None, size=64, enlarged=None) -> PreparedTask:
    rng = np.random.default_rng(1)
    sides = [torch.from_numpy(rng.normal(size=(groups * each, 4)).astype(np.float32)) for each in (images, captions)]
    rows = Rows(*(np.arange(groups * each).reshape(groups, each) for each in (images, captions)))
    prepared = Prepared(*sides, rows, enlarged)
    return PreparedTask(model or Towers(), prepared, size, is_global, is_global)


def task_of(stage, scores=None, config=None, seed=0, learning_rate=None, **more) -> ModelTask:
    """A task whose model is trained as a whole."""
    config = (config or TTMConfig()).model_copy(update={} if learning_rate is None else {"lr": learning_rate})
    given = {"schedule": USUAL[0], "parts": USUAL[1], **more}
    return ModelTask(stage, scores or stage.score(), config, seed, **given)


def adapt(stage, scores, *, method=ttm, supervision=None, keep=None, **settings) -> Iterator[Iteration]:
    """The iterations of TTM or another method, with what is kept after each."""
    task = task_of(stage, scores, **settings)
    for step in method(task) if supervision is None else method(task, supervision):
        if keep is not None:
            keep(task.snapshot())
        yield step
    task.finish()


def overfit(stage, scores, **settings) -> Iterator[Iteration]:
    """The iterations of the overfitting step."""
    return adapt(stage, scores, method=overfitting, **settings)


class MemoryBlocks(dict[int, np.ndarray]):
    """A `ttmbench.scoring.batches.BlockStore`."""

    share = slice(None)

    def put(self, block: int, values: np.ndarray) -> None:
        """Keeps a block."""
        self[block] = values
