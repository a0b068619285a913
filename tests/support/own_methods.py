"""Test-time methods of a few lines, as a plugin brings them."""

from __future__ import annotations

import torch

from ttmbench.hookspecs import hookimpl
from ttmbench.types import MethodSpec

TURNS: list[list[int]] = []
"""Groups of each turn of `drift`, in the order in which they were trained on."""
STOP_AFTER: list[int] = []
"""If set: turns after which `drift` is interrupted."""


def doubled(task, *, factor: float = 2.0):
    """The scores, times a factor: no decision changes."""
    return task.scores * factor


def first_is_best(task):
    """Thinks that caption i belongs to image i: right only by luck, since captions come shuffled."""
    return torch.eye(task.scores.shape[1], task.scores.shape[2]).expand(task.scores.shape)


def row_is_best(task):
    """As `first_is_best`, with captions in the order of their numbers among the task's, and writes to its features."""
    task.all_images.zero_()
    order = task.caption_rows.argsort(dim=1).argsort(dim=1)
    return -(order[:, None] - torch.arange(task.scores.shape[1])[:, None]).abs().float()


def centred(task, *, strength: float = 0.5):
    """Features without a part of their mean."""
    images, captions = (side - strength * side.mean(0) for side in (task.all_images, task.all_captions))
    return task.logits(images[task.image_rows], captions[task.caption_rows])


def not_a_number(task):
    """Gives one group no score."""
    scores = task.scores.clone()
    scores[2] = torch.nan
    return scores


def wrong_shape(task):
    """Forgets a caption."""
    return task.scores[:, :, :1]


def drift(task, *, lr: float = 1e-2, images: int = 8, memory: float = 0.9):
    """Entropy minimisation along the stream (or twice on all groups), with a moving mean of the loss that scales it."""
    optimizer = task.optimizer(torch.optim.Adam(task.train("all"), lr=lr))
    for batch in task.stream(images=images) if images else task.iterations(2):
        TURNS.append(batch.groups.tolist())
        scores = batch.logits()
        logs = scores.log_softmax(dim=-1)
        loss = -(logs.exp() * logs).sum(dim=-1).mean()
        before = task.state.get("mean", loss.detach())
        task.state["mean"] = memory * before + (1 - memory) * loss.detach()
        optimizer.zero_grad()
        (loss * task.state["mean"]).backward()
        optimizer.step()
        yield batch.step(scores, loss)
        if STOP_AFTER and len(TURNS) == STOP_AFTER[0]:
            raise KeyboardInterrupt


def episode(task, *, lr: float = 1e-2):
    """One step on each group, from the model as it came."""
    optimizer = task.optimizer(torch.optim.Adam(task.train("all"), lr=lr))
    for batch in task.stream(images=1):
        loss = -batch.logits().amax(dim=-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            yield batch.step(batch.logits(), loss)


def returns_a_list(task):
    """Needs gradients, and is not a generator."""
    return [task.scores]


HERE = "support.own_methods"
FEATURES = {"needs": ("features", "references"), "scope": "task"}
TRAINS = {"needs": ("gradients",), "scope": "stream", "reset": "never"}


@hookimpl
def ttmbench_register_methods():
    """All of them."""
    return [
        *(MethodSpec(name, f"{HERE}:{name}") for name in ("doubled", "first_is_best", "not_a_number", "wrong_shape")),
        MethodSpec("centred", f"{HERE}:centred", **FEATURES),
        MethodSpec("row_is_best", f"{HERE}:row_is_best", needs=("features",)),
        MethodSpec("drift", f"{HERE}:drift", **TRAINS, order_dependent=True),
        MethodSpec("episode", f"{HERE}:episode", needs=("gradients",), reset="group"),
        MethodSpec("returns_a_list", f"{HERE}:returns_a_list", **TRAINS),
    ]
