"""Groups whose foils are drawn at random: one pair of each group of another source beside pairs of other groups.

It tells whether a model fails a task because its wrong choices are hard, or because the images are strange to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ttmbench.data.availability import DataLocation
from ttmbench.data.paths import read_options
from ttmbench.errors import DataError, UsageError
from ttmbench.types import Group, Loaded, SourceRequest

TRIES = 1000  # draws for each foil until its caption and image are others


class RandomFoilsOptions(BaseModel):
    """Options of ``kind: random_foils``.

    Attributes:
        of: the source of the pairs, alone in a list; its groups have as many images as captions.
        seed: of the draw.
    """

    model_config = ConfigDict(extra="forbid")
    of: list[dict[str, object]] = Field(min_length=1, max_length=1)
    seed: int = Field(0, ge=0)


def read_random_foils(request: SourceRequest) -> Loaded:
    """As many groups as the other source ``of`` has, each with one of its own pairs and pairs of other groups.

    Which pair of a group stays and which come from others depends on the seed and on all groups in their order, not on
    the limit. A tag ``foils`` names the groups and pairs that were drawn. UsageError if the groups are not square;
    DataError of the other source, or if it has too few different pairs.
    """
    options = read_options(RandomFoilsOptions, request)
    if request.shape.images != request.shape.captions:
        raise UsageError(
            f"source random_foils makes groups of as many images as captions, and group.shape is {request.shape}"
        )
    loaded = request.read(options.of[0], replace(request, limit=None))
    groups = [_group(loaded.groups, index, options.seed) for index in range(len(loaded.groups))[: request.limit]]
    return Loaded(groups, {**loaded.source, "random_foils": {"seed": options.seed, "pairs_of": len(loaded.groups)}})


def locations(request: SourceRequest) -> list[DataLocation]:
    """The places of the other source."""
    return request.locations(read_options(RandomFoilsOptions, request).of[0], request)


def _group(groups: Sequence[Group], index: int, seed: int) -> Group:
    """The group at a position: one of its pairs, and pairs drawn from other groups, of other captions and images."""
    source, size = groups[index], len(groups[index].images)
    rng = np.random.default_rng([seed, index])
    pair = int(rng.integers(size))
    images, captions, drawn = [source.images[pair]], [source.captions[pair]], list[str]()
    for _ in range(TRIES * (size - 1) if len(groups) > 1 else 0):
        if len(images) == size:
            break
        other = int(rng.integers(len(groups) - 1))
        other += other >= index  # any but the group's own, whose pairs are the foils that were made for it
        position = int(rng.integers(len(groups[other].images)))
        image, caption = groups[other].images[position], groups[other].captions[position]
        if caption not in captions and image not in images:
            images.append(image)
            captions.append(caption)
            drawn.append(f"{groups[other].group_id}/{position}")
    if len(images) < size:
        raise DataError(
            f"source random_foils: {len(groups)} groups have no pair that is a foil of group {source.group_id}"
        )
    tags = {**source.tags, "pair": str(pair), "foils": ", ".join(drawn)}
    return Group(source.group_id, tuple(images), tuple(captions), tags)
