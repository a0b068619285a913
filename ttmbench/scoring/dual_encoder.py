"""Scoring by dual encoders: every distinct image and caption is encoded once a pass.

Scores are float32 logits [groups, images, captions]. Inside groups only; every image meets every caption only where
the global variant asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch

from ttmbench._util.progress import progress_bar
from ttmbench.errors import TtmbenchError, phase
from ttmbench.protocols import DualEncoder
from ttmbench.scoring.batch_size import BatchSizer
from ttmbench.scoring.blocks import FEATURES, BlockStore, load, save, spans
from ttmbench.scoring.inputs import Prepared, Rows, n_rows, take
from ttmbench.types import Group

if TYPE_CHECKING:
    from ttmbench.protocols import Batch

    RowSource: TypeAlias = Callable[[Sequence[np.ndarray]], AbstractContextManager[Iterator[Batch]]]
    """Lists of rows -> prepared inputs of each of them, one list after the other."""


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
    images, captions = in_memory(prepared.images), in_memory(prepared.captions)
    return Features(
        images=encode_side(adapter, "images", images, n_rows(prepared.images), batch_sizer, blocks),
        captions=encode_side(adapter, "captions", captions, n_rows(prepared.captions), batch_sizer, blocks),
    )


def encode_captions(
    adapter: DualEncoder, captions: Batch, batch_sizer: BatchSizer, blocks: BlockStore | None = None
) -> torch.Tensor:
    """Features of prepared captions; arguments as for `encode`."""
    return encode_side(adapter, "captions", in_memory(captions), n_rows(captions), batch_sizer, blocks)


def in_memory(batch: Batch) -> RowSource:
    """Rows of prepared inputs that are there."""
    return lambda wanted: nullcontext(take(batch, slice(int(rows[0]), int(rows[-1]) + 1)) for rows in wanted)


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


def encoded_rows(encoder: Callable[[Any], torch.Tensor], batch: Batch, rows: slice, side: str) -> torch.Tensor:
    """Features of some rows of a batch; TtmbenchError where the model gives something else than one row each."""
    """Features of some rows; TtmbenchError if there is not one each."""
    part = encoder(take(batch, rows))
    count = rows.stop - rows.start
    if not isinstance(part, torch.Tensor) or part.ndim < 1 or len(part) != count:
        raise TtmbenchError(f"the model returned features of shape {_shape(part)} for {count} inputs (encoding {side})")
    return part


def encode_side(
    adapter: DualEncoder,
    side: Literal["images", "captions"],
    source: RowSource,
    count: int,
    batch_sizer: BatchSizer,
    blocks: BlockStore | None = None,
) -> torch.Tensor:
    """Encodes the images or the captions of a task, without gradients; batches do not depend on where rows come from.

    Args:
        adapter: the model.
        side: which.
        source: gives prepared rows for lists of consecutive rows, in order.
        count: how many rows there are.
        batch_sizer: rows encoded at a time.
        blocks: where finished blocks of features are kept, if anywhere.

    Returns:
        Features [count, d].
    """
    encoder = adapter.encode_images if side == "images" else adapter.encode_captions
    parts: list[torch.Tensor] = []
    device: torch.device | None = None
    cut = spans(count, FEATURES, batch_sizer.rows)
    kept = [load(blocks, side, span) for span in cut]
    wanted = [np.arange(span.start, span.stop) for span, found in zip(cut, kept, strict=True) if found is None]
    with torch.inference_mode(), progress_bar(count, f"encoding {side}", side) as shown, source(wanted) as coming:
        for span, found in zip(cut, kept, strict=True):
            if found is None:
                with phase("prepare"):
                    batch = next(coming)
                parts.append(_encoded(encoder, batch, span.stop - span.start, batch_sizer, side))
                del batch  # before the next one is put together
                device = parts[-1].device
                if blocks is not None:
                    save(blocks, side, span, parts[-1].float().cpu().numpy())
            else:
                parts.append(torch.from_numpy(found))
            shown.update(span.stop - span.start)
    return torch.cat([part.to(device or _device(adapter, encoder, source)) for part in parts])


def _encoded(
    encoder: Callable[[Any], torch.Tensor], batch: Batch, rows: int, batch_sizer: BatchSizer, side: str
) -> torch.Tensor:
    return torch.cat(list(batch_sizer.map_batches(0, rows, lambda some: encoded_rows(encoder, batch, some, side))))


def _device(adapter: DualEncoder, encoder: Callable[[Any], torch.Tensor], source: RowSource) -> torch.device:
    """Where the model has its features: what was kept is on the CPU. If it does not say so, any row shows it."""
    declared = getattr(adapter, "device", None)
    if isinstance(declared, torch.device):
        return declared
    with torch.inference_mode(), source([np.arange(1)]) as coming:
        return encoder(next(coming)).device
