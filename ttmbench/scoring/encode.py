"""Features of many images and captions, each encoded once: images are opened as their turn comes, and let go.

What is held is features alone, so that memory does not grow with the size of images. Finished blocks are kept where a
place for them is given, and a run that starts again goes on after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ttmbench._util.progress import progress_bar
from ttmbench.errors import TtmbenchError
from ttmbench.protocols import DualEncoder, StoredFeatures
from ttmbench.scoring import dual_encoder
from ttmbench.scoring.batch_size import BatchSizer
from ttmbench.scoring.blocks import BlockStore, load, save, spans
from ttmbench.scoring.dual_encoder import encode_side, encoded_rows, in_memory
from ttmbench.scoring.fingerprint import Fingerprint
from ttmbench.scoring.image_rows import ImageRows, PreparedImages
from ttmbench.scoring.inputs import take
from ttmbench.types import ImageRef

if TYPE_CHECKING:
    from ttmbench.scoring.ranking import ScoreRows

CLASSES = 8  # whose prompts make a block


@dataclass(frozen=True)
class Side:
    """Images, captions or classes as a tower gives them.

    Attributes:
        features: float32 [distinct, d], on the model's device.
        rows: which distinct one stands where. Equal things have one row, so that they tie to the last bit.
    """

    features: torch.Tensor
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def some(self, chosen: slice) -> torch.Tensor:
        """Features of some of them, [chosen, d]."""
        return self.features[torch.from_numpy(np.ascontiguousarray(self.rows[chosen])).to(self.features.device)]


def image_scores(adapter: DualEncoder, images: Side, others: Side) -> ScoreRows:
    """What scores some images with all captions or classes: float32 [some images, others]."""

    def score(rows: slice) -> np.ndarray:
        with torch.inference_mode():
            return _logits(adapter, images.some(rows), others.features)[:, others.rows]

    return score


def caption_scores(adapter: DualEncoder, images: Side, captions: Side) -> ScoreRows:
    """What scores some captions with all images: float32 [some captions, images]."""

    def score(rows: slice) -> np.ndarray:
        with torch.inference_mode():
            return _logits(adapter, images.features, captions.some(rows)).T[:, images.rows]

    return score


def encode_images(
    adapter: DualEncoder,
    images: Sequence[tuple[str, ImageRef]],
    batch_sizer: BatchSizer,
    fingerprint: Fingerprint,
    kept: PreparedImages | None = None,
    blocks: BlockStore | None = None,
) -> Side:
    """Encodes images, each opened when its turn comes.

    Args:
        adapter: the model.
        images: with a group that has each, for messages.
        batch_sizer: images encoded at a time.
        fingerprint: takes them in; images of the same pixels are one.
        kept: where prepared images are kept, if anywhere.
        blocks: where finished blocks of features are kept; then the fingerprint has taken in all images before.

    Returns:
        The images, in their order.

    Raises:
        DataError: an image cannot be read.
        TtmbenchError: the model gave something else than one feature vector an image.
    """
    source = ImageRows(adapter, images, fingerprint, kept).parts
    features = encode_side(adapter, "images", source, len(images), batch_sizer, blocks).float()
    fingerprint.add_remaining()
    number: dict[str, int] = {}
    rows = np.array([number.setdefault(fingerprint.of(image), len(number)) for _, image in images])
    _, first = np.unique(rows, return_index=True)
    return Side(features[torch.from_numpy(first).to(features.device)], rows)


def encode_captions(
    adapter: DualEncoder, captions: Sequence[str], batch_sizer: BatchSizer, blocks: BlockStore | None = None
) -> Side:
    """Encodes captions, each distinct one once.

    Args:
        adapter: the model.
        captions: in any number of copies.
        batch_sizer: captions encoded at a time.
        blocks: where finished blocks of features are kept, if anywhere.

    Returns:
        The captions, in their order.

    Raises:
        TtmbenchError: the model gave something else than one feature vector a caption.
    """
    number: dict[str, int] = {}
    rows = np.array([number.setdefault(caption, len(number)) for caption in captions])
    tokens = adapter.prepare_captions(list(number))
    return Side(dual_encoder.encode_captions(adapter, tokens, batch_sizer, blocks).float(), rows)


def encode_classes(
    adapter: DualEncoder,
    names: Sequence[str],
    templates: Sequence[str],
    batch_sizer: BatchSizer,
    blocks: BlockStore | None = None,
) -> Side:
    """A feature vector for each class, as in CLIP: features of its prompts normalised, their mean, normalised again.

    Args:
        adapter: the model.
        names: of the classes; those of one name have one row.
        templates: prompts with ``{}`` where the name goes.
        batch_sizer: prompts encoded at a time.
        blocks: where finished blocks are kept, if anywhere.

    Returns:
        The classes, in their order.

    Raises:
        TtmbenchError: the model gave something else than one feature vector a prompt.
    """
    number: dict[str, int] = {}
    rows = np.array([number.setdefault(name, len(number)) for name in names])
    prompts = [template.replace("{}", name) for name in number for template in templates]
    tokens = adapter.prepare_captions(prompts)
    each, parts = len(templates), []

    def encode(chosen: slice) -> torch.Tensor:
        return encoded_rows(adapter.encode_captions, tokens, chosen, "captions")

    with torch.inference_mode(), progress_bar(len(prompts), "encoding prompts", "prompts") as shown:
        for span in spans(len(number), CLASSES, 1):
            found = load(blocks, "classes", span)
            if found is None:
                done = batch_sizer.map_batches(span.start * each, span.stop * each, encode)
                features = torch.nn.functional.normalize(torch.cat(list(done)).float(), dim=-1)
                means = features.reshape(span.stop - span.start, each, -1).mean(dim=1)
                parts.append(torch.nn.functional.normalize(means, dim=-1))
                if blocks is not None:
                    save(blocks, "classes", span, parts[-1].cpu().numpy())
            else:
                parts.append(torch.from_numpy(found))
            shown.update((span.stop - span.start) * each)
    return Side(_together(adapter, parts), rows)


def encode_stored(
    adapter: DualEncoder, stored: StoredFeatures, n_images: int, others: np.ndarray, batch_sizer: BatchSizer
) -> tuple[Side, Side]:
    """Features from a file, as the model's heads make them.

    Args:
        adapter: the model.
        stored: the same, which has the features.
        n_images: how many of the first images are used.
        others: which captions or classes are used, bool.
        batch_sizer: rows encoded at a time.

    Returns:
        Both sides.

    Raises:
        TtmbenchError: the model gave something else than one feature vector a row.
    """
    places = np.flatnonzero(others)
    images = take(stored.stored_images(), slice(0, n_images))
    captions = take(stored.stored_captions(), places)
    of_images = encode_side(adapter, "images", in_memory(images), n_images, batch_sizer)
    of_captions = dual_encoder.encode_captions(adapter, captions, batch_sizer)
    return Side(of_images.float(), np.arange(n_images)), Side(of_captions.float(), np.arange(len(places)))


def _together(adapter: DualEncoder, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """All parts on the device of the model; those that were kept come from the CPU."""
    declared = getattr(adapter, "device", None)
    device = declared if isinstance(declared, torch.device) else parts[-1].device
    return torch.cat([part.to(device) for part in parts])


def _logits(adapter: DualEncoder, images: torch.Tensor, captions: torch.Tensor) -> Any:
    logits = adapter.logits(images, captions)
    if tuple(getattr(logits, "shape", ())) != (len(images), len(captions)):
        raise TtmbenchError(
            f"the model's logits have shape {list(getattr(logits, 'shape', ()))} for {len(images)} images and "
            f"{len(captions)} captions"
        )
    return logits.float().cpu().numpy()
