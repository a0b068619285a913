"""Scenes drawn from a seed, which need no download. Images are drawn when they are opened."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from ttmbench._util.limits import limit
from ttmbench.data.availability import DataLocation
from ttmbench.data.paths import read_options
from ttmbench.data.video import Video, open_clip
from ttmbench.errors import UsageError
from ttmbench.types import Group, ImageRef, SourceRequest

if TYPE_CHECKING:
    from PIL.Image import Image


class RenderedOptions(BaseModel):
    """Options of ``kind: rendered``: what is drawn, from which seed, in which style."""

    model_config = ConfigDict(extra="forbid")
    scene: str
    seed: int = 0
    style: str = "hue"
    video: Video | None = None


def read_rendered(request: SourceRequest) -> Iterable[Group]:
    """Scenes drawn from a seed (`ttmbench.data.rendered.scenes`), the same on every machine."""
    from ttmbench.data.rendered import scenes

    options = read_options(RenderedOptions, request)
    if request.n_groups is None:
        raise UsageError("a rendered task needs 'group.n_groups'")
    if request.n_groups > limit("rendered_groups"):
        raise UsageError(f"a rendered task has at most {limit('rendered_groups')} groups, got {request.n_groups}")
    wanted = request.n_groups if request.limit is None else min(request.limit, request.n_groups)
    if (options.video is None) == (options.scene == scenes.CLIPS):
        raise UsageError(f"source.video: scene {scenes.CLIPS} needs it, and other scenes are images")
    try:
        if options.video is not None:
            groups = scenes.make_clips(wanted, options.seed, options.style)
        else:
            groups = scenes.make_groups(options.scene, wanted, options.seed, options.style)
    except ValueError as error:
        raise UsageError(f"source.{error}") from None
    for group in groups:
        images = (
            ImageRef(f"{group.group_id}/{index}", partial(_draw, scene, options.video))
            for index, scene in enumerate(group.scenes)
        )
        yield Group(group.group_id, tuple(images), group.captions, group.tags)


def _draw(shown: Any, video: Video | None) -> Image:
    """A scene, or the sampled frames of a clip."""
    from ttmbench.data.rendered.scenes import render

    return render(shown) if video is None else open_clip(len(shown), lambda position: render(shown[position]), video)


def locate_rendered(request: SourceRequest) -> list[DataLocation]:
    """Scenes are drawn: nothing is needed."""
    return [DataLocation("drawn on this machine", ())]
