"""A folder of this machine that stands for one at an address: what is needed is fetched, what has changed is sent."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ttmbench._util.console import show_as
from ttmbench._util.files import file_digest
from ttmbench._util.remote import RemoteFolder


@dataclass
class RemoteCopy:
    """Files of a folder here, and what is known of those at its address. Names have slashes.

    Attributes:
        folder: of this machine.
        remote: what it stands for.
        there: name -> sha256 of what lies at the address, of the files that were fetched or sent.
    """

    folder: Path
    remote: RemoteFolder
    there: dict[str, str] = field(default_factory=dict)
    _digests: dict[str, tuple[tuple[int, int], str]] = field(default_factory=dict)

    @classmethod
    def temporary(cls, remote: RemoteFolder) -> RemoteCopy:
        """A copy that is gone when the process ends; messages name the address in its place."""
        folder = Path(tempfile.mkdtemp(prefix="ttmbench-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        show_as(str(folder), remote.url)
        return cls(folder, remote)

    def fetch(self, name: str, most: str) -> bool:
        """Fetches a file, over one that is here; whether there is one. ``most`` names the limit on its bytes."""
        try:
            self.remote.fetch(name, self.folder / name, most)
        except FileNotFoundError:
            return False
        self.there[name] = self.digest(name)
        return True

    def digest(self, name: str) -> str:
        """sha256 of a file that is here; it is computed again once the file has changed."""
        path = self.folder / name
        about = path.stat()
        state = (about.st_mtime_ns, about.st_size)
        known = self._digests.get(name)
        if known is None or known[0] != state:
            known = self._digests[name] = (state, file_digest(path))
        return known[1]

    def send(self, last: Path | None = None) -> None:
        """Sends what is new or has changed, results documents after the files that they name.

        Args:
            last: the file to send after all others.

        Raises:
            RemoteError: a file cannot be written there; what was sent before it is there.
        """
        for name in sorted(self._names(), key=lambda one: (self.folder / one == last, one.endswith(".json"), one)):
            digest = self.digest(name)
            if self.there.get(name) != digest:
                self.remote.put(self.folder / name, name)
                self.there[name] = digest
        for name in [one for one in self.there if not (self.folder / one).exists()]:
            self.remote.remove(name)  # it has another name now
            del self.there[name]

    def _names(self) -> Iterator[str]:
        """Files that are here, hidden ones left out."""
        for path in self.folder.rglob("*"):
            parts = path.relative_to(self.folder).parts
            if path.is_file() and not any(part.startswith(".") for part in parts):
                yield "/".join(parts)
