"""Datasets in webdataset shards: tar files of images with texts beside them, on the hub or in a folder."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from ttmbench._util.images import open_image
from ttmbench.data.availability import DataLocation, LocalFile
from ttmbench.data.download.hub import HubShards
from ttmbench.data.hub_access import commit_of, snapshot, where_it_is
from ttmbench.data.layouts import Also
from ttmbench.data.loading import below, check_folder, data_folder, is_local, read_hub_options
from ttmbench.data.rows import ImageCell, groups_from_rows
from ttmbench.data.tar_rows import TarMember, in_order, tar_members, tar_rows
from ttmbench.errors import DataError
from ttmbench.types import Exif, ImageRef, Loaded, SourceRequest

if TYPE_CHECKING:
    from PIL.Image import Image

COUNT = "nshards.txt"  # beside the shards, how many there are


class WebdatasetOptions(BaseModel):
    """Options of ``kind: webdataset``.

    Attributes:
        path: id of a dataset repository, or the absolute path of a local folder of its files.
        revision: commit.
        shards: pattern of the tar files of the split.
        lines: columns of texts whose lines are items of a list: several captions of an image.
        exif: whether images are turned upright by their EXIF data.
        also: id of the repository -> folders of the data folder that may hold its files.
    """

    model_config = ConfigDict(extra="forbid")
    path: str
    revision: str | None = None
    shards: str = "test/*.tar"
    lines: tuple[str, ...] = ()
    exif: Exif = "apply"
    also: Also = Field(default_factory=dict)

    @property
    def where(self) -> str:
        """What messages call it."""
        return where_it_is(self.path, None if is_local(self.path) else self.revision)

    @property
    def patterns(self) -> list[str]:
        """Files to fetch."""
        return [self.shards, (PurePosixPath(self.shards).parent / COUNT).as_posix()]

    def found_in(self, folder: Path) -> list[str]:
        """Names of the shards that a folder has, in order."""
        names = [file.relative_to(folder).as_posix() for file in folder.rglob("*.tar") if file.is_file()]
        return in_order([name for name in names if fnmatchcase(name, self.shards)])

    def incomplete(self, folder: Path) -> str | None:
        """What is missing of the shards; None if they are as many as the folder says, or it does not say."""
        found = self.found_in(folder)
        count = folder / PurePosixPath(self.shards).parent / COUNT
        text = count.read_text(encoding="utf-8").strip() if count.is_file() and count.stat().st_size < 100 else ""
        if text.isascii() and text.isdigit() and int(text) != len(found):
            return f"{len(found)} of {text} shards are there"
        return None if found else f"there is no {self.shards}"

    def damaged(self, folder: Path) -> dict[str, str]:
        """Shards that cannot be read to their end -> why."""
        found: dict[str, str] = {}
        for name in self.found_in(folder):
            try:
                for _ in tar_members(folder / name):
                    pass
            except DataError as error:
                found[name] = str(error)
        return found

    def unusable(self, folder: Path) -> str | None:
        """What is missing of the shards, or why the first of the damaged ones cannot be read."""
        return self.incomplete(folder) or next(iter(self.damaged(folder).values()), None)

    def local_copy(self, data_dir: Path) -> Path | None:
        """The folder of the user's own that has the shards, if there is one."""
        if is_local(self.path):
            return Path(self.path)
        folders = [below(data_dir, name, "source.also") for name in self.also.get(self.path, ())]
        return next((folder for folder in folders if folder.is_dir() and self.found_in(folder)), None)


@dataclass(frozen=True)
class LocalShards(LocalFile):
    """A local folder of shards."""

    options: WebdatasetOptions

    def missing(self) -> str | None:
        """Whether all shards are there and whole."""
        return super().missing() or self.options.unusable(self.path)


def read_webdataset(request: SourceRequest) -> Loaded:
    """Images with texts, from tar files.

    Args:
        request: columns are ``image``, ``txt``, ``json.name``, ``cls``, ``__key__``.

    Returns:
        The groups.

    Raises:
        OutOfReachError: the repository is neither in the cache nor to be fetched.
        DataError: a shard is missing or not what it should be.
    """
    options = read_hub_options(WebdatasetOptions, request)
    check_folder(options.path)
    own = options.local_copy(request.data_dir or data_folder())
    folder = own or snapshot(options.path, options.revision, options.patterns, request.offline)
    lacking = options.incomplete(folder)
    if lacking is not None:
        raise DataError(f"{options.where}: {lacking} in {folder}; `ttmbench download` fetches it again")

    def image(one: ImageCell) -> ImageRef:
        member = one.value
        if not isinstance(member, TarMember):
            raise DataError(f"{one.where}: '{one.column}' of group {one.group_id} is no image")
        name = f"{member.tar.relative_to(folder).as_posix()}/{member.name}"
        return ImageRef(name, partial(_open, member), read=member.read, exif=options.exif)

    shards = [folder / name for name in options.found_in(folder)]
    groups = groups_from_rows(tar_rows(shards, options.lines), replace(request, limit=None), options.where, image)
    record: dict[str, Any] = {"revision": None if own else commit_of(folder), "exif": options.exif}
    if own is not None:
        record["folder"] = str(own)
    return Loaded(list(islice(groups, request.limit)), record)


def locations(request: SourceRequest) -> list[DataLocation]:
    """Shards of a repository of the hub, or a local folder of them."""
    options = read_hub_options(WebdatasetOptions, request)
    own = options.local_copy(request.data_dir or data_folder())
    if own is not None:
        return [DataLocation(str(own), [LocalShards(own, options)])]
    return [DataLocation(options.where, [HubShards(options)])]


def _open(member: TarMember) -> Image:
    return open_image(io.BytesIO(member.read()))
