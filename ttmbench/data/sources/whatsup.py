"""WhatsUp's photographs of two objects in four relations, one by one or in pairs.

The objects and the relation are read from the file name (``beer-bottle_on_armchair.jpeg``), else from the captions: the
four options of a photograph are the same for all photographs of the objects, and the first one is true.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from pathlib import PurePosixPath

from pydantic import BaseModel, ConfigDict, Field

from ttmbench.data.availability import DataLocation
from ttmbench.data.paths import read_options
from ttmbench.errors import DataError, UsageError
from ttmbench.types import Group, GroupShape, ImageRef, Loaded, SourceRequest

RELATIONS = {  # relation in file names -> its word in captions
    "on": "on",
    "under": "under",
    "left_of": "left",
    "right_of": "right",
    "in-front_of": "front",
    "behind": "behind",
}
OPTIONS = 4
_NAME = re.compile(rf"(?P<first>.+?)_(?P<relation>{'|'.join(RELATIONS)})_(?P<second>.+)")
_ARTICLES = {"a", "an", "the"}


class WhatsupOptions(BaseModel):
    """Options of ``kind: whatsup``."""

    model_config = ConfigDict(extra="forbid")
    of: list[dict[str, object]] = Field(min_length=1)  # photographs with four captions each, tried in this order
    relations: tuple[str, str] | None = None  # of a 2x2 group of each scene; without, photographs are 1x4
    wrong_labels: list[tuple[str, str]] = []  # photographs that show each other's relation, by their names
    fix_labels: bool = True  # exchange the images of these pairs, unless their captions have been exchanged


@dataclass(frozen=True)
class Photo:
    """One photograph, its two objects and their relation, and its captions, the true one first."""

    first: str
    relation: str
    second: str
    image: ImageRef
    captions: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its name in file names."""
        return f"{self.first}_{self.relation}_{self.second}"

    @property
    def scene(self) -> str:
        """The file name without the relation."""
        return f"{self.first}__{self.second}"


def read_whatsup(request: SourceRequest) -> Loaded:
    """WhatsUp's photographs, scene by scene, one by one (1x4) or in pairs (2x2).

    The record has the source of the photographs and every exchanged pair. OutOfReachError if no source is at hand;
    DataError if a photograph's relation is unknown, or one of a scene is missing or doubled; UsageError if the options
    do not fit the shape.
    """
    options = read_options(WhatsupOptions, request)
    relations = options.relations
    for relation in relations or ():
        if relation not in RELATIONS:
            raise UsageError(f"source.relations: '{relation}' is unknown; known: {', '.join(RELATIONS)}")
    wanted = GroupShape(2, 2) if relations else GroupShape(1, OPTIONS)
    if request.shape != wanted:
        stated = f"a whatsup source {'with' if relations else 'without'} 'relations'"
        raise UsageError(f"{stated} makes {wanted} groups, but group.shape is {request.shape}")
    raw = request.read(*_photographs(options, request))
    scenes = _scenes(raw.groups)
    exchanged = _exchange(scenes, options.wrong_labels) if options.fix_labels else []
    groups = _pairs(scenes, relations) if relations else _singles(scenes)
    record = {
        "kind": "whatsup",
        "relations": list(relations) if relations else None,
        "fix_labels": options.fix_labels,
        "corrections": [f"images of {first} and {second} exchanged" for first, second in exchanged],
        "data": raw.source,
        "revision": raw.source.get("revision"),
    }
    return Loaded(list(islice(groups, request.limit)), record)


def locate_whatsup(request: SourceRequest) -> list[DataLocation]:
    """The locations of the photographs."""
    return request.locations(*_photographs(read_options(WhatsupOptions, request), request))


def _photographs(options: WhatsupOptions, request: SourceRequest) -> tuple[dict[str, object], SourceRequest]:
    """The source of the single photographs, and the request for them."""
    single = replace(request, shape=GroupShape(1, OPTIONS), limit=None, n_groups=None)
    return {"kind": "first_of", "of": options.of}, single


def told_by_captions(group: Group) -> tuple[str, str, str]:
    """First object, relation and second object of a photograph, from its captions, as file names have them.

    The common beginning and end of all captions are the objects; the rest of the first one is the relation. DataError
    if that fails.
    """
    captions = [caption.rstrip(" .").lower().split() for caption in group.captions]
    words = captions[0]
    start = _common(captions)
    end = len(words) - _common([caption[start:][::-1] for caption in captions])
    relations = [relation for relation, word in RELATIONS.items() if word in words[start:end]]
    objects = (words[:start], words[end:])
    first, second = ("-".join(name[1:] if name and name[0] in _ARTICLES else name) for name in objects)
    if len(relations) != 1 or not first or not second:
        raise DataError(
            f"photograph {group.group_id}: the relation cannot be determined from '{group.captions[0]}' and the others"
        )
    return first, relations[0], second


def _common(sentences: Sequence[Sequence[str]]) -> int:
    """Length of the common beginning of all sentences, in words."""
    return len(list(takewhile(lambda words: len(set(words)) == 1, zip(*sentences, strict=False))))


def _scenes(groups: Iterable[Group]) -> dict[str, dict[str, Photo]]:
    """Scene -> relation -> photograph, scenes in the order in which they first appear."""
    scenes: dict[str, dict[str, Photo]] = {}
    for group in groups:
        named = _NAME.fullmatch(PurePosixPath(group.images[0].name).stem)
        first, relation, second = named.groups() if named else told_by_captions(group)
        photo = Photo(first, relation, second, group.images[0], group.captions)
        scene = scenes.setdefault(photo.scene, {})
        if photo.relation in scene:
            raise DataError(f"scene {photo.scene} has two photographs of '{photo.relation}'")
        scene[photo.relation] = photo
    return scenes


def _exchange(scenes: dict[str, dict[str, Photo]], pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Exchanges the images of these pairs in place, unless the data have other captions; returns those exchanged."""
    by_name = {photo.name: photo for scene in scenes.values() for photo in scene.values()}
    exchanged = []
    for pair in pairs:
        absent = [name for name in pair if name not in by_name]
        if absent:
            raise DataError(
                f"the label correction needs photograph {absent[0]}, which the data do not have; "
                "--task_args fix_labels=false takes the labels as they are"
            )
        first, second = (by_name[name] for name in pair)
        with suppress(DataError):
            told = [told_by_captions(Group(one.name, (one.image,), one.captions))[1] for one in (first, second)]
            if told == [second.relation, first.relation]:
                continue
        scenes[first.scene][first.relation] = replace(first, image=second.image)
        scenes[second.scene][second.relation] = replace(second, image=first.image)
        exchanged.append(pair)
    return exchanged


def _singles(scenes: Mapping[str, Mapping[str, Photo]]) -> Iterator[Group]:
    for scene, photos in scenes.items():
        for photo in (photos[relation] for relation in RELATIONS if relation in photos):
            yield Group(photo.name, (photo.image,), photo.captions, {"scene": scene, "relation": photo.relation})


def _pairs(scenes: Mapping[str, Mapping[str, Photo]], relations: Sequence[str]) -> Iterator[Group]:
    for scene, photos in scenes.items():
        absent = [relation for relation in relations if relation not in photos]
        if absent:
            raise DataError(f"scene {scene} has no photograph of '{absent[0]}'")
        pair = [photos[relation] for relation in relations]
        captions = tuple(photo.captions[0] for photo in pair)
        yield Group(scene, tuple(photo.image for photo in pair), captions, {"relations": "/".join(relations)})
