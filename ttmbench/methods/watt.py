"""WATT: pseudo-captions in several wordings, and the average of the weights trained with each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import torch
from pydantic import BeforeValidator, Field
from torch.nn.functional import normalize

from ttmbench.errors import UsageError
from ttmbench.methods.parameters import Train, trained_towers
from ttmbench.methods.task import Batch, MethodStep, TrainingTask
from ttmbench.scoring.inputs import unknown_wrappers

WRAPPERS = (
    "{}",
    "a photo of {}",
    "an image of {}",
    "a picture of {}",
    "a photo showing {}",
    "an image showing {}",
    "this is {}",
    "there is {}",
)
"""Words around a caption that do not change its meaning; the paper's templates are for class names."""


def separated(given: object) -> object:
    """Splits wrappers that are given as one string, separated by bars."""
    return tuple(given.split("|")) if isinstance(given, str) else given


Wrappers = Annotated[tuple[str, ...], BeforeValidator(separated), Field(min_length=1)]


def watt(
    task: TrainingTask,
    *,
    wrappers: Wrappers = WRAPPERS,
    variant: Literal["sequential", "parallel"] = "sequential",
    steps: Annotated[int, Field(ge=1)] = 2,
    rounds: Annotated[int, Field(ge=0)] = 5,
    temperature: Annotated[float, Field(gt=0)] = 0.01,
    train: Train = "norm_images",
    lr: Annotated[float, Field(gt=0)] = 1e-4,
    images: Annotated[int, Field(ge=1)] = 128,
) -> Iterator[MethodStep]:
    """Weight averaging at test time (arXiv:2406.13875), on batches of images, the model restored before each.

    With each wrapper in turn: c_i is the best caption of image i in its group, in these words; L_ij = T v_i . t_{c_j}
    over the images of the batch; the targets are Q = softmax of (v_i . v_j + t_{c_i} . t_{c_j}) / 2 / temperature by
    rows, with gradients; loss = mean_i sum_j -Q_ji ln softmax_j(L_ij). After the last wrapper the trained parameters
    are the average of their values after each. Where all pseudo-captions of a batch coincide, as for one image, the
    loss has no gradient and no step is made.

    The scores use caption features averaged over wrappers. Run ``rounds=0`` (no training, the same averaged captions)
    to measure how much of a gain comes from the averaging.

    Args:
        task: with the texts of its captions.
        wrappers: templates with ``{}`` for the caption, separated by ``|``; the model's vocabulary must have their
            words.
        variant: whether each wrapper continues from the previous one, or starts from the last average.
        steps: steps of Adam with each wrapper.
        rounds: number of passes over all wrappers, each followed by averaging.
        temperature: temperature of the targets.
        train: which parameters are trained.
        lr: learning rate of Adam.
        images: of a batch.
    """
    check_wrappers(task, wrappers)
    parameters = task.train(train)
    optimizer = task.optimizer(torch.optim.Adam(parameters, lr=lr))
    _, trains_captions = trained_towers(task.adapter, task.trained)
    for batch in task.stream(images=images):
        with torch.no_grad():
            captions = [wrapped(batch, wrapper) for wrapper in wrappers]
        loss = None
        for number in range(rounds):
            mean, ends = values(parameters), []
            for wrapper, features in zip(wrappers, captions, strict=True):
                if variant == "parallel" and number == 0:
                    task.reset()  # the optimiser too, as published: later rounds keep its moments
                elif variant == "parallel":
                    load(parameters, mean)
                for _ in range(steps):
                    now = pseudo_caption_loss(
                        task, batch.images(), wrapped(batch, wrapper) if trains_captions else features, temperature
                    )
                    if now is None:  # with the same captions the next step would be none either
                        break
                    loss = now
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                ends.append(values(parameters))
            load(parameters, [torch.stack(of_one).mean(dim=0) for of_one in zip(*ends, strict=True)])
        with torch.no_grad():
            if rounds and trains_captions:
                captions = [wrapped(batch, wrapper) for wrapper in wrappers]
            features = batch.images() if rounds else task.all_images[batch.image_rows]
            scores = task.logits(features, normalize(torch.stack(captions).mean(dim=0), dim=-1))
        yield batch.step(scores, loss, updated=loss is not None)


def pseudo_caption_loss(
    task: TrainingTask, images: torch.Tensor, captions: torch.Tensor, temperature: float
) -> torch.Tensor | None:
    """Cross-entropy between images and their pseudo-captions over a batch, with similarities as soft targets.

    None if all pseudo-captions are equal: then its gradient is 0 but for rounding, which Adam would enlarge.

    Args:
        task: provides the model's temperature.
        images: features [groups, m, d].
        captions: features in one wrapper [groups, n, d].
        temperature: temperature of the targets.
    """
    best = task.logits(images, captions).argmax(dim=2)
    v = images.flatten(0, 1)
    t = captions.take_along_dim(best[..., None], dim=1).flatten(0, 1)
    if (t == t[0]).all():
        return None
    likeness = (v @ v.T + t @ t.T) / 2
    targets = (likeness / temperature).softmax(dim=1)
    return -(targets.T * task.logits(v, t).log_softmax(dim=1)).sum(dim=1).mean()


def wrapped(batch: Batch, wrapper: str) -> torch.Tensor:
    """Features of the captions of a batch in a wrapper, [groups, n, d]."""
    rows, back = torch.unique(batch.caption_rows, return_inverse=True)
    texts = batch.task.caption_texts
    return batch.task.encode_texts([wrapper.replace("{}", texts[row]) for row in rows.tolist()])[back]


def check_wrappers(task: TrainingTask, wrappers: Sequence[str]) -> None:
    """Raises a UsageError for a wrapper without ``{}``, or with words that are not in the model's vocabulary."""
    if task.scores.shape[2] == 1:
        raise UsageError("watt assigns each image the best of several captions, but the groups have one")
    for wrapper in wrappers:
        if wrapper.count("{}") != 1:
            raise UsageError(f"wrappers must have one {{}} each, for the caption, not {wrapper!r}")
    unknown = unknown_wrappers(task.adapter, wrappers)
    if unknown:
        raise UsageError(f"watt is not applicable to this model: {unknown}")
    longest = max(wrappers, key=len)
    said = task.adapter.truncated([longest.replace("{}", text) for text in task.caption_texts])
    cut = 0 if said is None else sum(said)
    if cut:
        task.notes.append(f"{cut} of {len(task.caption_texts)} captions are truncated with the words {longest!r}")


def values(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of parameters."""
    return [parameter.detach().clone() for parameter in parameters]


def load(parameters: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> None:
    """Sets parameters."""
    with torch.no_grad():
        for parameter, value in zip(parameters, given, strict=True):
            parameter.copy_(value)
