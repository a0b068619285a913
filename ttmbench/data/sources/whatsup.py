"""WhatsUp's photographs: two objects in four relations. Photographs of a scene stand together, or in pairs.

A scene is the two objects. Its photographs are told by their file names where they have any
(``beer-bottle_on_armchair.jpeg``), else by their captions: the four options of a photograph are the same for its whole
scene, and the first one is true.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from ttmbench.data.availability import DataLocation
from ttmbench.data.paths import read_options
from ttmbench.data.sources.first_of import first_available, locations_of_all
from ttmbench.errors import DataError, UsageError
from ttmbench.types import Group, GroupShape, ImageRef, Loaded, SourceRequest

RELATIONS = {  # relation as file names have it -> the word that tells it in a caption
    "on": "on",
    "under": "under",
    "left_of": "left",
    "right_of": "right",
    "in-front_of": "front",
    "behind": "behind",
}
OPTIONS = 4
_NAME = re.compile(rf"(?P<first>.+?)_(?P<relation>{'|'.join(RELATIONS)})_(?P<second>.+)")
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_ARTICLES = {"a", "an", "the"}


class WrongLabels(BaseModel):
    """Two photographs whose files show each other's relation. The two names alone may be written as a list.

    Attributes:
        photographs: their names.
        sha256: of the two files as they were published, in this order, where that is known.
    """

    model_config = ConfigDict(extra="forbid")
    photographs: tuple[str, str]
    sha256: tuple[Digest, Digest] | None = None

    @model_validator(mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        return {"photographs": value} if isinstance(value, list | tuple) else value


class WhatsupOptions(BaseModel):
    """Options of ``kind: whatsup``.

    Attributes:
        of: sources of the photographs, one with its four captions a row, in the order in which they are tried.
        relations: two relations that make a 2x2 group of each scene; without them each photograph is a 1x4 group.
        wrong_labels: pairs of photographs known to show each other's relation, as ``object_relation_object``, each
            alone or with the digests of its files.
        fix_labels: exchange the images of these pairs, unless they have been corrected.
    """

    model_config = ConfigDict(extra="forbid")
    of: list[dict[str, Any]] = Field(min_length=1)
    relations: tuple[str, str] | None = None
    wrong_labels: list[WrongLabels] = []
    fix_labels: bool = True


@dataclass(frozen=True)
class Photo:
    """One photograph: its objects and their relation, and the captions to choose from, the true one first."""

    first: str
    relation: str
    second: str
    image: ImageRef
    captions: tuple[str, ...]

    @property
    def name(self) -> str:
        """As file names have it."""
        return f"{self.first}_{self.relation}_{self.second}"

    @property
    def scene(self) -> str:
        """The file name without the relation."""
        return f"{self.first}__{self.second}"


def read_whatsup(request: SourceRequest) -> Loaded:
    """WhatsUp's photographs, scene by scene, alone (1x4) or in pairs (2x2).

    Args:
        request: where the photographs are, and how to group them.

    Returns:
        The groups; the record names the source of the photographs and every exchanged pair.

    Raises:
        OutOfReachError: no source is at hand.
        DataError: a photograph's relation cannot be told, or one of a scene is missing or doubled.
        UsageError: the options do not fit the shape.
    """
    options = read_options(WhatsupOptions, request)
    _check(options, request.shape)
    raw = first_available(options.of, _photographs(request))
    scenes = _scenes(_photo(group) for group in raw.groups)
    fixed = _exchange(scenes, options.wrong_labels) if options.fix_labels else {}
    groups = _pairs(scenes, options.relations) if options.relations else _singles(scenes)
    record = {
        "kind": "whatsup",
        "relations": list(options.relations) if options.relations else None,
        "fix_labels": options.fix_labels,
        "corrections": [f"images of {pair} exchanged" for pair, check in fixed.items() if check.exchange],
        "label_checks": {pair: check.detail for pair, check in fixed.items()},
        "data": raw.source,
        "revision": raw.source.get("revision"),
    }
    return Loaded(list(islice(groups, request.limit)), record)


def locations(request: SourceRequest) -> list[DataLocation]:
    """The places of the photographs."""
    return locations_of_all(read_options(WhatsupOptions, request).of, _photographs(request))


def _photographs(request: SourceRequest) -> SourceRequest:
    """The request for the single photographs, whatever groups are made of them."""
    return replace(request, shape=GroupShape(1, OPTIONS), limit=None, n_groups=None)


def _check(options: WhatsupOptions, shape: GroupShape) -> None:
    for relation in options.relations or ():
        if relation not in RELATIONS:
            raise UsageError(f"source.relations: '{relation}' is unknown; known: {', '.join(RELATIONS)}")
    wanted = GroupShape(2, 2) if options.relations else GroupShape(1, OPTIONS)
    if shape != wanted:
        given = "with" if options.relations else "without"
        raise UsageError(f"a whatsup source {given} 'relations' makes {wanted} groups, but group.shape is {shape}")


def _photo(group: Group) -> Photo:
    image = group.images[0]
    found = _NAME.fullmatch(PurePosixPath(image.name).stem)
    if found:
        return Photo(found["first"], found["relation"], found["second"], image, group.captions)
    first, relation, second = told_by_captions(group)
    return Photo(first, relation, second, image, group.captions)


def told_by_captions(group: Group) -> tuple[str, str, str]:
    """First object, relation and second object of a photograph without a file name.

    What all captions begin and end with are the objects; what stands between in the first one is the relation.

    Args:
        group: a photograph with its captions.

    Returns:
        As file names have them.

    Raises:
        DataError: the captions do not tell.
    """
    captions = [caption.rstrip(" .").lower().split() for caption in group.captions]
    start = _common(captions)
    end = _common([words[start:][::-1] for words in captions])
    words = captions[0]
    between = words[start : len(words) - end]
    relations = [relation for relation, word in RELATIONS.items() if word in between]
    first, second = _object(words[:start]), _object(words[len(words) - end :])
    if len(relations) != 1 or not first or not second:
        raise DataError(
            f"photograph {group.group_id}: the relation cannot be told from '{group.captions[0]}' and the others"
        )
    return first, relations[0], second


def _common(sentences: Sequence[Sequence[str]]) -> int:
    """Number of words that all sentences begin with."""
    count = 0
    for words in zip(*sentences, strict=False):
        if len(set(words)) > 1:
            break
        count += 1
    return count


def _object(words: Sequence[str]) -> str:
    return "-".join(words[1:] if words and words[0] in _ARTICLES else words)


def _scenes(photos: Iterable[Photo]) -> dict[str, dict[str, Photo]]:
    """Scene -> relation -> photograph, scenes in the order in which they first appear."""
    scenes: dict[str, dict[str, Photo]] = {}
    for photo in photos:
        scene = scenes.setdefault(photo.scene, {})
        if photo.relation in scene:
            raise DataError(f"scene {photo.scene} has two photographs of '{photo.relation}'")
        scene[photo.relation] = photo
    return scenes


@dataclass(frozen=True)
class _Check:
    """Whether the images of a pair are to be exchanged, and what that rests on."""

    exchange: bool
    detail: str


def _exchange(scenes: dict[str, dict[str, Photo]], pairs: Iterable[WrongLabels]) -> dict[str, _Check]:
    """Gives each photograph of a wrongly labelled pair the other's image, in place, unless the data are corrected.

    Returns:
        What was looked at and done, by pair.
    """
    by_name = {photo.name: photo for scene in scenes.values() for photo in scene.values()}
    done = {}
    for pair in pairs:
        absent = [name for name in pair.photographs if name not in by_name]
        if absent:
            raise DataError(
                f"the label correction needs photograph {absent[0]}, which the data do not have; "
                "--task_args fix_labels=false takes the labels as they are"
            )
        one, other = (by_name[name] for name in pair.photographs)
        check = _still_wrong(one, other, pair.sha256)
        if check.exchange:
            scenes[one.scene][one.relation] = replace(one, image=other.image)
            scenes[other.scene][other.relation] = replace(other, image=one.image)
        done[f"{one.name} and {other.name}"] = check
    return done


def _still_wrong(one: Photo, other: Photo, published: tuple[str, str] | None) -> _Check:
    """Whether the two files still show each other's relation, as far as that can be told."""
    if _says(one) == other.relation and _says(other) == one.relation:
        return _Check(False, "corrected: their captions have been exchanged in the data; nothing is done")
    if published is None:
        return _Check(True, "not checked: no digest known")
    if one.image.read is None or other.image.read is None:
        return _Check(True, "not checked: the images have no bytes to compare")
    found = tuple(hashlib.sha256(photo.image.read()).hexdigest() for photo in (one, other) if photo.image.read)
    if found == published:
        return _Check(True, "checked: the files are those that were published with the error")
    if found == published[::-1]:
        return _Check(False, "corrected: the files have been exchanged in the data; nothing is done")
    return _Check(True, f"not checked: the digests {found[0][:12]} and {found[1][:12]} are not those known")


def _says(photo: Photo) -> str | None:
    """The relation that the captions tell; None if they do not."""
    try:
        return told_by_captions(Group(photo.name, (photo.image,), photo.captions))[1]
    except DataError:
        return None


def _singles(scenes: Mapping[str, Mapping[str, Photo]]) -> Iterator[Group]:
    for scene, photos in scenes.items():
        for relation in RELATIONS:
            if relation in photos:
                photo = photos[relation]
                tags = {"scene": scene, "relation": relation}
                yield Group(photo.name, (photo.image,), photo.captions, tags)


def _pairs(scenes: Mapping[str, Mapping[str, Photo]], relations: Sequence[str]) -> Iterator[Group]:
    for scene, photos in scenes.items():
        for relation in relations:
            if relation not in photos:
                raise DataError(f"scene {scene} has no photograph of '{relation}'")
        pair = [photos[relation] for relation in relations]
        captions = tuple(photo.captions[0] for photo in pair)
        yield Group(scene, tuple(photo.image for photo in pair), captions, {"relations": "/".join(relations)})
