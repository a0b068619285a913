"""Batches of prompts: padding, and which prompts begin alike, with the image and what stands before the caption."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Beginning:
    """What prompts begin with up to the end of their image: tokens of the text, and of the model."""

    text: list[int]  # with one placeholder for the image, the last
    row: Row  # with as many as the image has features
    rest: dict[str, torch.Tensor]  # what follows in every tensor but the tokens', the same at each place

    def followed_by(self, ids: list[int]) -> Row | None:
        """The row of a prompt with these tokens of its text; None if it begins otherwise."""
        count = len(self.text)
        if ids[:count] != self.text:
            return None
        tokens = torch.tensor(ids[count:], dtype=self.row["input_ids"].dtype)
        more = {name: value.expand(len(tokens)) for name, value in self.rest.items()} | {"input_ids": tokens}
        return {name: torch.cat([value, more[name]]) for name, value in self.row.items()}


def beginning(ids: list[int], row: Row, image_token: int) -> Beginning | None:
    """How a processor begins a prompt, by the tokens of its text alone and its row; None if these do not fit together.

    With it the row of every other prompt to the image follows from the tokens of its text, which are fewer by far.
    """
    if ids.count(image_token) != 1 or ids[-1] == image_token:
        return None
    place = ids.index(image_token)
    end = len(row["input_ids"]) - (len(ids) - place - 1)
    whole = row["input_ids"].tolist()
    if whole[:place] != ids[:place] or whole[end:] != ids[place + 1 :] or end <= place:
        return None
    rest = {name: value[end:] for name, value in row.items() if name != "input_ids"}
    if any(bool((value != value[0]).any()) for value in rest.values()):
        return None
    first = {name: value[:end] for name, value in row.items()}
    return Beginning(ids[: place + 1], first, {name: value[:1] for name, value in rest.items()})


def padded(rows: Sequence[Row], pad: Callable[[str], int], side: Literal["left", "right"] = "right") -> Row:
    """Rows of several lengths as one tensor per name, [rows, tokens], padded by ``pad(name)``."""
    pads = torch.nn.utils.rnn.pad_sequence
    return {
        name: pads([row[name] for row in rows], batch_first=True, padding_value=pad(name), padding_side=side)
        for name in rows[0]
    }
