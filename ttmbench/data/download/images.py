"""Images that are fetched one by one, because nobody offers them together: addresses that begin alike, or in the rows.

Of addresses in the rows many lead nowhere any more. What could not be had is written down beside the folder with its
reason (``<folder>.lost.jsonl``), and is not asked for again before somebody says so.
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
from ttmbench._util.redact import scrub, secrets_in_environment
from ttmbench._util.text import read_json_lines
from ttmbench.data.availability import amount, count_of_images
from ttmbench.data.download import manifest
from ttmbench.data.download.files import DataFile, check_no_link
from ttmbench.data.download.http import NoAnswerError, Web
from ttmbench.data.download.part import forget
from ttmbench.data.origin import Origin
from ttmbench.data.paths import inside
from ttmbench.errors import DataError, OutOfReachError, TtmbenchError

AT_ONCE = 8
SILENT = 20  # servers in a row that cannot be reached before the network is taken to be down
_SAFE = "%/:=&?~#+!$,;'@()*[]"  # in an address as it was written


@dataclass(frozen=True)
class EachImage(DataFile):
    """A folder of images, each with an address of its own; all of them have to be there.

    Attributes:
        addresses: name of each image that the rows name and that is not there -> its address.
    """

    addresses: Callable[[], Mapping[str, str]] = dict

    def missing(self) -> str | None:
        """Which images are not there."""
        try:
            names = list(self.addresses())
        except TtmbenchError as error:
            return str(error)
        return f"{count_of_images(names)} not there" if names else None

    def size(self, web: Web) -> int | None:
        """None: unknown until fetched."""
        return None

    def fetch(self, web: Web) -> str:
        """Fetches every image that is not there; says what came.

        Raises:
            OutOfReachError: some could not be had: how many, and why the first.
            DataError: what came cannot be written.
        """
        assert self.origin_of is not None, "only what has an address is fetched so"
        sizes, lost = [], []
        with self._written():
            for name, url in progress_iter(self.addresses().items(), "fetching", "images"):
                try:
                    sizes.append(self.fetch_image(web, name, url))
                except OutOfReachError as error:
                    lost.append(str(error))
            if sizes:
                about = {"url": self.origin_of.url, "images": len(sizes), "fetched": sum(sizes)}
                manifest.write(self.data_dir, self.path, about)
        if lost:
            total = len(sizes) + len(lost)
            raise OutOfReachError(f"{self.path}: {len(lost)} of {total} images could not be fetched, first {lost[0]}")
        return f"{len(sizes)} images, {amount(sum(sizes))}"

    def fetch_image(self, web: Web, name: str, url: str, look: Callable[[Path], object] | None = None) -> int:
        """Fetches an image; its bytes. With ``look``, which raises what keeps it out, no part is left to go on with."""
        target = inside(self.target, name, self.path)
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

    @contextmanager
    def _written(self) -> Iterator[None]:
        """Makes the folder and keeps it to this process; DataError if it cannot be written."""
        try:
            self.target.mkdir(parents=True, exist_ok=True)
            with manifest.locked(self.data_dir, self.path):
                yield
        except OSError as error:
            raise DataError(f"{self.target} cannot be written ({error.strerror or error})") from None


class ListedImages(EachImage):
    """A folder of images whose addresses are in the rows.

    A folder that is there without a record is the user's own: nothing is fetched into it.
    """

    @cached_property
    def lost_file(self) -> Path:
        """Where it is written what could not be had."""
        return self.target.with_name(f"{self.target.name}.lost.jsonl")

    def ask_again(self) -> None:
        """Forgets what could not be had."""
        if not self.lost_file.is_symlink():
            self.lost_file.unlink(missing_ok=True)

    def missing(self) -> str | None:
        """Which images are not there and were not asked for in vain."""
        has_any = self.target.is_dir() and next(self.target.iterdir(), None) is not None
        if has_any and (self.target.is_symlink() or self.path not in manifest.read(self.data_dir)):
            return None  # the user's own
        try:
            names = list(self._wanted())
        except TtmbenchError as error:
            return str(error)
        if not names:
            return None if has_any else "no image could be had"
        return f"{count_of_images(names)} not there"

    def fetch(self, web: Web) -> str:
        """Fetches every image that is not there, several at a time; says what came and how many were lost.

        With less patience than for single files, since many addresses lead nowhere.

        Raises:
            OutOfReachError: no server can be reached.
            DataError: what came cannot be written.
        """
        quick = replace(
            web, tries=min(web.tries, 2), timeout=min(web.timeout, 10.0), most=limit("image_bytes"), shows=False
        )
        with self._written():
            manifest.write(self.data_dir, self.path, {"listed": True})  # from now on it is no folder of the user's own
            sizes, lost = self._fetch_all(quick, self._wanted())
        why = f"; {lost} could not be had: {self.lost_file.name} says why" if lost else ""
        return f"{len(sizes)} images, {amount(sum(sizes))}{why}"

    def _wanted(self) -> dict[str, str]:
        """The images to ask for: those that are not there, and were not asked for in vain."""
        lost, secrets = set(), secrets_in_environment()
        if self.lost_file.is_file():
            lines = (line for _, line in read_json_lines(self.lost_file))
            lost = {(str(line.get("image")), str(line.get("address"))) for line in lines}
        return {name: url for name, url in self.addresses().items() if (name, scrub(url, secrets)) not in lost}

    def _fetch_all(self, web: Web, wanted: Mapping[str, str]) -> tuple[list[int], int]:
        """Sizes of the images that came, and how many are lost; what is under way when it is interrupted is finished.

        As long as no server has answered it may be the network that is down, so nothing is said of an image.
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
                f"{self.path}: none of the first {len(silent)} images could be had, and no server answered: "
                f"{silent[0][2]}"
            )
        return sizes, lost

    def _fetch_and_look(self, web: Web, name: str, url: str) -> int:
        """Fetches an image and looks whether it is one; images are small, so an interrupted one is fetched anew."""
        address = quote(url.strip(), safe=_SAFE)
        try:
            Origin(url=address)
        except ValueError:
            raise _NoImageError("it is no http or https address") from None
        return self.fetch_image(web, name, address, _look)

    def _write(self, name: str, url: str, why: str) -> None:
        line = json.dumps({"image": name, "address": scrub(url), "why": why}, ensure_ascii=False)
        with self.lost_file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


class _NoImageError(Exception):
    """An address that gives no image."""


@contextmanager
def _pool() -> Iterator[ThreadPoolExecutor]:
    """Threads that decode images; what has not begun at the end of the block is not begun any more."""
    pool = ThreadPoolExecutor(AT_ONCE, initializer=quiet_thread)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _look(file: Path) -> None:
    """Decodes an image as a run will do; _NoImageError if it cannot be."""
    try:
        as_rgb(open_image(file))
    except Exception as error:  # whatever a decoder makes of what a stranger's server sends
        raise _NoImageError(f"it gives no image ({error})") from None
