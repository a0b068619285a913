"""Files of the cache: safetensors with a header that says what each is, and a digest of both.

A file is written aside and renamed, so a reader sees a whole file or none. The digest finds damage by a disk or a copy;
it does not protect against somebody who may write to the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ttmbench._util.console import warn
from ttmbench._util.files import replace_file
from ttmbench._version import __version__
from ttmbench.errors import UsageError

T = TypeVar("T")
FORMAT = "ttmbench-store-1"
ENDING = ".safetensors"

SCORING_VERSION = 4
"""Version of this package's own part in a score. Raise it whenever a change can move a score: see CONTRIBUTING.md."""

Header = dict[str, Any]
"""What a file of the cache says of itself, or what a key is made of, as JSON has it."""
Arrays = dict[str, np.ndarray]
Parse = Callable[[Header, Arrays], T]
"""Makes what a reader wants of a file's header and arrays; DamagedError if they are not what they should be."""

_META = "ttmbench"


class DamagedError(Exception):
    """A file is not what was written; the message says why."""


def write_entry(path: Path, about: Header, arrays: Arrays) -> None:
    """Writes a file in one step, with its folder; OSError if it cannot be written."""
    arrays = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    about = {"format": FORMAT, **about}
    about["digest"] = _digest(about, arrays)
    content = save(arrays, metadata={_META: json.dumps(about)})
    path.parent.mkdir(parents=True, exist_ok=True)
    # The digest finds half a file, so there is no need to wait for the disk.
    replace_file(path, lambda temporary: temporary.write_bytes(content), to_disk=False)


def read_entry(path: Path, parse: Parse[T]) -> T:
    """Reads a file; DamagedError if it is not what was written, OSError if it cannot be read."""
    content = path.read_bytes()
    try:
        arrays = load(content)
        length = int.from_bytes(content[:8], "little")
        about = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][_META])
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(" ".join(str(error).split())[:120] or type(error).__name__) from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise DamagedError("its header is not one of this cache")
    if about.get("digest") != _digest(about, arrays):
        raise DamagedError("its digest does not fit its content")
    return parse({name: value for name, value in about.items() if name not in ("format", "digest")}, arrays)


class Store:
    """The cache's folder, which need not exist; warns once about each problem and goes on without what fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._warned: set[str] = set()
        self._lock = threading.Lock()
        self._writes = True

    def warn_once(self, what: str, message: str) -> None:
        """Warns the user, once in a run for each ``what``."""
        with self._lock:  # images are read and written by several threads
            new = what not in self._warned
            self._warned.add(what)
        if new:
            warn(message)

    def read(self, path: Path, parse: Parse[T]) -> T | None:
        """A file of the cache, parsed; None if it does not exist, or (with a warning) if it cannot be used."""
        try:
            return read_entry(path, parse)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except DamagedError as error:
            self.warn_once(str(path), f"{path} is damaged ({error}) and is computed again")
        except OSError as error:
            reason = error.strerror or error
            self.warn_once("reading", f"the cache cannot be read: {path} ({reason}); scoring without it")
        return None

    def write(self, path: Path, about: Header, arrays: Arrays) -> bool:
        """Writes a file of the cache and returns whether that worked; warns the first time that it does not."""
        if self._writes:
            try:
                write_entry(path, {"ttmbench": __version__, "score_code": SCORING_VERSION, **about}, arrays)
                return True
            except OSError as error:
                self._writes = False
                reason = error.strerror or error
                message = f"the cache in {self.folder} cannot be written to ({reason}); nothing is cached"
                self.warn_once("writing", message)
        return False


def _digest(about: Mapping[str, object], arrays: Mapping[str, np.ndarray]) -> str:
    description = {name: value for name, value in about.items() if name != "digest"}
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name}:{arrays[name].dtype.str}:{arrays[name].shape}:".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


CACHE_VARIABLE = "TTMBENCH_CACHE"
LIMIT_VARIABLE = "TTMBENCH_PREPARED_LIMIT"
DEFAULT_LIMIT = "10GB"  # of prepared images
OFF = "off"
SCORES, PIXELS, PREPARED = "scores", "pixels", "prepared"


def cache_folder(given: str | Path | None) -> Path | None:
    """Path of the cache; None if it is off.

    Args:
        given: a folder or ``off``; None takes TTMBENCH_CACHE, else a folder in the user's cache folder.

    >>> cache_folder("off") is None
    True
    """
    detail = given if given is not None else os.environ.get(CACHE_VARIABLE)
    if detail is not None and str(detail):
        return None if str(detail).lower() == OFF else Path(detail).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("ttmbench", appauthor=False) / "store"


def prepared_limit() -> int:
    """Bytes that prepared images may take, by TTMBENCH_PREPARED_LIMIT; 0 caches none."""
    return parse_size(os.environ.get(LIMIT_VARIABLE) or DEFAULT_LIMIT, LIMIT_VARIABLE)


def parse_size(text: str, what: str) -> int:
    """Bytes of a size such as ``500MB`` or ``2.5GB``; UsageError naming ``what`` for anything else.

    >>> parse_size("1.5 kB", "size")
    1500
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)B?", text.strip(), flags=re.IGNORECASE)
    if match is None:
        raise UsageError(f"{what}: {text!r} must be a size such as 500MB or 2.5GB")
    return int(float(match[1]) * 1000 ** " KMGT".index(match[2].upper() or " "))
