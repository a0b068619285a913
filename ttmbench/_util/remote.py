"""Folders at an address (``s3://bucket/results``), by fsspec, which is imported when an address is used."""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from ttmbench._util.console import show_as
from ttmbench._util.limits import limit, raised_by
from ttmbench._util.third_party_errors import error_line
from ttmbench.errors import DataError, UsageError


class RemoteError(DataError):
    """An address cannot be read or written (exit 4)."""


class RemoteFolder:
    """A folder at an address, which is not accessed yet; ``what`` is the option, for messages.

    UsageError for an unsupported address, or if its package is not installed.
    """

    def __init__(self, address: str, what: str) -> None:
        from fsspec.core import url_to_fs

        scheme, _, rest = address.partition("://")
        if not rest.strip("/"):
            raise UsageError(f"{what} {address} names no bucket or folder; write {scheme}://BUCKET/PATH")
        _refuse_patterns(address, what)
        try:
            self._fs, root = url_to_fs(address)
        except Exception as error:
            raise UsageError(f"{what} {address} cannot be reached: {error_line(error)}") from None
        self.url, self._root = address.rstrip("/"), root.rstrip("/")
        self._same: dict[Path, tuple[int, int]] = {}  # local files as they are at the address

    def is_file(self) -> bool:
        """Whether the address names a file."""
        with self._speaking("", "read"):
            return bool(self._fs.isfile(self._root))

    def files(self, below: str = "") -> list[str]:
        """Names of all files in the folder, or in one ``below`` it; hidden ones and those that leave it are skipped."""
        root = f"{self._root}/{below}".rstrip("/")
        with self._speaking(below, "listed"):
            self._fs.invalidate_cache()
            listing = self._fs.find(root, detail=True) if self._fs.exists(root) else {}
        sizes = {str(path).removeprefix(f"{self._root}/"): int(about["size"] or 0) for path, about in listing.items()}
        for amount, name in ((len(sizes), "remote_files"), (sum(sizes.values()), "remote_bytes")):
            if amount > limit(name):
                raise RemoteError(f"{self.url}/{below} has {amount} {name[7:]}, too many; {raised_by(name)}")
        return sorted(name for name in sizes if _is_plain(name))

    def fetch(self, name: str, folder: Path) -> Path:
        """Downloads a file of `files` to the same place in a local folder."""
        target = folder / name
        with self._speaking(name, "read"):
            target.parent.mkdir(parents=True, exist_ok=True)
            self._fs.get_file(f"{self._root}/{name}", str(target))
        self._same[target] = _stamp(target)
        return target

    def send(self, folder: Path) -> None:
        """Uploads new and changed files of a local folder: JSON files last, after all others that they may name."""
        for path in sorted(folder.rglob("*"), key=lambda path: (path.suffix == ".json", path)):
            name = path.relative_to(folder).as_posix()
            if path.is_file() and _is_plain(name) and self._same.get(path) != (stamp := _stamp(path)):
                with self._speaking(name, "written"):
                    self._fs.makedirs(f"{self._root}/{name}".rpartition("/")[0], exist_ok=True)
                    self._fs.put_file(str(path), f"{self._root}/{name}")
                self._same[path] = stamp

    @contextmanager
    def _speaking(self, name: str, done: str) -> Iterator[None]:
        """Turns errors of the file system into one line."""
        try:
            yield
        except Exception as error:
            raise RemoteError(f"{self.url}/{name} cannot be {done}: {error_line(error)}") from None


def _refuse_patterns(address: str, what: str) -> None:
    if "::" in address or re.search(r"[*\[\]?]", address):
        raise UsageError(f"{what} {address} must be the address of one place, without a pattern, chain or query")


def folder_and_name(address: str, what: str) -> tuple[str, str]:
    """The address of a file's folder, and the file's name; UsageError for a pattern.

    >>> folder_and_name("s3://bucket/results/x.json", "--output_path")
    ('s3://bucket/results', 'x.json')
    """
    _refuse_patterns(address, what)
    folder, _, name = address.rpartition("/")
    return folder, name


def fetched(address: str, what: str) -> Path:
    """A local copy of the files in a folder, or of a file and those beside it that have its stem in their names.

    It is removed when the process ends. UsageError if there is nothing; RemoteError if it cannot be read.
    """
    remote, name = RemoteFolder(address, what), ""
    if remote.is_file():
        folder, name = folder_and_name(address, what)
        remote = RemoteFolder(folder, what)
    stem = PurePosixPath(name).stem.removeprefix("results_")
    names = [file for file in remote.files() if not name or file == name or ("/" not in file and stem in file)]
    if not names:
        raise UsageError(f"{what} {address}: there is no such file, and no folder with results in it")
    home = Path(tempfile.mkdtemp(prefix="ttmbench-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    show_as(str(home), remote.url)
    for file in names:
        remote.fetch(file, home)
    return home / name


def _stamp(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_mtime_ns, about.st_size


def _is_plain(name: str) -> bool:
    """Whether a name stays inside its folder and is not hidden."""
    inside = all(part and not part.startswith(".") for part in name.split("/"))  # "/x" begins with an empty part
    return inside and not any(character in name for character in ("\\", "\0", ":"))
