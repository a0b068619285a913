"""NEAT: negation-aware training of the caption tower, from captions that were rewritten without their negation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, Field
from torch.nn.functional import normalize, pairwise_distance

from ttmbench._util.file_io import file_digest
from ttmbench.data.rows import csv_rows, listed, read_text
from ttmbench.errors import DataError, UsageError
from ttmbench.methods.losses import column_entropy
from ttmbench.methods.parameters import Train, trained_towers
from ttmbench.methods.task import Clusters, MethodStep, ResetEvery, TrainingTask

COLUMNS = ("captions", "pos_captions", "neg_captions", "inverted_captions")
"""Columns of a file of rewritten captions, as the authors' files have them."""
Rewrites = Annotated[
    str,
    Field(description=f"a CSV file of captions rewritten by a language model, with columns {', '.join(COLUMNS)}"),
    AfterValidator(lambda path: rewritten(path) and path),
]
"""A path, checked before a model is loaded."""
WEIGHT = 5.0  # of the distance to what a caption affirms


def neat(
    task: TrainingTask,
    *,
    rewrites: Rewrites,
    steps: Annotated[int, Field(ge=1)] = 3,
    temperature: Annotated[float, Field(gt=0)] = 0.03,
    reversal_temperature: Annotated[float, Field(gt=0)] = 0.07,
    train: Train = "norm_captions",
    lr: Annotated[float, Field(gt=0)] = 2e-4,
    weight_decay: Annotated[float, Field(ge=0)] = 1e-3,
    captions: Annotated[int, Field(ge=1)] = 256,
    clusters: Clusters = "together",
    reset_every: ResetEvery = None,
) -> Iterator[MethodStep]:
    """Negation-aware adaptation (arXiv:2507.19064): several steps on each batch, scored before the last of them.

    Caption t says that something is there and that something else is not. A language model has rewritten it: p is what
    it affirms, n what it denies, r the caption with both reversed. Cosines with the images v of the task choose the
    image v_t that maximises (p . v) (1 - max(0, n . v)). Over the distinct rewritten captions of the batch, loss =
    mean_j H(softmax_i(t_i . v_j / temperature)) + mean_i max_(j != i) max(0, r_i . v_i - r_i . v_j) /
    reversal_temperature + mean_i(5 |t_i - p_i| + 2 - |t_i - r_i|), where v_i is the image chosen for caption i.

    A batch without a rewritten caption is not trained on. Groups that share an image are in one batch, unless
    ``clusters=scattered``. ``reset_every`` restores the model after so many batches: a control for long streams.

    Args:
        task: with the texts of its captions.
        rewrites: file with the columns `COLUMNS`, of texts, or of lists of texts as in the authors' files.
        steps: steps of AdamW on each batch.
        temperature: temperature of the entropy, for cosines.
        reversal_temperature: divides the loss of reversed captions.
        train: which parameters of the caption tower are trained.
        lr: learning rate.
        weight_decay: weight decay.
        captions: of a batch, rewritten or not.
        clusters: whether groups that share an image are in one batch.
        reset_every: number of batches after which the model is reset.

    Raises:
        UsageError: no file, or none of rewritten captions; it has none of the task's captions; images are trained.
    """
    texts, written = task.caption_texts, rewritten(rewrites)
    is_written = torch.tensor([text.strip() in written for text in texts])
    if not is_written.any():
        raise UsageError(f"{rewrites} has none of the task's {len(texts)} captions, letter by letter")
    digest = file_digest(Path(rewrites))[:12]
    task.notes.append(f"{int(is_written.sum())} of {len(texts)} captions are rewritten in a file with sha256 {digest}")
    parameters = task.train(train, temperature=False)
    if trained_towers(task.adapter, task.trained)[0]:
        raise UsageError(f"neat trains captions alone, and train={train} has other parameters; use train=norm_captions")
    optimizer = task.optimizer(torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay))
    gallery = normalize(task.all_images, dim=-1)
    m, n = task.scores.shape[1:]
    for batch in task.stream(images=max(1, captions // n) * m, clusters=clusters, reset_every=reset_every):
        rows = torch.unique(batch.caption_rows).cpu()
        rows = rows[is_written[rows]]
        of_batch = [(texts[row], *written[texts[row].strip()]) for row in rows.tolist()]
        loss = None
        for number in range(steps):
            if number == steps - 1:
                with torch.no_grad():
                    scores = batch.logits()
            if of_batch:
                t, p, denied, r = (normalize(task.encode_texts(side), dim=-1) for side in zip(*of_batch, strict=True))
                loss = negation_loss(t, p, denied, r, gallery, temperature, reversal_temperature)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        yield batch.step(scores, loss, updated=loss is not None)


def negation_loss(
    t: torch.Tensor,
    p: torch.Tensor,
    n: torch.Tensor,
    r: torch.Tensor,
    gallery: torch.Tensor,
    temperature: float,
    reversal_temperature: float,
) -> torch.Tensor:
    """The loss of a batch, a scalar; all features have length 1: [captions, d], those of the gallery [images, d]."""
    with torch.no_grad():
        chosen = gallery[((p @ gallery.T) * (1 - (n @ gallery.T).relu())).argmax(dim=1)]
    entropy = column_entropy(t @ chosen.T / temperature).mean()
    reversed_scores = r @ chosen.T
    ahead = (reversed_scores.diagonal()[:, None] - reversed_scores).clamp(min=0)  # 0 on the diagonal
    reversal = ahead.max(dim=1).values.mean() / reversal_temperature
    return entropy + reversal + (WEIGHT * pairwise_distance(t, p) + 2 - pairwise_distance(t, r)).mean()


def rewritten(path: str) -> dict[str, tuple[str, str, str]]:
    """Caption -> what it affirms, what it denies, and its reversal; UsageError for a file that does not say so."""
    found: dict[str, tuple[str, str, str]] = {}
    try:
        for row in csv_rows(read_text(Path(path)), path):
            has_lists = row.cell(COLUMNS[0]).startswith("[")
            sides: list[Any] = [listed(row, column) if has_lists else [row.cell(column)] for column in COLUMNS]
            if len(set(map(len, sides))) > 1 or not all(isinstance(text, str) for side in sides for text in side):
                raise DataError(f"{path}: row {row.index} must have equally many texts in each column")
            for text, *others in zip(*sides, strict=True):
                p, negated, r = (side.strip() for side in others)
                if found.setdefault(text.strip(), (p, negated, r)) != (p, negated, r):
                    raise DataError(f"{path}: '{text:.80}' is rewritten in two ways; leave one of them in the file")
        if not found:
            raise DataError(f"{path}: has no rows of rewritten captions")
    except DataError as error:
        raise UsageError(f"--method_args neat.rewrites: {error}; needed are columns {', '.join(COLUMNS)}") from None
    return found
