"""Sources made of other sources: the first one that is at hand, and groups with foils drawn at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ttmbench._util.third_party import describe, listed
from ttmbench.data.availability import DataLocation
from ttmbench.data.paths import read_options
from ttmbench.data.task_file import Columns
from ttmbench.errors import DataError, OutOfReachError, UsageError
from ttmbench.types import Group, Loaded, SourceRequest

TRIES = 1000  # draws for each foil until its caption and image are others


class FirstOfOptions(BaseModel):
    """Options of ``kind: first_of``: sources in the order in which they are tried."""

    model_config = ConfigDict(extra="forbid")
    of: list[dict[str, object]] = Field(min_length=1)


def read_first_of(request: SourceRequest) -> Loaded:
    """The first of several sources that is at hand; ``passed_over`` in its record names what was tried before.

    ``of`` lists the sources as task files write them, each with columns of its own if it needs them. OutOfReachError
    says for each why it is not at hand; DataError if the one that is at hand is wrong.
    """
    reasons: list[str] = []
    passed: list[str] = []
    for source in read_options(FirstOfOptions, request).of:
        try:
            loaded = request.read(*_with_columns(source, request))
        except OutOfReachError as error:
            reasons.append(str(error))
            passed.append(f"{source['kind']} {source.get('file') or source.get('path') or ''}".strip())
            continue
        return Loaded(loaded.groups, {**loaded.source, **({"passed_over": passed} if passed else {})})
    raise OutOfReachError(f"data not found in {len(reasons)} places: " * (len(reasons) > 1) + listed(reasons))


def locate_first_of(request: SourceRequest) -> list[DataLocation]:
    """The places of several sources, one after the other."""
    sources = read_options(FirstOfOptions, request).of
    return [location for source in sources for location in request.locations(*_with_columns(source, request))]


def _with_columns(source: Mapping[str, object], request: SourceRequest) -> tuple[Mapping[str, object], SourceRequest]:
    """A source without its ``columns``, and the request for these columns; UsageError if they are wrong."""
    options = {key: value for key, value in source.items() if key != "columns"}
    given = source.get("columns") or {}
    if not isinstance(given, Mapping):
        raise UsageError(f"source.of.columns: must be a mapping, got {given!r:.80}")
    try:
        columns = Columns.model_validate(given)
    except ValidationError as error:
        raise UsageError(f"source.of.columns: {describe(error, Columns)}") from None
    stated = {key: of for key in columns.model_fields_set if (of := getattr(columns, key)) is not None}
    if "label" in stated:  # which stands in the place of the caption, as in every request
        stated["captions"] = [stated.pop("label")]
    return options, replace(request, columns={**request.columns, **stated})


class RandomFoilsOptions(BaseModel):
    """Options of ``kind: random_foils``."""

    model_config = ConfigDict(extra="forbid")
    of: list[dict[str, object]] = Field(min_length=1, max_length=1)  # one source, of square groups
    seed: int = Field(0, ge=0)  # of the draw


def read_random_foils(request: SourceRequest) -> Loaded:
    """As many groups as the other source ``of`` has, each with one of its own pairs and pairs of other groups.

    Such groups show whether a model fails because the wrong choices are hard, or because the images are strange to it.
    The draw depends on the seed and on all groups in their order, not on the limit; a tag ``foils`` names the groups
    and pairs drawn. UsageError if the groups are not square; DataError of the other source, or if it has too few
    different pairs.
    """
    options = read_options(RandomFoilsOptions, request)
    if request.shape.images != request.shape.captions:
        raise UsageError(
            f"source random_foils makes groups of as many images as captions, and group.shape is {request.shape}"
        )
    loaded = request.read(options.of[0], replace(request, limit=None))
    groups = [_with_foils(loaded.groups, index, options.seed) for index in range(len(loaded.groups))[: request.limit]]
    return Loaded(groups, {**loaded.source, "random_foils": {"seed": options.seed, "pairs_of": len(loaded.groups)}})


def locate_random_foils(request: SourceRequest) -> list[DataLocation]:
    """The places of the other source."""
    return request.locations(read_options(RandomFoilsOptions, request).of[0], request)


def _with_foils(groups: Sequence[Group], index: int, seed: int) -> Group:
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
