"""Batches of prompts: padding, and which prompts begin alike, with the image and what stands before the caption."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Literal

import torch

Row = dict[str, torch.Tensor]
"""Tokens of one prompt, each tensor [tokens]."""

Parts = list[tuple[Sequence[int], int]]
"""Numbers of rows that are computed together, and how many tokens they begin with together; 0 for nothing shared."""

# Models that read from left to right, so that what follows the image changes nothing of it.
REUSES_PREFIX = frozenset(
    ("llava", "llava_onevision", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "smolvlm", "idefics3", "internvl")
)


def by_prefix(
    images: Sequence[Hashable], rows: Sequence[torch.Tensor], keep: Sequence[torch.Tensor], image_token: int
) -> Parts:
    """Parts of a batch by what its prompts share.

    Images that take different numbers of tokens are not computed together, and neither are prompts that say something
    of their own before the image.

    Args:
        images: of each row, the same for the same image.
        rows: tokens of each prompt, int [tokens].
        keep: after which of them logits are asked for, ascending int [kept]; none of these is in what is shared.
        image_token: the placeholder of an image's features.
    """
    of_image: dict[Hashable, list[int]] = {}
    for at, image in enumerate(images):
        of_image.setdefault(image, []).append(at)
    by_head: dict[tuple[int, ...], list[int]] = {}
    alone: list[int] = []
    for members in of_image.values():
        ids = rows[members[0]]
        head = tuple(ids[: int((ids == image_token).nonzero()[-1]) + 1].tolist())
        (by_head.setdefault(head, []) if len(members) > 1 else alone).extend(members)
    parts: Parts = []
    for head, members in by_head.items():
        length = min(_common([rows[at] for at in members]), *(int(keep[at][0]) for at in members))
        if length < len(head):
            alone += members
        else:
            parts.append((members, length))
    return [*parts, (sorted(alone), 0)] if alone else parts


def _common(rows: Sequence[torch.Tensor]) -> int:
    """How many tokens all rows begin with."""
    shortest = min(map(len, rows))
    differs = torch.stack([row[:shortest] != rows[0][:shortest] for row in rows]).any(dim=0).nonzero()
    return int(differs[0]) if len(differs) else shortest


def padded(rows: Sequence[Row], pad: Callable[[str], int], side: Literal["left", "right"] = "right") -> Row:
    """Rows of several lengths as one tensor per name, [rows, tokens], padded by ``pad(name)``."""
    pads = torch.nn.utils.rnn.pad_sequence
    return {
        name: pads([row[name] for row in rows], batch_first=True, padding_value=pad(name), padding_side=side)
        for name in rows[0]
    }
