"""Images that are fetched one by one from addresses that begin alike, because nobody offers them together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ttmbench._util.progress import progress_iter
from ttmbench.data.download import manifest as record
from ttmbench.data.download.files import DataFile, amount, count_of_images
from ttmbench.data.download.http import Web
from ttmbench.data.download.part import forget
from ttmbench.data.loading import inside
from ttmbench.data.origin import Origin
from ttmbench.errors import DataError, OutOfReachError, TtmbenchError


@dataclass(frozen=True)
class EachImage(DataFile):
    """A folder of images, each with an address of its own.

    Attributes:
        absent: names of the images that the rows name and that are not there.
    """

    absent: Callable[[], list[str]]

    def missing(self) -> str | None:
        """Which images are not there."""
        try:
            names = self.absent()
        except TtmbenchError as error:
            return str(error)
        return f"{count_of_images(names)} not there" if names else None

    def size(self, web: Web) -> int | None:
        """Nobody says."""
        return None

    def fetch(self, web: Web) -> str:
        """Fetches every image that is not there.

        Args:
            web: how.

        Returns:
            What came, for a line.

        Raises:
            OutOfReachError: some could not be had: how many, and why the first.
            DataError: what came cannot be written.
        """
        assert self.origin_of is not None, "only what has an address is fetched so"
        came, size, lost = 0, 0, []
        try:
            self.target.mkdir(parents=True, exist_ok=True)
            with record.locked(self.data_dir, self.path):
                for name in progress_iter(self.absent(), "fetching", "images"):
                    try:
                        size += self._fetch_one(web, self.origin_of, name)
                        came += 1
                    except OutOfReachError as error:
                        lost.append((name, str(error)))
                if came:
                    record.write(self.data_dir, self.path, {"url": self.origin_of.url, "images": came, "fetched": size})
        except OSError as error:
            raise DataError(f"{self.target} cannot be written ({error.strerror or error})") from None
        if lost:
            total = came + len(lost)
            raise OutOfReachError(
                f"{self.path}: {len(lost)} of {total} images could not be fetched, first {lost[0][1]}"
            )
        return f"{came} images, {amount(size)}"

    def _fetch_one(self, web: Web, origin: Origin, name: str) -> int:
        target = inside(self.target, name, self.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = Path(f"{target}.part")
        if part.is_symlink():
            raise DataError(f"{part} is a link, which no download makes and none follows; remove it")
        got = web.fetch(replace_address(origin, f"{origin.url}{quote(name)}"), part, name)
        part.replace(target)
        forget(part)
        return got.bytes


def replace_address(origin: Origin, url: str) -> Origin:
    """An origin with another address.

    >>> replace_address(Origin(url="https://example.org/", each=True), "https://example.org/1.jpg").url
    'https://example.org/1.jpg'
    """
    return origin.model_copy(update={"url": url})
