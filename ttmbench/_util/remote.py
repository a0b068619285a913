"""Folders at an address (``s3://bucket/results``), by fsspec: listed, fetched within bounds, and written whole.

fsspec is imported when an address is used, and the package that a kind of address needs is the user's to install.
"""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from ttmbench._util.console import show_as
from ttmbench._util.files import replace_file
from ttmbench._util.limits import limit, raised_by
from ttmbench._util.redact import place_in_url, scrub, without
from ttmbench._util.third_party_errors import error_line
from ttmbench.errors import DataError, UsageError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

# There a file appears whole or not at all, and a rename would be a copy; elsewhere files are renamed into place.
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "ocilake", "oci", "hf"})
_CHUNK = 1 << 20
_SHORTEST = 4  # a shorter part of an address may be any word
_USER = re.compile(r"^\w[\w+.-]*://([^/?#]*)@")


class RemoteError(DataError):
    """An address cannot be read or written; the message names it without its secrets (exit 4)."""


class RemoteFolder:
    """A remote folder and a local copy of the files that are read or written.

    Args:
        address: of a folder, or of a file, whose name is then ``""``. It is not accessed yet.
        what: the option or argument, for messages.

    Attributes:
        url: the address without secrets.
        home: local folder, removed when the process ends.
        copy: the local files, in ``home``; messages name the address instead.

    Raises:
        UsageError: an unsupported or ambiguous address, or a package is missing.
    """

    def __init__(self, address: str, what: str) -> None:
        base, _, query = address.partition("?")
        shown, scheme = place_in_url(address), address.partition("://")[0].lower()
        if not base.partition("://")[2].strip("/"):
            raise _no_bucket(address, what)
        if "::" in address or any(character in base for character in "*[]"):
            raise UsageError(f"{what} {shown} is a pattern or a chain of addresses; give the address of one place")
        self._secrets = _secrets_in(address)
        self._fs, root = _reached(address, scheme, f"{what} {shown}", self._secrets)
        self._root = root.removesuffix(f"?{query}").rstrip("/")
        self.url = shown.partition("?")[0].rstrip("/")
        self.home = Path(tempfile.mkdtemp(prefix="ttmbench-"))
        atexit.register(self.remove_copy)
        self.copy = self.home / "results"
        self.copy.mkdir()
        show_as(str(self.copy), self.url)
        self._there: dict[str, tuple[int, int]] = {}  # state of the local files that are the same at the address

    def named(self, name: str) -> str:
        """The address of a file, without secrets."""
        return f"{self.url}/{name}" if name else self.url

    def keep_copy(self) -> None:
        """Keeps the local files when the process ends."""
        atexit.unregister(self.remove_copy)

    def remove_copy(self) -> None:
        """Removes the local files."""
        shutil.rmtree(self.home, ignore_errors=True)

    def is_file(self) -> bool:
        """Whether the address names a file."""
        with self._speaking("", "read"):
            self._fs.invalidate_cache()
            return bool(self._fs.isfile(self._root))

    def files(self, below: str = "") -> dict[str, int]:
        """Name -> bytes of all files in the folder, or in one ``below`` it; none if it does not exist.

        Names are relative to the folder, with slashes; hidden files and names that leave the folder are skipped.
        """
        with self._speaking(below, "listed"):
            self._fs.invalidate_cache()
            try:
                listing = self._fs.find(self._path(below), detail=True)
            except FileNotFoundError:
                return {}
        most, start = limit("remote_files"), f"{self._root.lstrip('/')}/"
        if len(listing) > most:
            raise RemoteError(
                f"{self.named(below)} has {len(listing)} files, and at most {most} are looked at; "
                f"{raised_by('remote_files')}"
            )
        sizes = {
            str(path).lstrip("/").removeprefix(start): int(about.get("size") or 0) for path, about in listing.items()
        }
        return {name: sizes[name] for name in sorted(sizes) if _is_plain(name)}

    def fetch(self, name: str, most: str) -> bool:
        """Downloads a file in one step; returns whether it exists.

        Args:
            name: of the file, which must stay inside the folder.
            most: name of the limit on its bytes.

        Raises:
            RemoteError: it cannot be read, or is too large.
        """
        bound, target = limit(most), self.copy / name

        def copy(path: Path) -> None:
            with self._fs.open(self._path(name), "rb") as source, path.open("wb") as file:
                while chunk := source.read(_CHUNK):
                    if file.tell() + len(chunk) > bound:
                        raise RemoteError(
                            f"{self.named(name)} is too large: more than {bound} bytes; {raised_by(most)}"
                        )
                    file.write(chunk)

        with self._speaking(name, "read"):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                replace_file(target, copy, to_disk=False)
            except FileNotFoundError:
                return False
        self._there[name] = _stamp(target)
        return True

    def send(self) -> None:
        """Uploads new and changed files: JSON files, the newest last, after all others that they may name.

        Raises:
            RemoteError: a file cannot be written; those before it are uploaded.
        """
        paths = {"/".join(path.relative_to(self.copy).parts): path for path in self.copy.rglob("*") if path.is_file()}
        hidden = [name for name in paths if any(part.startswith(".") for part in name.split("/"))]
        stamps = {name: _stamp(path) for name, path in paths.items() if name not in hidden}
        for name in sorted(stamps, key=lambda name: (name.endswith(".json"), stamps[name])):
            if self._there.get(name) != stamps[name]:
                self._put(paths[name], name)
                self._there[name] = stamps[name]
        for name in self._there.keys() - stamps.keys():  # renamed
            with self._speaking(name, "removed"), suppress(FileNotFoundError):
                self._fs.rm_file(self._path(name))
            del self._there[name]

    def _put(self, source: Path, name: str) -> None:
        """Uploads a file; readers see the old file or the whole new one."""
        target, protocol = self._path(name), self._fs.protocol
        with self._speaking(name, "written"):
            if (protocol if isinstance(protocol, str) else protocol[0]) in _OBJECT_STORES:
                self._fs.put_file(str(source), target)
                return
            folder, _, base = target.rpartition("/")
            temporary = f"{folder}/.{base}.{token_hex(6)}.tmp"
            self._fs.makedirs(folder, exist_ok=True)
            try:
                self._fs.put_file(str(source), temporary)
                self._fs.mv(temporary, target)
            except BaseException:
                with suppress(Exception):
                    self._fs.rm_file(temporary)
                raise

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextmanager
    def _speaking(self, name: str, done: str) -> Iterator[None]:
        """Turns errors of the file system into one line."""
        try:
            yield
        except RemoteError:
            raise
        except Exception as error:
            why = _clean(error_line(error), self._secrets)
            raise RemoteError(f"{self.named(name)} cannot be {done}: {why}") from None


