"""Scoring of prepared tasks, and by dual encoders: every distinct image and caption is encoded once a pass.

Only features stay in memory: images are opened as their turn comes, so that memory does not grow with their size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from ttmbench._util.console import progress_bar
from ttmbench._util.third_party import phase
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.model import DualEncoder, PairScorer, StoredFeatures
from ttmbench.scoring.batches import FEATURES, BatchSizer, BlockStore, spans
from ttmbench.scoring.inputs import Inputs, Prepared, n_rows, row_each, take
from ttmbench.scoring.pairs import pair_table
from ttmbench.types import Group, Scores

if TYPE_CHECKING:
    from ttmbench.model import Batch
    from ttmbench.scoring.ranking import ScoreRows

CLASSES = 8  # whose prompts are encoded together


@dataclass(frozen=True)
class Side:
    """Images, captions or classes as the model encoded them.

    Attributes:
        features: float32 [distinct, d], or [distinct, tokens, d] of many vectors, on the model's device.
        rows: which distinct item each one is, int: of a task with groups [groups, images or captions], else one axis.
            Equal items have one row, so that they tie to the last bit.
    """

    features: torch.Tensor
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def some(self, chosen: slice) -> torch.Tensor:
        """Features of some of them, [chosen, d]."""
        return take(self.features, self.rows[chosen])


@dataclass(frozen=True)
class Features:
    """Encoded images, and encoded captions or classes."""

    images: Side
    captions: Side


def encode(adapter: DualEncoder, inputs: Prepared | Inputs, batch_size: int | BatchSizer) -> Features:
    """Encodes every distinct image and caption of a task once, without gradients, as `encode_side`."""
    sizer, images = BatchSizer.of(batch_size), inputs if isinstance(inputs, Inputs) else inputs.images
    encoded = Side(encode_side(adapter, "images", images, sizer), inputs.rows.images)
    tokens = row_each(adapter.prepare_captions, inputs.captions) if isinstance(inputs, Inputs) else inputs.captions
    return Features(encoded, Side(encode_side(adapter, "captions", tokens, sizer), inputs.rows.captions))


def score_features(adapter: DualEncoder, features: Features, all_pairs: bool) -> Scores:
    """Logits of every group, each a product of its own: they do not depend on other groups, nor on how many there are.

    With ``all_pairs`` also those of every image with every caption. TtmbenchError unless there is one for each pair.
    """
    images, captions = features.images, features.captions
    with torch.inference_mode():
        sides = (side.features[torch.from_numpy(side.rows).to(side.features.device)] for side in (images, captions))
        groups = torch.stack([_logits(adapter, *group) for group in zip(*sides, strict=True)]).float().cpu().numpy()
    if not all_pairs:
        return Scores(groups)
    distinct = _scores(adapter, images.features, captions.features)
    return Scores(groups, distinct[np.ix_(images.rows.reshape(-1), captions.rows.reshape(-1))])


@dataclass(frozen=True)
class PreparedTask:
    """A model, a task's prepared inputs and how to score them: what every variant of TTM works on."""

    adapter: DualEncoder | PairScorer
    prepared: Prepared
    batch_size: int | BatchSizer
    is_global: bool
    all_pairs: bool

    def score(self, blocks: BlockStore | None = None) -> Scores:
        """One scoring pass, for metrics and matching alike; stores finished blocks of pairs where given."""
        if not isinstance(self.adapter, DualEncoder):
            table = pair_table(self.adapter, self.prepared, self.batch_size, self.all_pairs, blocks)
            return table.scores(self.all_pairs)
        return score_features(self.adapter, encode(self.adapter, self.prepared, self.batch_size), self.all_pairs)


def image_scores(adapter: DualEncoder, features: Features) -> ScoreRows:
    """A function that scores some images with all captions or classes: float32 [some images, others]."""

    def score(rows: slice) -> np.ndarray:
        return _scores(adapter, features.images.some(rows), features.captions.features)[:, features.captions.rows]

    return score


def caption_scores(adapter: DualEncoder, features: Features) -> ScoreRows:
    """A function that scores some captions with all images: float32 [some captions, images]."""

    def score(rows: slice) -> np.ndarray:
        return _scores(adapter, features.images.features, features.captions.some(rows)).T[:, features.images.rows]

    return score


def encode_images(adapter: DualEncoder, inputs: Inputs, batch_sizer: BatchSizer) -> Side:
    """Encodes images, each opened when its turn comes; the result is in their order, and those of one digest are one.

    DataError if an image cannot be read, TtmbenchError if the model did not return one feature vector an image.
    """
    features = encode_side(adapter, "images", inputs, batch_sizer).float()
    rows = _numbered([inputs.digests[image.name] for _, image in inputs.images])[1]
    _, first = np.unique(rows, return_index=True)
    return Side(take(features, first), rows)


def encode_captions(adapter: DualEncoder, captions: Sequence[str], batch_sizer: BatchSizer) -> Side:
    """Encodes captions, each distinct one once; arguments and errors as for `encode_images`."""
    distinct, rows = _numbered(captions)
    tokens = row_each(adapter.prepare_captions, distinct)
    return Side(encode_side(adapter, "captions", tokens, batch_sizer).float(), rows)


