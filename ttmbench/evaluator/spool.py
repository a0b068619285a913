"""Where a run writes whose results go to an address: a folder of this machine that is sent after every task.

Object stores have neither locks nor renames, so the run works here, as runs with a folder do, and one command on one
machine has one such folder. What an earlier run left at the address is fetched first.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from ttmbench._util.console import show_as, warn
from ttmbench._util.files import file_digest, safe_name, take_lock, write_atomically
from ttmbench._util.places import is_address
from ttmbench._util.redact import place_in_url
from ttmbench._util.text import Unreadable, read_json
from ttmbench.cache.location import spool_folder
from ttmbench.config import RunConfig
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.evaluator.resume import RunDirectory, archive_existing, open_place
from ttmbench.evaluator.run_key import RunKey
from ttmbench.results.files import RunFiles

if TYPE_CHECKING:
    from ttmbench._util.remote_copy import RemoteCopy

_KNOWN = "there.json"  # what is known of the files at the address


class UnsentError(TtmbenchError):
    """The run is over, and its results could not be written to their address; they are kept here (exit 1)."""


@contextmanager
def run_place(config: RunConfig, key: RunKey, started: datetime) -> Iterator[RunDirectory]:
    """The files of a run for as long as it writes: `open_place`, for addresses too.

    Args:
        config: the run; its ``output_path`` is set.
        key: of the run.
        started: when it began.

    Yields:
        The place.

    Raises:
        UsageError: as `open_place`; or the address cannot be read or written.
        UnsentError: at the end, if what was computed could not be written to the address.
    """
    assert config.output_path is not None, "a run without an output path has no place"
    if not is_address(config.output_path):
        with open_place(config, key, started) as place:
            yield place
        return
    spool = _Spool.of(config, key.sha256)
    with spool.held():
        spool.fetch()
        local = config.model_copy(update={"output_path": str(spool.copy.folder / spool.target)})
        with open_place(local, key, started) as place:
            place.address, place.publish = spool.copy.remote.named(spool.model), spool.send
            yield place
            finished = place.files.finished
        spool.end(finished)


@dataclass
class _Spool:
    """A run's folder here, and what is known of its address.

    Attributes:
        folder: of the run; gone once all is done and sent.
        copy: the results in it.
        target: what the run's output path is in them: a file, or the folder itself.
        model: folder of the model in them; none for a single file.
        key: the run's key.
        went_before: whether the folder holds results of an earlier run on this machine.
        sent: whether this run has written to the address.
        why_unsent: what came in between the last time; None if all is there.
    """

    folder: Path
    copy: RemoteCopy
    target: str
    model: str
    key: str
    went_before: bool = False
    sent: bool = False
    why_unsent: str | None = None

    @classmethod
    def of(cls, config: RunConfig, key: str) -> _Spool:
        from ttmbench._util.remote import RemoteFolder, folder_and_name  # fsspec is imported for addresses alone
        from ttmbench._util.remote_copy import RemoteCopy

        address = str(config.output_path)
        base = address.partition("?")[0].rstrip("/")
        single = base.endswith(".json")
        root, name = folder_and_name(address, "--output_path") if single else (address, "")
        remote = RemoteFolder.at(root, "--output_path")
        # Runs that write into one folder have documents of their own; those of one file take turns.
        identity = place_in_url(base) if single else "\n".join((place_in_url(base), config.model_name, key))
        folder = spool_folder() / hashlib.sha256(identity.encode()).hexdigest()[:20]
        copy = RemoteCopy(folder / "results", remote)
        show_as(str(copy.folder), remote.url)
        return cls(folder, copy, name, "" if single else safe_name(config.model_name), key)

    @property
    def place(self) -> str:
        """The output path, as it may be shown."""
        return self.copy.remote.named(self.target)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other runs of this machine out."""
        try:
            lock = take_lock(self.folder / "lock")
        except filelock.Timeout:
            raise UsageError(
                f"another run is writing to {self.place}; wait until it is done, or name another --output_path"
            ) from None
        except OSError as error:
            raise UsageError(
                f"{self.folder}, from which --output_path {self.place} is written, cannot be written to: "
                f"{error.strerror or error}"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def fetch(self) -> None:
        """Fetches what the address has of this run; what is newer here stays. UsageError if it cannot be read."""
        self.copy.folder.mkdir(parents=True, exist_ok=True)
        self.went_before = any(self.copy.folder.rglob("*.json"))
        known = _known(self.folder / _KNOWN)
        self.copy.there.update({name: one for name, one in known.items() if (self.copy.folder / name).is_file()})
        try:
            for name in self._documents():
                self._take(name)
        except TtmbenchError as error:
            raise UsageError(f"--output_path: {error}") from None

    def _documents(self) -> list[str]:
        """Names of the documents at the address that this run may go on with."""
        if self.target:
            return [self.target]
        below = self.copy.remote.files(self.model)
        return [
            name
            for name in below
            if name.startswith(f"{self.model}/results_") and name.endswith(".json") and name.count("/") == 1
        ]

    def _take(self, name: str) -> None:
        """Takes one document and the files that it names, unless what is here goes on from it."""
        from ttmbench.results.remote import fetch_artifacts

        own, incoming = self.copy.folder / name, self.folder / "incoming.json"
        try:
            self.copy.remote.fetch(name, incoming, "text_bytes")
        except FileNotFoundError:
            self.copy.there.pop(name, None)
            return
        digest = file_digest(incoming)
        if self._keeps_own(own, incoming, self.copy.there.get(name), digest):
            incoming.unlink()
        else:
            own.parent.mkdir(parents=True, exist_ok=True)
            incoming.replace(own)
        self.copy.there[name] = digest
        if self.target or _content(own).get("run_key") == self.key:
            fetch_artifacts(self.copy, name)

    def _keeps_own(self, own: Path, incoming: Path, sent: str | None, digest: str) -> bool:
        """Whether the document here is the one to go on with, and not the one at the address."""
        if not own.exists():
            return False
        here = file_digest(own)
        if here == digest or digest == sent:
            return True
        if here == sent:
            return False
        mine, other = _content(own), _content(incoming)  # both went on: this one unsent, and one of another machine
        if mine.get("run_key") != other.get("run_key"):
            archive_existing(RunFiles.of(str(own), "", ""))
            return False
        return _done(mine) >= _done(other)

    def send(self, files: RunFiles) -> None:
        """Sends what was written. The first time has to succeed; later the run goes on, and says so.

        Raises:
            UsageError: nothing can be written to the address.
        """
        try:
            self.copy.send(last=files.results)
        except TtmbenchError as error:
            if not self.sent:
                kept = f"; what earlier runs did is kept in {self.folder}" if self.went_before else ""
                raise UsageError(f"--output_path: {error}{kept}") from None
            self.why_unsent = str(error)
            warn(f"{error}; what is done is kept in {self.folder}, and the run goes on")
        else:
            self.sent, self.why_unsent = True, None
        self._remember()

    def end(self, finished: bool) -> None:
        """Removes the folder if nothing is left to do and all is sent. UnsentError if it could not be sent."""
        if self.why_unsent is not None:
            raise UnsentError(
                f"{self.why_unsent}; the results are kept in {self.folder}, and the same command sends them"
            )
        if finished:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _remember(self) -> None:
        text = json.dumps({"address": self.place, "there": self.copy.there}, indent=2)
        write_atomically(self.folder / _KNOWN, lambda path: path.write_text(text, encoding="utf-8"))


def _known(path: Path) -> dict[str, str]:
    """What a run before knew of the files at the address; nothing if that cannot be read, and then all is sent."""
    with suppress(Unreadable, AttributeError):
        return {name: one for name, one in read_json(path).get("there", {}).items() if isinstance(one, str)}
    return {}


def _content(path: Path) -> Mapping[str, Any]:
    """A document as far as it can be read; whoever goes on with it checks it."""
    with suppress(Unreadable):
        content = read_json(path)
        return content if isinstance(content, dict) else {}
    return {}


def _done(document: Mapping[str, Any]) -> int:
    statuses = document.get("task_status")
    return sum(one == "done" for one in statuses.values()) if isinstance(statuses, dict) else 0