def folder_and_name(address: str, what: str) -> tuple[str, str]:
    """The address of a file's folder, with the query, and the file's name; UsageError if it has no bucket or folder.

    >>> folder_and_name("s3://bucket/results/x.json?key=1", "--output_path")
    ('s3://bucket/results?key=1', 'x.json')
    """
    base, mark, query = address.partition("?")
    folder, _, name = base.rstrip("/").rpartition("/")
    if not folder.partition("://")[2].strip("/"):
        raise _no_bucket(address, what)
    return f"{folder}{mark}{query}", name


def _no_bucket(address: str, what: str) -> UsageError:
    scheme = address.partition(":")[0]
    return UsageError(f"{what} {place_in_url(address)} names no bucket or folder; write {scheme}://BUCKET/PATH")


def _reached(address: str, scheme: str, what: str, secrets: tuple[str, ...]) -> tuple[AbstractFileSystem, str]:
    from fsspec.core import url_to_fs
    from fsspec.registry import known_implementations

    known = known_implementations.get(scheme, {})
    try:
        return url_to_fs(address)
    except ImportError as error:
        package = str(known.get("class", "")).partition(".")[0]
        hint = f"the package {package}" if package not in ("", "fsspec") else "a package"
        install = f"pip install {package}" if package not in ("", "fsspec") else _clean(str(error), secrets)
        raise UsageError(f"{what}: {scheme}:// needs {hint}, which is not installed: {install}") from None
    except Exception as error:
        why = f"{scheme}:// is not a kind of address that fsspec knows" if not known else error_line(error)
        raise UsageError(f"{what} cannot be reached: {_clean(why, secrets)}") from None


def _stamp(path: Path) -> tuple[int, int]:
    """The state of a file; later ones are larger."""
    about = path.stat()
    return about.st_mtime_ns, about.st_size


def _is_plain(name: str) -> bool:
    """Whether a remote name stays inside its folder and is not hidden."""
    inside = all(part and not part.startswith(".") for part in name.split("/"))  # "/x" begins with an empty part
    return inside and not any(character in name for character in ("\\", "\0", ":"))


def _secrets_in(address: str) -> tuple[str, ...]:
    """The parts of an address that are never shown: the user before an @, and the values of the query."""
    user = _USER.match(address)
    named = [] if user is None else [user[1], *user[1].split(":", 1)[1:]]
    values = [value for _, value in parse_qsl(address.partition("?")[2])]
    return tuple(secret for secret in (*named, *values) if len(secret) >= _SHORTEST)


def _clean(text: str, secrets: tuple[str, ...]) -> str:
    for secret in secrets:
        text = without(text, secret)
    return scrub(text)