def encode_classes(
    adapter: DualEncoder, names: Sequence[str], templates: Sequence[str], batch_sizer: BatchSizer
) -> Side:
    """A feature vector for each class, as in CLIP: features of its prompts normalised, their mean, normalised again.

    Classes of one name have one row. Prompts are the templates with the name in place of ``{}``; errors as of
    `encode_images`.
    """
    distinct, rows = _numbered(names)
    prompts = [template.replace("{}", name) for name in distinct for template in templates]
    tokens = row_each(adapter.prepare_captions, prompts)
    each, parts = len(templates), []
    with torch.inference_mode(), progress_bar(len(prompts), "encoding prompts", "prompts") as shown:
        for span in spans(len(distinct), CLASSES, 1):
            some = take(tokens, slice(span.start * each, span.stop * each))
            features = encode_rows(adapter.encode_captions, some, n_rows(some), batch_sizer, "captions")
            if features.ndim != 2:
                raise UsageError(
                    "a class is a mean of prompts, and the model has many vectors for each; use other tasks"
                )
            features = torch.nn.functional.normalize(features.float(), dim=-1)
            means = features.reshape(span.stop - span.start, each, -1).mean(dim=1)
            parts.append(torch.nn.functional.normalize(means, dim=-1))
            shown.update((span.stop - span.start) * each)
    return Side(torch.cat(parts), rows)


def encode_stored(adapter: StoredFeatures, n_images: int, others: np.ndarray, batch_sizer: BatchSizer) -> Features:
    """Encodes precomputed embeddings by the model's heads: the first images, and captions or classes by ``others``."""
    images = take(adapter.stored_images(), slice(0, n_images))
    captions = take(adapter.stored_captions(), np.flatnonzero(others))
    return Features(
        Side(encode_side(adapter, "images", images, batch_sizer).float(), np.arange(n_images)),
        Side(encode_side(adapter, "captions", captions, batch_sizer).float(), np.arange(n_rows(captions))),
    )


def encode_side(
    adapter: DualEncoder, side: Literal["images", "captions"], inputs: Batch | Inputs, batch_sizer: BatchSizer
) -> torch.Tensor:
    """Features [rows, d], without gradients, of prepared inputs or of images that are prepared when asked for."""
    encoder, parts = adapter.encode_images if side == "images" else adapter.encode_captions, list[torch.Tensor]()
    count = len(inputs.images) if isinstance(inputs, Inputs) else n_rows(inputs)  # either way in the same batches
    wanted = [np.arange(span.start, span.stop) for span in spans(count, FEATURES, batch_sizer.rows)]
    if isinstance(inputs, Inputs):
        opened = inputs.parts(adapter, wanted)
    else:
        opened = (take(inputs, slice(int(rows[0]), int(rows[-1]) + 1)) for rows in wanted)
    with torch.inference_mode(), progress_bar(count, f"encoding {side}", side) as shown, closing(opened) as coming:
        for rows in wanted:
            with phase("prepare"):
                batch = next(coming)
            parts.append(encode_rows(encoder, batch, len(rows), batch_sizer, side))
            del batch  # before the next one is put together
            shown.update(len(rows))
    return _joined(parts)


def caption_pairs(
    adapter: DualEncoder, groups: list[Group], batch_sizer: BatchSizer, stored: Batch | None = None
) -> np.ndarray | None:
    """Cosines of the captions inside every group, float64 [groups, captions, captions], for metrics that use no image.

    ``stored`` are captions of precomputed embeddings, in the order of the groups. None of a model that does not encode
    a caption as one vector.
    """
    distinct, rows = _numbered([caption for group in groups for caption in group.captions])
    batch = row_each(adapter.prepare_captions, distinct) if stored is None else stored
    with torch.inference_mode():
        features = encode_rows(adapter.encode_captions, batch, n_rows(batch), batch_sizer, "captions").double().cpu()
    if features.ndim != 2:
        return None
    unit = torch.nn.functional.normalize(features, dim=1).numpy()
    inside = unit[rows if stored is None else np.arange(len(rows))].reshape(len(groups), -1, unit.shape[1])
    return np.matmul(inside, inside.transpose(0, 2, 1))


def _numbered(values: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Each distinct value once, in order, and which of them each value is."""
    number: dict[str, int] = {}
    rows = np.array([number.setdefault(value, len(number)) for value in values])
    return list(number), rows


def _logits(adapter: DualEncoder, images: torch.Tensor, captions: torch.Tensor) -> torch.Tensor:
    logits = adapter.logits(images, captions)
    if tuple(getattr(logits, "shape", ())) != (len(images), len(captions)):
        raise TtmbenchError(
            f"the model's logits have shape {_shape(logits)} for {len(images)} images and {len(captions)} captions"
        )
    return logits


def _scores(adapter: DualEncoder, images: torch.Tensor, captions: torch.Tensor) -> np.ndarray:
    """Logits of every image with every caption, float32, on the CPU."""
    with torch.inference_mode():
        return _logits(adapter, images, captions).float().cpu().numpy()


def encode_rows(
    encoder: Callable[[Batch], torch.Tensor], batch: Batch, rows: int, batch_sizer: BatchSizer, side: str
) -> torch.Tensor:
    """Features of all rows of a batch, in batches of the sizer; ``side`` is for messages.

    TtmbenchError unless the model returns one feature for each.
    """

    def encode_some(some: slice) -> torch.Tensor:
        part, count = encoder(take(batch, some)), some.stop - some.start
        if not isinstance(part, torch.Tensor) or part.ndim < 1 or len(part) != count:
            raise TtmbenchError(f"encode_{side} of the model gave features of shape {_shape(part)} for {count} inputs")
        return part

    return _joined(list(batch_sizer.map_batches(0, rows, encode_some)))


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Features one below the other; those of many vectors padded with zero rows to the same number."""
    if parts[0].ndim == 3:
        most = max(part.shape[1] for part in parts)
        parts = [torch.nn.functional.pad(part, (0, 0, 0, most - part.shape[1])) for part in parts]
    return torch.cat(list(parts))


def _shape(value: object) -> str:
    return str(list(value.shape)) if isinstance(value, torch.Tensor) else type(value).__name__
