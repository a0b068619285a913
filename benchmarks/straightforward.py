"""TTM written down as Algorithm 1 reads (arXiv:2510.07632), in plain transformers and torch: what speed is compared to.

Images are opened and preprocessed whenever they are needed, every batch is scored against itself, evaluation and
matching each run the model, captions are padded to the model's maximum. It shares no code with the package; only the
random streams of the batches are the same, so that both give the same numbers.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer


@dataclass
class Clock:
    """Seconds spent in each stage."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the time inside to a stage."""
        started = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - started


@dataclass(frozen=True)
class Settings:
    """What both versions are run with."""

    iterations: int
    epochs: int
    batch: int
    learning_rate: float
    seed: int
    coverage: float = 0.25


@dataclass(frozen=True)
class Iteration:
    """What an iteration did, for comparing two versions."""

    threshold: float
    selected: list[int]
    labels: list[tuple[int, ...]]
    losses: list[float]
    group_match: float


class Straightforward:
    """A model and a task's files, 2x2 groups, and nothing kept from one step to the next."""

    def __init__(self, folder: Path, images: Sequence[Sequence[Path]], captions: Sequence[Sequence[str]]) -> None:
        self.model = AutoModel.from_pretrained(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.processor = AutoImageProcessor.from_pretrained(folder)
        self.images, self.captions = images, captions
        self.clock = Clock()

    def run(self, settings: Settings) -> list[Iteration]:
        """Algorithm 1."""
        history, start = [], None
        for t in range(1, settings.iterations + 1):
            labels, margins = self.match(settings.batch)
            if start is None:
                start = sorted(margins, reverse=True)[math.ceil(settings.coverage * len(margins)) - 1]
            threshold = start * (1 - (t - 1) / max(1, settings.iterations - 1)) if settings.iterations > 1 else start
            selected = [group for group, margin in enumerate(margins) if margin >= threshold]
            losses = self.finetune(selected, labels, settings, t)
            accuracy = self.evaluate(settings.batch)
            history.append(Iteration(threshold, selected, [labels[g] for g in selected], losses, accuracy))
        return history

    def match(self, batch: int) -> tuple[list[tuple[int, ...]], list[float]]:
        """Best matching and margin of every group."""
        labels, margins = [], []
        for scores in self.group_scores(batch):
            with self.clock.stage("match"):
                totals = sorted(
                    ((sum(scores[i, c] for i, c in enumerate(p)), p) for p in permutations(range(len(scores)))),
                    reverse=True,
                )
            labels.append(totals[0][1])
            margins.append(float(totals[0][0] - totals[1][0]))
        return labels, margins

    def evaluate(self, batch: int) -> float:
        """Share of groups whose true matching is the best one."""
        right = [s[0, 0] + s[1, 1] > s[0, 1] + s[1, 0] for s in self.group_scores(batch)]
        return sum(right) / len(right)

    def group_scores(self, batch: int) -> Iterator[np.ndarray]:
        """Each batch scored against itself, of which only the blocks inside groups are used."""
        self.model.eval()
        starts = range(0, len(self.images), batch)
        for groups in (range(start, min(start + batch, len(self.images))) for start in starts):
            pixels = self.preprocess(groups)
            tokens = self.tokenise([caption for g in groups for caption in self.captions[g]])
            with self.clock.stage("score"), torch.no_grad():
                logits = self.model(pixel_values=pixels, **tokens).logits_per_image.cpu().numpy().astype(np.float64)
            for index in range(len(groups)):
                block = slice(2 * index, 2 * index + 2)
                yield logits[block, block]

    def finetune(
        self, selected: Sequence[int], labels: Sequence[tuple[int, ...]], settings: Settings, iteration: int
    ) -> list[float]:
        """AdamW with the cosine of one iteration; mean loss of every epoch."""
        optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.999), weight_decay=0.05
        )
        rng = np.random.default_rng([settings.seed, iteration])
        per_epoch = math.ceil(len(selected) / settings.batch)
        losses = []
        self.model.train()
        for epoch in range(settings.epochs):
            order, total = rng.permutation(len(selected)), 0.0
            starts = range(0, len(selected), settings.batch)
            for b, start in enumerate(starts):
                part = [selected[i] for i in order[start : start + settings.batch]]
                pixels = self.preprocess(part)
                done = (epoch * per_epoch + b) / (per_epoch * settings.epochs)
                optimizer.param_groups[0]["lr"] = (
                    settings.learning_rate * 0.95 ** (iteration - 1) * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))
                )
                tokens = self.tokenise([self.captions[g][c] for g in part for c in labels[g]])
                with self.clock.stage("train"):
                    loss = self.model(pixel_values=pixels, **tokens, return_loss=True).loss
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    total += float(loss.detach()) * len(part)
            losses.append(total / len(selected))
        return losses

    def preprocess(self, groups: Sequence[int]) -> torch.Tensor:
        """Opened, resized and normalised, each time."""
        with self.clock.stage("prepare"):
            images = [Image.open(path).convert("RGB") for g in groups for path in self.images[g]]
            pixels: torch.Tensor = self.processor(images=images, return_tensors="pt")["pixel_values"]
        return pixels

    def tokenise(self, captions: Sequence[str]) -> dict[str, torch.Tensor]:
        """Padded to the model's maximum."""
        with self.clock.stage("prepare"):
            length = self.model.config.text_config.max_position_embeddings
            tokens = self.tokenizer(list(captions), padding="max_length", max_length=length, return_tensors="pt")
            return dict(tokens)


def main() -> None:
    """One run as a process of its own: folder of the model, file of rows, settings as JSON."""
    folder, rows, settings = Path(sys.argv[1]), Path(sys.argv[2]), Settings(**json.loads(sys.argv[3]))
    groups = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    images = [[rows.parent / group[f"image_{index}"] for index in (0, 1)] for group in groups]
    captions = [[group[f"caption_{index}"] for index in (0, 1)] for group in groups]
    history = Straightforward(folder, images, captions).run(settings)
    print(
        json.dumps({"losses": [step.losses for step in history], "group_match": [step.group_match for step in history]})
    )


if __name__ == "__main__":
    main()
