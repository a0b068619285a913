"""Results at an address (``s3://bucket/results``), by fsspec: copied from there to be read, put there by a run."""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from ttmbench._util.file_io import limit, raised_by
from ttmbench._util.third_party import error_line
from ttmbench.errors import DataError, UsageError

_PLAIN = re.compile(r"[^./\\\0:][^/\\\0:]*(/[^./\\\0:][^/\\\0:]*)*")  # inside its folder, and not hidden


class RemoteFolder:
    """A folder at an address; ``what`` is the option. UsageError for an address that fsspec cannot open."""

    def __init__(self, address: str, what: str) -> None:
        from fsspec.core import url_to_fs

        if "::" in address or re.search(r"[*\[\]?]", address) or not address.partition("://")[2].strip("/"):
            raise UsageError(f"{what} {address} must name one place, as s3://BUCKET/PATH, without pattern or query")
        try:
            self._fs, root = url_to_fs(address)
        except Exception as error:
            raise UsageError(f"{what} {address} cannot be reached: {error_line(error)}") from None
        self.url, self._root, self._sent = address.rstrip("/"), root.rstrip("/"), dict[Path, int]()

    def get(self, folder: Path, stem: str = "") -> bool:
        """Copies the files with ``stem`` in their names, and says whether there are any; names stay in the folder."""
        with self._speaking("read"):
            self._fs.invalidate_cache()
            found = self._fs.find(self._root, detail=True) if self._fs.exists(self._root) else {}
            names = {str(path).removeprefix(f"{self._root}/"): about["size"] or 0 for path, about in found.items()}
            names = {name: size for name, size in names.items() if _PLAIN.fullmatch(name) and stem in name}
            for amount, bound in ((len(names), "remote_files"), (sum(names.values()), "remote_bytes")):
                if amount > limit(bound):
                    raise DataError(f"{amount} {bound[7:]} are too many; {raised_by(bound)}")
            for name in names:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                self._fs.get_file(f"{self._root}/{name}", str(folder / name))
            return bool(names)

    def put(self, folder: Path) -> None:
        """Copies new and changed files of a folder there: JSON files last, after the files that they name."""
        for path in sorted(folder.rglob("*"), key=lambda path: (path.suffix == ".json", path)):
            name, stamp = path.relative_to(folder).as_posix(), path.stat().st_mtime_ns
            if path.is_file() and _PLAIN.fullmatch(name) and self._sent.get(path) != stamp:
                with self._speaking("written"):
                    self._fs.makedirs(f"{self._root}/{name}".rpartition("/")[0], exist_ok=True)
                    self._fs.put_file(str(path), f"{self._root}/{name}")
                self._sent[path] = stamp

    @contextmanager
    def _speaking(self, done: str) -> Iterator[None]:
        """Turns errors of the file system into a DataError."""
        try:
            yield
        except Exception as error:
            raise DataError(f"{self.url} cannot be {done}: {error_line(error)}") from None


def fetched(address: str, what: str) -> Path:
    """A copy, until the process ends, of a folder, or of a file and those beside it; UsageError if nothing is there."""
    folder, _, name = address.rpartition("/") if address.endswith((".json", ".jsonl")) else (address, "", "")
    remote = RemoteFolder(folder, what)
    home = Path(tempfile.mkdtemp(prefix="ttmbench-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    if not remote.get(home, PurePosixPath(name).stem.removeprefix("results_")) or not (home / name).exists():
        raise UsageError(f"{what} {address}: there is no such file, and no folder with results in it")
    return home / name
