"""How alike the captions of a group are to a dual encoder's text side: cosines, for metrics that never see an image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ttmbench.protocols import DualEncoder
from ttmbench.scoring.batch_size import BatchSizer
from ttmbench.scoring.inputs import n_rows, take
from ttmbench.types import Group

if TYPE_CHECKING:
    from ttmbench.protocols import Batch


def caption_pairs(
    adapter: DualEncoder, groups: list[Group], batch_size: BatchSizer, stored: Batch | None = None
) -> np.ndarray | None:
    """Cosines of the captions inside every group.

    Every distinct caption is encoded once. Nothing is kept: captions are few and quick beside images.

    Args:
        adapter: the model.
        groups: of the task.
        batch_size: captions encoded at a time.
        stored: captions as stored features have them, in the order of the groups; None for the groups' own.

    Returns:
        float64 [groups, captions, captions]; None of a model that has not one vector for a caption.
    """
    texts = [caption for group in groups for caption in group.captions]
    place = {text: at for at, text in enumerate(dict.fromkeys(texts))}
    batch = adapter.prepare_captions(list(place)) if stored is None else stored
    with torch.inference_mode():
        parts = batch_size.map_batches(0, n_rows(batch), lambda rows: adapter.encode_captions(take(batch, rows)))
        features = torch.cat([part.double().cpu() for part in parts])
    if features.ndim != 2:
        return None
    unit = torch.nn.functional.normalize(features, dim=1).numpy()
    rows = np.arange(len(texts)) if stored is not None else np.array([place[text] for text in texts])
    inside = unit[rows].reshape(len(groups), -1, unit.shape[1])
    return np.matmul(inside, inside.transpose(0, 2, 1))
