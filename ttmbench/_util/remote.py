"""Folders at an address (``s3://bucket/results``), by fsspec: listed, fetched within bounds, and written whole.

fsspec is imported when an address is used, and the package that a kind of address needs is the user's to install.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from secrets import token_hex
from typing import Any
from urllib.parse import parse_qsl

from ttmbench._util.files import replace_file
from ttmbench._util.limits import limit, raised_by
from ttmbench._util.redact import place_in_url, scrub, without
from ttmbench._util.third_party_errors import error_line
from ttmbench.errors import DataError, UsageError

# What is put there appears whole or not at all, and a rename would be a copy. Elsewhere a file is put under another
# name first.
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "ocilake", "oci", "hf"})
_CHUNK = 1 << 20
_SHORTEST = 4  # a shorter part of an address may be any word
_USER = re.compile(r"^\w[\w+.-]*://([^/?#]*)@")


class RemoteError(DataError):
    """An address cannot be read or written; the message names it, without its secrets, and says why (exit 4)."""


@dataclass(frozen=True)
class RemoteFolder:
    """A folder at an address.

    Attributes:
        url: the address as it may be shown.
    """

    url: str
    _fs: Any
    _root: str
    _secrets: tuple[str, ...]

    @classmethod
    def at(cls, address: str, what: str) -> RemoteFolder:
        """Finds out how an address is reached; nothing is asked of it yet.

        Args:
            address: of a folder, or of a file, which is then the folder's own name ``""``.
            what: the option or argument, for messages.

        Returns:
            The folder.

        Raises:
            UsageError: no such kind of address, a package is missing, or it cannot be one place.
        """
        if not address.partition("?")[0].partition("://")[2].strip("/"):
            raise _no_bucket(address, what)
        shown, scheme = place_in_url(address), address.partition("://")[0].lower()
        if "::" in address or any(character in address.partition("?")[0] for character in "*[]"):
            raise UsageError(f"{what} {shown} is a pattern or a chain of addresses; give the address of one place")
        secrets = _secrets_in(address)
        from fsspec.core import url_to_fs
        from fsspec.registry import known_implementations

        known = known_implementations.get(scheme, {})
        try:
            fs, root = url_to_fs(address)
        except ImportError as error:
            package = str(known.get("class", "")).partition(".")[0]
            hint = f"the package {package}" if package not in ("", "fsspec") else "a package"
            install = f"pip install {package}" if package not in ("", "fsspec") else _clean(str(error), secrets)
            raise UsageError(f"{what} {shown}: {scheme}:// needs {hint}, which is not installed: {install}") from None
        except Exception as error:
            why = f"{scheme}:// is no kind of address that fsspec knows" if not known else error_line(error)
            raise UsageError(f"{what} {shown} cannot be reached: {_clean(why, secrets)}") from None
        query = address.partition("?")[2]
        root = str(root).removesuffix(f"?{query}").rstrip("/")
        return cls(shown.partition("?")[0].rstrip("/"), fs, root, secrets)

    def named(self, name: str) -> str:
        """The address of a file, as it may be shown."""
        return f"{self.url}/{name}" if name else self.url

    def is_file(self) -> bool:
        """Whether the address is one of a file."""
        with self._speaking("", "read"):
            self._fs.invalidate_cache()
            return bool(self._fs.isfile(self._root))

    def files(self, below: str = "") -> dict[str, int]:
        """The files of the folder and of all below it: name -> bytes. None for a folder that is not there.

        Args:
            below: look in this folder of it only.

        Returns:
            Names from the folder, parted by slashes; hidden ones, and what would lie elsewhere, left out.
        """
        at = self._path(below)
        with self._speaking(below, "listed"):
            self._fs.invalidate_cache()
            try:
                found = self._fs.find(at, detail=True)
            except FileNotFoundError:
                return {}
        most, start = limit("remote_files"), f"{self._root.lstrip('/')}/"
        if len(found) > most:
            raise RemoteError(
                f"{self.named(below)} has {len(found)} files, and at most {most} are looked at; "
                f"{raised_by('remote_files')}"
            )
        sizes = {
            str(path).lstrip("/").removeprefix(start): int(about.get("size") or 0) for path, about in found.items()
        }
        return {name: sizes[name] for name in sorted(sizes) if _is_plain(name)}

    def fetch(self, name: str, target: Path, most: str) -> None:
        """Copies a file to this machine, in one step.

        Args:
            name: of the file; ``""`` where the address is one of a file.
            target: what it is called here.
            most: name of the limit on its bytes.

        Raises:
            RemoteError: it cannot be read, or is too large.
            FileNotFoundError: there is none.
        """
        bound = limit(most)

        def copy(path: Path) -> None:
            with self._fs.open(self._path(name), "rb") as source, path.open("wb") as file:
                while chunk := source.read(_CHUNK):
                    if file.tell() + len(chunk) > bound:
                        raise RemoteError(
                            f"{self.named(name)} is too large: more than {bound} bytes; {raised_by(most)}"
                        )
                    file.write(chunk)

        with self._speaking(name, "read", may_be_absent=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            replace_file(target, copy, to_disk=False)

    def put(self, source: Path, name: str) -> None:
        """Copies a file there; readers see the old file or the whole new one. RemoteError if it cannot be written."""
        target = self._path(name)
        with self._speaking(name, "written"):
            if _scheme(self._fs) in _OBJECT_STORES:
                self._fs.put_file(str(source), target)
                return
            folder, _, own = target.rpartition("/")
            temporary = f"{folder}/.{own}.{token_hex(6)}.tmp"
            self._fs.makedirs(folder, exist_ok=True)
            try:
                self._fs.put_file(str(source), temporary)
                self._fs.mv(temporary, target)
            except BaseException:
                with suppress(Exception):
                    self._fs.rm_file(temporary)
                raise

    def remove(self, name: str) -> None:
        """Removes a file; one that is gone already is no error."""
        with self._speaking(name, "removed"), suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextmanager
    def _speaking(self, name: str, done: str, may_be_absent: bool = False) -> Iterator[None]:
        """Turns errors of whatever reaches the address into one line; an absent file may be the caller's matter."""
        try:
            yield
        except RemoteError:
            raise
        except Exception as error:
            if may_be_absent and isinstance(error, FileNotFoundError):
                raise
            why = _clean(error_line(error), self._secrets)
            raise RemoteError(f"{self.named(name)} cannot be {done}: {why}") from None


