"""Readers of raw data that need no download: rendered scenes, and a folder of a user's own.

Images open lazily; captions are read here. Other kinds are in `ttmbench.data.files` (annotations beside images that
the user fetches), `ttmbench.data.hub` (the Hugging Face hub), `ttmbench.data.first` (the first of several that
is at hand) and `ttmbench.data.whatsup` (WhatsUp's photographs, paired).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ttmbench.data.loading import inside, read_options
from ttmbench.data.rowfiles import read_rows
from ttmbench.data.rows import ImageCell, groups_from_rows
from ttmbench.errors import UsageError
from ttmbench.limits import limit
from ttmbench.pictures import open_picture
from ttmbench.types import Exif, Group, ImageRef, SourceRequest


class RenderedOptions(BaseModel):
    """Options of ``kind: rendered``: what is drawn, from which seed, in which style."""

    model_config = ConfigDict(extra="forbid")
    scene: str
    seed: int = 0
    style: str = "hue"


class FolderOptions(BaseModel):
    """Options of ``kind: folder``: a file of groups, the folder that its image paths start from, how these are read."""

    model_config = ConfigDict(extra="forbid")
    path: str
    images: str = "."
    exif: Exif = "apply"


def read_rendered(request: SourceRequest) -> Iterable[Group]:
    """Scenes drawn from a seed (`ttmbench.scenes`): the same pictures on every machine."""
    from ttmbench import scenes

    options = read_options(RenderedOptions, request)
    _known("scene", options.scene, scenes.KINDS)
    _known("style", options.style, scenes.STYLES)
    if request.n_groups is None:
        raise UsageError("a rendered task needs 'group.n_groups'")
    if request.n_groups > limit("rendered_groups"):
        raise UsageError(f"a rendered task has at most {limit('rendered_groups')} groups, got {request.n_groups}")
    wanted = request.n_groups if request.limit is None else min(request.limit, request.n_groups)
    for group in scenes.make_groups(options.scene, wanted, options.seed, options.style):
        yield Group(
            group_id=group.group_id,
            images=tuple(
                ImageRef(f"{group.group_id}/{index}", partial(scenes.render, scene))
                for index, scene in enumerate(group.scenes)
            ),
            captions=group.captions,
            tags=group.tags,
        )


def read_folder(request: SourceRequest) -> Iterable[Group]:
    """A user's own task: a JSONL, JSON or CSV file of groups beside an image folder.

    The task file's ``group:`` names the columns. Image paths are relative to the ``images`` folder and stay inside it.
    """
    options = read_options(FolderOptions, request)
    base = request.folder or Path()
    file = inside(base, options.path, "source.path")
    images = inside(base, options.images, "source.images")

    def image(one: ImageCell) -> ImageRef:
        name = one.name
        path = inside(images, name, f"{file}: '{one.column}' of group {one.group_id}")
        return ImageRef(name, partial(open_picture, path), path, path.read_bytes, options.exif)

    yield from groups_from_rows(read_rows(file), request, str(file), image)


def _known(what: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise UsageError(f"source.{what} '{value}' is unknown; known: {', '.join(known)}")
