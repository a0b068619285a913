"""The data folder and the score cache, paths that never leave their folder, and where files come from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar
from urllib.parse import urlsplit

from platformdirs import user_cache_path
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ttmbench._util.third_party import describe
from ttmbench.errors import DataError, UsageError
from ttmbench.types import SourceRequest

HUB_KINDS = ("huggingface", "hub_files")  # of sources whose path is a dataset of the Hub or a folder
DATA_VARIABLE, CACHE_VARIABLE = "TTMBENCH_DATA", "TTMBENCH_CACHE"
Options = TypeVar("Options", bound=BaseModel)
Also = dict[str, tuple[str, ...]]
"""A path of the documented layout -> folders of the data folder that may replace it, as other code and archives name
them. The documented path is looked for first."""

_LOCAL = ("./", "../", "~", "/", ".\\", "..\\")


def data_folder(given: str | Path | None = None, is_read: bool = False) -> Path:
    """The data folder: as given, else of the environment variable TTMBENCH_DATA, else in the user's cache folder.

    UsageError if a given one does not exist, for a command that reads (``is_read``).
    """
    stated = given or os.environ.get(DATA_VARIABLE)
    if not stated:
        return user_cache_path("ttmbench", appauthor=False) / "data"
    folder = Path(stated).expanduser()
    if given is not None and is_read and not folder.is_dir():
        raise UsageError(f"--data_dir {given} must be a folder; `ttmbench download TASKS --data_dir {given}` makes it")
    return folder


def cache_folder(given: str | Path | None) -> Path | None:
    """Path of the score cache: as given, else of TTMBENCH_CACHE, else in the user's cache folder; None for ``off``."""
    stated = str(os.environ.get(CACHE_VARIABLE, "") if given is None else given)
    if stated:
        return None if stated.lower() == "off" else Path(stated).expanduser()
    return user_cache_path("ttmbench", appauthor=False) / "store"


def read_options(model: type[Options], request: SourceRequest) -> Options:
    """The options of a source; UsageError names an unknown, missing or wrong one."""
    try:
        return model(**request.options)
    except ValidationError as error:
        raise UsageError(f"source: {describe(error, model)}") from None


def is_local(path: str) -> bool:
    """Whether a source's ``path`` has the form of a folder of this machine, not of a dataset id of the Hub.

    >>> [is_local(path) for path in ("./mine", "../mine", "~/mine", "/data/mine", "mine", "owner/mine")]
    [True, True, True, True, False, False]
    """
    return path in (".", "..") or path.startswith(_LOCAL) or Path(path).is_absolute()


def local_path(path: str, base: Path) -> str:
    """A source's ``path``: the absolute path of a folder, or the unchanged id of a dataset on the Hub.

    A relative folder starts from ``base``, the task file's folder. UsageError for an id if the task file's folder has a
    folder of that name.
    """
    if is_local(path):
        return os.path.abspath(base / Path(path).expanduser())  # noqa: PTH100 - links on the way stay what they are
    if (base / path).is_dir():
        raise UsageError(
            f"source.path: '{path}' is the id of a dataset on the Hub by its form, but there is a folder "
            f"{(base / path).absolute()}; write './{path}' for the folder, or rename it to read the dataset"
        )
    return path


def below(base: Path, relative: str, what: str) -> Path:
    """A path of a task file below a folder; UsageError names the option ``what`` if it is absolute or has ``..``.

    Links on the way are the user's own arrangement and may lead elsewhere.
    """
    path = PurePosixPath(relative)
    if path.is_absolute() or ".." in path.parts or Path(relative).is_absolute():
        raise UsageError(f"{what}: '{relative}' leaves the folder {base}")
    return base / relative