def folder_and_name(address: str, what: str) -> tuple[str, str]:
    """The address of the folder that a file is in, and the file's name.

    Args:
        address: of the file.
        what: the option or argument, for messages.

    Returns:
        The folder's address, with what stands behind a question mark; the name.

    Raises:
        UsageError: it names no bucket or folder.

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


def _is_plain(name: str) -> bool:
    """Whether a name from elsewhere stays inside the folder that it is put into, and is not hidden."""
    parts = name.split("/")
    return (
        "\\" not in name
        and "\0" not in name
        and ":" not in name
        and all(part and not part.startswith(".") for part in parts)
        and not PurePosixPath(name).is_absolute()
    )


def _scheme(fs: Any) -> str:
    protocol = fs.protocol
    return str(protocol if isinstance(protocol, str) else protocol[0])


def _secrets_in(address: str) -> tuple[str, ...]:
    """What of an address is never shown: who is named before an @, and the values behind a question mark."""
    found = _USER.match(address)
    named = [] if found is None else [found[1], *found[1].split(":", 1)[1:]]
    values = [value for _, value in parse_qsl(address.partition("?")[2])]
    return tuple(one for one in (*named, *values) if len(one) >= _SHORTEST)


def _clean(text: str, secrets: tuple[str, ...]) -> str:
    for secret in secrets:
        text = without(text, secret)
    return scrub(text)
