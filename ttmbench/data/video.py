"""Videos: which frames of a file are read, and how a model's features of them become one vector.

A video is opened as one image, its frames below one another (`ttmbench._util.images.stacked`), so everything that
reads, checks, caches or shows images takes it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ttmbench._util.file_io import check_no_pointer, limit, raised_by
from ttmbench._util.images import BadImage, check_size, stacked
from ttmbench.errors import DataError, UsageError
from ttmbench.types import ImageRef

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_FRAMES = 256
CONTAINERS = {
    ".avi": "avi",
    ".m4v": "mp4",
    ".mkv": "matroska",
    ".mov": "mov",
    ".mp4": "mp4",
    ".webm": "matroska",
}
"""Endings of files that PyAV decodes, with the one format that each is read as: no playlist that names other files."""


class Video(BaseModel):
    """How videos are read and pooled: ``video`` of a task's source.

    Attributes:
        frames: frames per video; a video with fewer is an error.
        rule: ``middles``, the middle of each of equal parts of the video; ``linspace``, evenly spaced from the first to
            the last frame, rounded down; ``stride``, the first of every (all // frames)-th frame.
        pooling: mean of a dual encoder's frame features, before or after each is normalised; the mean is normalised in
            both cases.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    frames: int = Field(8, ge=1, le=MOST_FRAMES)
    rule: Literal["linspace", "middles", "stride"] = "middles"
    pooling: Literal["after_normalization", "before_normalization"] = "after_normalization"


def sampled(total: int, frames: int, rule: str) -> list[int]:
    """Positions of the frames that are read, of ``total``, by a rule of `Video`.

    >>> [sampled(11, 4, rule) for rule in ("linspace", "middles", "stride")]
    [[0, 3, 6, 10], [1, 4, 6, 9], [0, 2, 4, 6]]
    """
    if rule == "linspace":
        return [int(position) for position in np.linspace(0, total - 1, frames, dtype=int)]
    if rule == "stride":
        return list(range(0, total, max(1, total // frames)))[:frames]
    return [(2 * part + 1) * total // (2 * frames) for part in range(frames)]


def stored_video(name: str, path: Path, video: Video) -> ImageRef:
    """A video in a file; UsageError if it needs a package that is not installed, DataError for another kind of file."""
    if path.suffix.lower() not in CONTAINERS:
        raise DataError(f"{name} is not a video: its name must end in one of {', '.join(sorted(CONTAINERS))}")
    try:
        version("av")
    except PackageNotFoundError:
        raise UsageError(f"reading {name} needs the package av; pip install 'ttmbench[video]'") from None
    how = f"video {video.frames} {video.rule};"
    return ImageRef(name, partial(open_video, path, video), None, path.read_bytes, variant=how)


def open_clip(total: int, draw: Callable[[int], Image], video: Video) -> Image:
    """The sampled frames of a video whose frames are drawn one by one."""
    return stacked([draw(position) for position in _chosen(total, video)])


def _chosen(total: int, video: Video) -> list[int]:
    if total < video.frames:
        frames = "1 frame" if total == 1 else f"{total} frames"
        raise BadImage(f"it has {frames}, fewer than the {video.frames} that are wanted (--task_args video.frames=N)")
    if total > limit("video_frames"):
        raise BadImage(f"it has {total} frames, more than {limit('video_frames')}; {raised_by('video_frames')}")
    return sampled(total, video.frames, video.rule)


def open_video(path: Path, video: Video) -> Image:
    """The sampled frames of a file as one image, below one another; BadImage if it is damaged or too short.

    Decodes from the first frame on, so that a frame's position is its place in the video and not a time stamp.
    """
    import av

    check_no_pointer(path)
    kind = CONTAINERS[path.suffix.lower()]
    try:
        total = _packets(path, kind)
        for _ in range(2):
            positions = _chosen(total, video)
            images, count = _decoded(path, kind, set(positions))
            if count == total:  # else there are packets without a frame of their own, and the file is read again
                return stacked([images[position] for position in positions])
            total = count
        raise BadImage("it is damaged: it decodes to another number of frames each time")
    except (av.error.FFmpegError, OSError) as error:
        raise BadImage(f"it cannot be decoded: {error.strerror or error}") from None


def _packets(path: Path, kind: str) -> int:
    """About how many frames there are; BadImage if the file ends before a frame that its index lists."""
    with _opened(path, kind) as (container, stream):
        size = path.stat().st_size
        if any(entry.pos + entry.size > size for entry in stream.index_entries):
            raise BadImage("it is damaged: the file ends before its last frame")
        return sum(packet.size > 0 for packet in container.demux(stream))


def _decoded(path: Path, kind: str, wanted: set[int]) -> tuple[dict[int, Image], int]:
    """The wanted frames by position, and how many frames there are."""
    images: dict[int, Image] = {}
    count = 0
    with _opened(path, kind) as (container, stream):
        for position, frame in enumerate(container.decode(stream)):
            count = position + 1
            if frame.is_corrupt:
                raise BadImage(f"it is damaged: frame {position} cannot be decoded")
            if position in wanted:
                check_size((frame.width, frame.height))
                images[position] = frame.to_image()
    return images, count


@contextmanager
def _opened(path: Path, kind: str) -> Iterator[tuple[Any, Any]]:
    """The container and its video stream, both of PyAV."""
    import av

    # PyAV 19 no longer knows this argument.
    options = {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}
    with path.open("rb") as file, av.open(file, format=kind, **options) as container:
        if not container.streams.video:
            raise BadImage("it has no video stream")
        stream = container.streams.video[0]
        if stream.codec_context is None:
            raise BadImage("it is encoded in a way that PyAV does not know")
        if stream.width and stream.height:  # before a frame is decoded
            check_size((stream.width, stream.height))
        yield container, stream
