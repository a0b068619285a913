"""Images that are fetched from addresses in the rows, many of which lead nowhere any more.

What could not be had is written down beside the folder with its reason (``<folder>.lost.jsonl``), and is not asked for
again before somebody says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import Event, Lock
from typing import Any
from urllib.parse import quote, urlsplit

from ttmbench._util.images import as_rgb, open_image, quiet_thread
from ttmbench._util.limits import limit
from ttmbench._util.progress import progress_bar
from ttmbench._util.redact import scrub, secrets_in_environment
from ttmbench._util.text import read_json_lines
from ttmbench.data.download import manifest as record
from ttmbench.data.download.files import DataFile, amount, count_of_images
from ttmbench.data.download.http import NoAnswerError, Web
from ttmbench.data.download.part import forget
from ttmbench.data.loading import inside
from ttmbench.data.origin import Origin
from ttmbench.errors import DataError, OutOfReachError, TtmbenchError

AT_ONCE = 8
SILENT = 20  # servers in a row that cannot be reached before the network is taken to be down
_SAFE = "%/:=&?~#+!$,;'@()*[]"  # in an address as it was written


@dataclass(frozen=True)
class ListedImages(DataFile):
    """A folder of images whose addresses are in the rows.

    A folder that is there without a record is the user's own: nothing is fetched into it.

    Attributes:
        absent: name of each image that the rows name and that is not there -> its address.
    """

    absent: Callable[[], dict[str, str]]

    @cached_property
    def lost_file(self) -> Path:
        """Where it is written what could not be had."""
        return self.target.with_name(f"{self.target.name}.lost.jsonl")

    def lost(self) -> set[tuple[str, str]]:
        """Name and address of each image that could not be had."""
        if not self.lost_file.is_file():
            return set()
        lines = (line for _, line in read_json_lines(self.lost_file))
        return {(str(line.get("image")), str(line.get("address"))) for line in lines}

    def ask_again(self) -> None:
        """Forgets what could not be had."""
        if not self.lost_file.is_symlink():
            self.lost_file.unlink(missing_ok=True)

    def missing(self) -> str | None:
        """Which images are not there and were not asked for in vain."""
        if self._is_users_own:
            return None
        try:
            wanted = self._wanted()
            names = list(wanted)
            if not names and not self._has_any:
                return "no image could be had"
        except TtmbenchError as error:
            return str(error)
        return f"{count_of_images(names)} not there" if names else None

    def size(self, web: Web) -> int | None:
        """Nobody says."""
        return None

    def fetch(self, web: Web) -> str:
        """Fetches every image that is not there, several at a time.

        Args:
            web: how; with less patience than for single files, since many addresses lead nowhere.

        Returns:
            What came and how many were lost, for a line.

        Raises:
            OutOfReachError: no server can be reached.
            DataError: what came cannot be written.
        """
        quick = replace(
            web, tries=min(web.tries, 2), timeout=min(web.timeout, 10.0), most=limit("image_bytes"), shows=False
        )
        try:
            self.target.mkdir(parents=True, exist_ok=True)
            with record.locked(self.data_dir, self.path):
                record.write(
                    self.data_dir, self.path, {"listed": True}
                )  # from now on it is no folder of the user's own
                wanted = self._wanted()
                round_ = _Round(self, quick, iter(wanted.items()))
                round_.run(len(wanted))
        except OSError as error:
            raise DataError(f"{self.target} cannot be written ({error.strerror or error})") from None
        lost = f"; {round_.lost} could not be had: {self.lost_file.name} says why" if round_.lost else ""
        return f"{round_.came} images, {amount(round_.bytes)}{lost}"

    @property
    def _is_users_own(self) -> bool:
        return self._has_any and (self.target.is_symlink() or self.path not in record.read(self.data_dir))

    @property
    def _has_any(self) -> bool:
        return self.target.is_dir() and next(self.target.iterdir(), None) is not None

    def _wanted(self) -> dict[str, str]:
        lost, secrets = self.lost(), secrets_in_environment()
        return {name: url for name, url in self.absent().items() if (name, scrub(url, secrets)) not in lost}


@dataclass
class _Round:
    """One go through all addresses by several threads, each taking the next one."""

    images: ListedImages
    web: Web
    left: Iterator[tuple[str, str]]
    came: int = 0
    bytes: int = 0
    lost: int = 0
    _answers: bool = False
    _silent: list[tuple[str, str, str]] = field(default_factory=list)
    _stop: Event = field(default_factory=Event)
    _lock: Lock = field(default_factory=Lock)

    def run(self, total: int) -> None:
        """Fetches; what is under way when it is interrupted is gone on with the next time."""
        with progress_bar(total, "fetching", "images") as shown, ThreadPoolExecutor(AT_ONCE) as pool:
            try:
                for done in [pool.submit(self._work, shown) for _ in range(AT_ONCE)]:
                    done.result()
            finally:
                self._stop.set()
        if self._silent:
            raise self._no_network()

    def _work(self, shown: Any) -> None:
        quiet_thread()
        while not self._stop.is_set():
            with self._lock:
                name, url = next(self.left, ("", ""))
            if not name:
                return
            try:
                size = self._fetch(name, url)
            except NoAnswerError as error:
                self._unreachable(name, url, str(error))
            except (OutOfReachError, _NoImageError) as error:
                with self._lock:
                    self._answered()
                    self._write(name, url, str(error))
            except BaseException:
                self._stop.set()
                raise
            else:
                with self._lock:
                    self._answered()
                    self.came, self.bytes = self.came + 1, self.bytes + size
            with self._lock:
                shown.update(1)

    def _fetch(self, name: str, url: str) -> int:
        """Fetches an image and looks whether it is one."""
        try:
            address = urlsplit(url.strip())
            if address.scheme not in ("http", "https") or not address.hostname:
                raise ValueError
            origin = Origin(url=quote(url.strip(), safe=_SAFE))
        except ValueError:
            raise _NoImageError("it is no http or https address") from None
        images = self.images
        target = inside(images.target, name, images.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = Path(f"{target}.part")
        if part.is_symlink():
            raise DataError(f"{part} is a link, which no download makes and none follows; remove it")
        try:
            got = self.web.fetch(origin, part, name)
            _look(part)
            part.replace(target)
        finally:
            if part.exists():  # an interrupted one is asked for as a whole: images are small
                forget(part)
        forget(part)
        return got.bytes

    def _unreachable(self, name: str, url: str, why: str) -> None:
        """Where no server has answered yet it may be the network that is down, so nothing is said of the image."""
        with self._lock:
            if self._answers:
                self._write(name, url, why)
                return
            self._silent.append((name, url, why))
            if len(self._silent) >= SILENT:
                self._stop.set()

    def _answered(self) -> None:
        self._answers = True
        for one in self._silent:
            self._write(*one)
        self._silent.clear()

    def _write(self, name: str, url: str, why: str) -> None:
        self.lost += 1
        line = json.dumps({"image": name, "address": scrub(url), "why": why}, ensure_ascii=False)
        with self.images.lost_file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _no_network(self) -> OutOfReachError:
        return OutOfReachError(
            f"{self.images.path}: none of the first {len(self._silent)} images could be had, and no server answered: "
            f"{self._silent[0][2]}"
        )


class _NoImageError(Exception):
    """An address that gives no image."""


def _look(file: Path) -> None:
    """Decodes an image as a run will do; _NoImageError if it cannot be."""
    try:
        as_rgb(open_image(file))
    except Exception as error:  # whatever a decoder makes of what a stranger's server sends
        raise _NoImageError(f"it gives no image ({error})") from None
