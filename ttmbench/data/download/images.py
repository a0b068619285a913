"""Images that are fetched one by one: from one address and their names, or from addresses in the rows.

Many addresses in rows are dead: lost images are recorded with the reason beside the folder (``<folder>.lost.jsonl``)
and not asked for again without ``--retry``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from ttmbench._util.console import progress_bar, progress_iter
from ttmbench._util.images import as_rgb, open_image, quiet_thread
from ttmbench._util.limits import limit
from ttmbench._util.text import read_json_lines
from ttmbench.data.availability import amount, count_of_images
from ttmbench.data.download.files import DataFile, check_no_link, read_records, write_record
from ttmbench.data.download.http import NoAnswerError, Web, forget
from ttmbench.data.paths import Origin, inside
from ttmbench.errors import OutOfReachError, TtmbenchError

AT_ONCE = 8
SILENT = 20  # servers in a row that cannot be reached before the network is taken to be down
_SAFE = "%/:=&?~#+!$,;'@()*[]"  # in an address as it was written


@dataclass(frozen=True)
class EachImage(DataFile):
    """A folder of images with an address each, all of which are needed."""

    addresses: Callable[[], Mapping[str, str]] = dict  # name of each missing image -> its address

    def missing(self) -> str | None:
        """Which images are missing."""
        try:
            names = list(self._wanted())
        except TtmbenchError as error:
            return str(error)
        return f"{count_of_images(names)} not there" if names else None

    def _wanted(self) -> Mapping[str, str]:
        return self.addresses()

    def size(self, web: Web) -> int | None:
        """None: unknown until fetched."""
        return None

    def fetch(self, web: Web) -> str:
        """Fetches every missing image.

        Raises:
            OutOfReachError: some could not be fetched: how many, and why the first.
            DataError: an image cannot be written.
        """
        assert self.origin_of is not None, "only what has an address is fetched so"
        sizes, lost = [], []
        with self.writing(self.target):
            for name, url in progress_iter(self.addresses().items(), "fetching", "images"):
                try:
                    sizes.append(self.fetch_image(web, name, url))
                except OutOfReachError as error:
                    lost.append(str(error))
            if sizes:
                about = {"url": self.origin_of.url, "images": len(sizes), "fetched": sum(sizes)}
                write_record(self.data_dir, self.name, about)
        if lost:
            total = len(sizes) + len(lost)
            raise OutOfReachError(f"{self.name}: {len(lost)} of {total} images could not be fetched, first {lost[0]}")
        return f"{len(sizes)} images, {amount(sum(sizes))}"

    def fetch_image(self, web: Web, name: str, url: str, look: Callable[[Path], object] | None = None) -> int:
        """Fetches an image; its size. With ``look``, which raises for a wrong image, no part is left to resume."""
        target = inside(self.target, name, self.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = Path(f"{target}.part")
        check_no_link(part)
        try:
            got = web.fetch(Origin(url=url), part, name)
            if look is not None:
                look(part)
            part.replace(target)
        except BaseException:
            if look is not None:
                forget(part)
            raise
        forget(part)
        return got.bytes


class ListedImages(EachImage):
    """A folder of images whose addresses are in the rows. Nothing is fetched into the user's own, without a record."""

    @cached_property
    def lost_file(self) -> Path:
        """The record of images that could not be fetched."""
        return self.target.with_name(f"{self.target.name}.lost.jsonl")

    def ask_again(self) -> None:
        """Forgets which images could not be fetched."""
        if not self.lost_file.is_symlink():
            self.lost_file.unlink(missing_ok=True)

    def missing(self) -> str | None:
        """Which images are missing and not recorded as lost."""
        has_any = self.target.is_dir() and next(self.target.iterdir(), None) is not None
        if has_any and (self.target.is_symlink() or self.name not in read_records(self.data_dir)):
            return None  # the user's own
        return super().missing() or (None if has_any else "no image could be fetched")

    def fetch(self, web: Web) -> str:
        """Fetches every missing image, several at a time, with less patience than for single files.

        Raises:
            OutOfReachError: no server can be reached.
            DataError: an image cannot be written.
        """
        quick = replace(
            web, tries=min(web.tries, 2), timeout=min(web.timeout, 10.0), most=limit("image_bytes"), shows=False
        )
        with self.writing(self.target):
            write_record(self.data_dir, self.name, {"listed": True})  # from now on it is not a folder of the user's own
            sizes, lost = self._fetch_all(quick, self._wanted())
        why = f"; {lost} could not be fetched: see {self.lost_file.name}" if lost else ""
        return f"{len(sizes)} images, {amount(sum(sizes))}{why}"

    def _wanted(self) -> dict[str, str]:
        """Name -> address of the images that are missing and not recorded as lost."""
        lost = set()
        if self.lost_file.is_file():
            lines = (line for _, line in read_json_lines(self.lost_file))
            lost = {(str(line.get("image")), str(line.get("address"))) for line in lines}
        return {name: url for name, url in self.addresses().items() if (name, url) not in lost}

    def _fetch_all(self, web: Web, wanted: Mapping[str, str]) -> tuple[list[int], int]:
        """Sizes of the fetched images, and how many are lost.

        Until a server has answered, the network may be down, and no image is recorded as lost.
        """
        sizes: list[int] = []
        lost, silent, answered = 0, list[tuple[str, str, str]](), False
        with progress_bar(len(wanted), "fetching", "images") as shown, _pool() as pool:
            tasks = {pool.submit(self._fetch_and_look, web, name, url): (name, url) for name, url in wanted.items()}
            for task in as_completed(tasks):
                try:
                    sizes.append(task.result())
                    answered = True
                except (OutOfReachError, _NoImageError) as error:
                    silent.append((*tasks[task], str(error)))
                    answered = answered or not isinstance(error, NoAnswerError)
                shown.update(1)
                if answered:
                    lost += len(silent)
                    for name, url, why in silent:
                        self._write(name, url, why)
                    silent.clear()
                elif len(silent) >= SILENT:
                    break
        if silent:
            raise OutOfReachError(
                f"{self.name}: none of the first {len(silent)} images could be fetched, and no server answered: "
                f"{silent[0][2]}"
            )
        return sizes, lost

    def _fetch_and_look(self, web: Web, name: str, url: str) -> int:
        address = quote(url.strip(), safe=_SAFE)
        try:
            Origin(url=address)
        except ValueError:
            raise _NoImageError("it is not an http or https address") from None
        return self.fetch_image(web, name, address, _look)

    def _write(self, name: str, url: str, why: str) -> None:
        line = json.dumps({"image": name, "address": url, "why": why}, ensure_ascii=False)
        with self.lost_file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


class _NoImageError(Exception):
    """An address that gives no image."""


@contextmanager
def _pool() -> Iterator[ThreadPoolExecutor]:
    """Threads that decode images; jobs that have not begun at the end of the block are cancelled."""
    pool = ThreadPoolExecutor(AT_ONCE, initializer=quiet_thread)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _look(file: Path) -> None:
    """Decodes an image as a run does; _NoImageError if that fails."""
    try:
        as_rgb(open_image(file))
    except Exception as error:  # whatever a decoder makes of what a stranger's server sends
        raise _NoImageError(f"it gives no image ({error})") from None
