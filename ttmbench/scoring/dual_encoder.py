"""Scoring by dual encoders: every distinct image and caption is encoded once a pass.

Scores are float32 logits [groups, images, captions]. Inside groups only; every image meets every caption only where
the global variant asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ttmbench._util.progress import progress_bar
from ttmbench.errors import TtmbenchError
from ttmbench.protocols import DualEncoder
from ttmbench.scoring.batch_size import BatchSizer
from ttmbench.scoring.blocks import FEATURES, BlockStore, load, save, spans
from ttmbench.scoring.inputs import Prepared, Rows, n_rows, take
from ttmbench.types import Group

if TYPE_CHECKING:
    from ttmbench.protocols import Batch


@dataclass(frozen=True)
class Features:
    """Encoded distinct images [n, d] and captions [n, d]."""

    images: torch.Tensor
    captions: torch.Tensor


def encode(
    adapter: DualEncoder, prepared: Prepared, batch_size: int | BatchSizer, blocks: BlockStore | None = None
) -> Features:
    """Encodes every distinct image and caption once, without gradients.

    Args:
        adapter: the model.
        prepared: its inputs.
        batch_size: rows encoded at a time, fewer if memory runs out; changes no score.
        blocks: where finished blocks of features are kept, if anywhere.

    Returns:
        Features of both sides.
    """
    batch_sizer = BatchSizer.of(batch_size)
    with torch.inference_mode():
        return Features(
            images=_encode(adapter, adapter.encode_images, prepared.images, batch_sizer, "images", blocks),
            captions=_encode(adapter, adapter.encode_captions, prepared.captions, batch_sizer, "captions", blocks),
        )


def score_groups(adapter: DualEncoder, features: Features, rows: Rows) -> np.ndarray:
    """Logits inside every group.

    Each group is its own product, so that its scores depend neither on its neighbours nor on their number.

    Args:
        adapter: the model.
        features: of all distinct images and captions.
        rows: which of them stand in which group.

    Returns:
        float32 [groups, images, captions].
    """
    scores = np.empty((*rows.images.shape, rows.captions.shape[1]), dtype=np.float32)
    image_features = features.images[torch.from_numpy(rows.images)]
    caption_features = features.captions[torch.from_numpy(rows.captions)]
    with torch.inference_mode():
        logits = [
            adapter.logits(images, captions) for images, captions in zip(image_features, caption_features, strict=True)
        ]
        wanted = scores.shape[1:]
        wrong = next((one for one in logits if tuple(getattr(one, "shape", ())) != wanted), None)
        if wrong is not None:
            raise TtmbenchError(f"the model's logits have shape {_shape(wrong)}, {list(wanted)} are expected")
        scores[:] = torch.stack(logits).float().cpu().numpy()
    return scores


def score_all_pairs(adapter: DualEncoder, features: Features, rows: Rows) -> np.ndarray:
    """Logits of every image with every caption, in the order of the groups.

    Args:
        adapter: the model.
        features: of all distinct images and captions.
        rows: which of them stand in which group.

    Returns:
        float32 [groups * images, groups * captions].
    """
    with torch.inference_mode():
        distinct = adapter.logits(features.images, features.captions).float().cpu().numpy()
    if distinct.shape != (len(features.images), len(features.captions)):
        raise TtmbenchError(
            f"the model's logits have shape {list(distinct.shape)} for {len(features.images)} images and "
            f"{len(features.captions)} captions"
        )
    table: np.ndarray = distinct[np.ix_(rows.images.reshape(-1), rows.captions.reshape(-1))]
    return table


def check_finite(scores: np.ndarray, groups: Sequence[Group]) -> None:
    """Raises TtmbenchError naming the first group for which the model gave a score that is not finite."""
    finite = np.isfinite(scores).all(axis=(1, 2))
    if not finite.all():
        group_id = groups[int(np.argmin(finite))].group_id
        raise TtmbenchError(f"the model gave group {group_id} a score that is not a finite number")


def _shape(value: Any) -> str:
    return str(list(value.shape)) if hasattr(value, "shape") else type(value).__name__


def _rows(encoder: Callable[[Any], torch.Tensor], batch: Batch, rows: slice, side: str) -> torch.Tensor:
    """Features of some rows; TtmbenchError if there is not one each."""
    part = encoder(take(batch, rows))
    count = rows.stop - rows.start
    if not isinstance(part, torch.Tensor) or part.ndim < 1 or len(part) != count:
        raise TtmbenchError(f"the model returned features of shape {_shape(part)} for {count} inputs (encoding {side})")
    return part


def _encode(
    adapter: DualEncoder,
    encoder: Callable[[Any], torch.Tensor],
    batch: Batch,
    batch_sizer: BatchSizer,
    side: str,
    blocks: BlockStore | None,
) -> torch.Tensor:
    parts: list[torch.Tensor] = []
    device: torch.device | None = None
    with progress_bar(n_rows(batch), f"encoding {side}", side) as shown:
        for span in spans(n_rows(batch), FEATURES, batch_sizer.rows):
            kept = load(blocks, side, span)
            if kept is None:
                done = batch_sizer.map_batches(span.start, span.stop, lambda rows: _rows(encoder, batch, rows, side))
                parts.append(torch.cat(list(done)))
                device = parts[-1].device
                if blocks is not None:
                    save(blocks, side, span, parts[-1].float().cpu().numpy())
            else:
                parts.append(torch.from_numpy(kept))
            shown.update(span.stop - span.start)
    if device is None:  # All features were kept, on the CPU; any row shows where the model has its own.
        declared = getattr(adapter, "device", None)
        device = declared if isinstance(declared, torch.device) else encoder(take(batch, slice(0, 1))).device
    return torch.cat([part.to(device) for part in parts])