def inside(base: Path, relative: str, what: str, roots: Sequence[Path] = ()) -> Path:
    """A path from data below the folder ``base``, links followed; DataError, with ``what``, if it leaves the folder.

    Links may lead into one of ``roots``, by default the base itself.
    """
    path = base / relative
    # Before links are followed: with wider roots, ".." must not reach what lies beside the base.
    lexical = _is_below(os.path.abspath(path), os.path.abspath(base))  # noqa: PTH100
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a circle of links; a null character
        raise DataError(f"{what}: {relative!r} is not a usable path ({error})") from None
    ends, end = roots or (base,), str(resolved)
    # Most folders have no link on the way to them, and there is nothing to follow once for each image.
    if not lexical or not (
        any(_is_below(end, str(root)) for root in ends) or any(_is_below(end, str(root.resolve())) for root in ends)
    ):
        raise DataError(f"{what}: '{relative}' leaves the folder {base}")
    return resolved


def _is_below(path: str, folder: str) -> bool:
    """Whether an absolute path without ``..`` is a folder or in it; texts, since `Path` is slow for many images."""
    path, folder = os.path.normcase(path), os.path.normcase(folder)
    return path == folder or path.startswith(os.path.join(folder, ""))  # noqa: PTH118


def find(base: Path, path: str, also: Mapping[str, Sequence[str]], inner: Sequence[str] = ()) -> str:
    """The first of a path's names that exists below the data folder with all of ``inner`` in it; else the path.

    With ``{"whatsup": ["raw", "."]}``, ``whatsup/a.json`` may also be ``raw/a.json`` or ``a.json``.
    """
    names = [path]
    for name, others in also.items():
        if path == name or path.startswith(f"{name}/"):
            names += [(PurePosixPath(other) / path[len(name) + 1 :]).as_posix() for other in others]
    for name in names:
        folder = below(base, name, "source")
        if folder.exists() and all((folder / inside).exists() for inside in inner):
            return name
    return path


class FirstKey(BaseModel):
    """A mapping; a text alone is the value of its first key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, value: object) -> object:
        return {next(iter(cls.model_fields)): value} if isinstance(value, str) else value


class Origin(FirstKey):
    """The entry of one path in ``get:``. An address alone may be written as a string.

    Attributes:
        url: http or https address of the file or archive; Google Drive's ``uc?id=`` addresses work.
        page: instead of ``url``: the page where users get the file, if they must agree to something first.
        name: the owner's name for the file, if the address does not show it.
        unpack: extract the archive (zip, tar, tar.gz, tar.bz2, tar.xz) to this path.
        member: file or folder of the archive to extract; by default everything, without enclosing folders.
        listed: the path is a folder of images whose addresses are in the rows (``addresses`` of the source).
        sha256: digest of the downloaded file.
        bytes: size of the downloaded file.
    """

    url: str | None = None
    page: str | None = None
    name: str | None = None
    unpack: bool = False
    listed: bool = False
    member: str | None = None
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    bytes: int | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _consistent(self) -> Origin:
        if self.listed:
            if self.model_fields_set != {"listed"}:
                raise ValueError("'listed' must be alone: the addresses are in the rows")
            return self
        if (self.url is None) == (self.page is None):
            raise ValueError("needs either 'url', which is downloaded, or 'page', which users visit")
        address = urlsplit(self.url or self.page or "")
        if address.scheme not in ("http", "https") or not address.hostname or " " in (self.url or ""):
            raise ValueError("must be an http or https address; 'unpack: true' says that it is an archive")
        if self.member is not None and not self.unpack:
            raise ValueError("'member' is a part of an archive, so it needs 'unpack: true'")
        return self

    def __str__(self) -> str:
        if self.listed:
            return "the addresses in its rows"
        name = f" [{self.name}]" if self.name else ""
        return f"{self.url or self.page}{' (unpacked)' if self.unpack else ''}{name}"


class TagFile(FirstKey):
    """A file of further tags below the data folder, and where it comes from.

    Attributes:
        file: path below the data folder.
        get: where it comes from.
    """

    file: str
    get: Origin | None = None
