"""Cuts downloads at every kind of place, by servers honest and not: a file that is called fetched is the right one.

The connection breaks in a header, in the body, after the last byte; the next answer is a whole file, the right rest, a
rest that ends early, one of another version, one without a version, one of another place or length, an error, a page.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

from kills import report
from support.web_server import Site

from ttmbench.data.download import http
from ttmbench.data.download.http import Web
from ttmbench.data.paths import Origin
from ttmbench.errors import DataError, OutOfReachError

Answer = tuple[int, dict[str, str], bytes]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--files", type=int, default=1000)


def main(options: argparse.Namespace) -> int:
    found = fetch_all(options.files, options.seed)
    report(found, f"{options.files} downloads that were cut (seed {options.seed})", options.json)
    return int(found["wrong"] > 0)


def fetch_all(count: int, seed: int) -> dict[str, int]:
    """Fetches files from a server that cuts and lies at random.

    Returns:
        How many were fetched and refused, and how many of those fetched are no version that the server ever had whole.
    """
    rng = random.Random(seed)
    found = {"fetched": 0, "refused": 0, "wrong": 0}
    chunk, http.CHUNK = http.CHUNK, 1 << 10
    try:
        with tempfile.TemporaryDirectory() as folder, Site() as site:
            for number in range(count):
                found[_one(rng, site, Path(folder) / f"{number}.part")] += 1
    finally:
        http.CHUNK = chunk
    return found


def _one(rng: random.Random, site: Site, part: Path) -> str:
    old, new = rng.randbytes(rng.randint(1, 20_000)), rng.randbytes(rng.randint(1, 20_000))
    versions = [old, old if rng.random() < 0.6 else new]
    cuts = [rng.choice((0, 1, len(old) - 1, len(old), rng.randint(0, len(old)))) for _ in range(rng.randint(1, 4))]
    url = site.put(
        "/file.bin",
        old,
        cut=cuts,
        etag=rng.choice(('"1"', '"1"', '"1"', None, 'W/"1"')),
        ranges=rng.random() < 0.8,
        length=rng.random() < 0.8,
        odd=_lying(rng, rng.choice(LIES), versions),
    )
    try:
        got = Web(tries=4, pause=0, timeout=5, sleep=lambda _: None).fetch(Origin(url=url), part, "the file")
    except (OutOfReachError, DataError):
        return "refused"
    content = part.read_bytes()
    cut_unnoticed = not site.pages["/file.bin"].length and any(one.startswith(content) for one in versions)
    right = content in versions or cut_unnoticed  # where no length is stated, nobody can know that more was to come
    return "fetched" if right and hashlib.sha256(content).hexdigest() == got.sha256 else "wrong"


def _lying(rng: random.Random, lie: str | None, versions: list[bytes]) -> Callable[..., Answer]:
    """A server's answers: the second one may be of another version, and some of the later ones are lies."""
    answers = 0

    def odd(status: int, headers: dict[str, str], body: bytes) -> Answer:
        nonlocal answers
        answers += 1
        if answers > 1 and versions[1] is not versions[0] and status == 200:
            body, headers = versions[1], headers | ({"ETag": '"2"'} if "ETag" in headers else {})
            if "Content-Length" in headers:
                headers["Content-Length"] = str(len(body))
        if lie is None or (status == 200) != (lie == "unasked") or rng.random() < 0.3:
            return status, headers, body
        return _lie(lie, rng, status, headers, body)

    return odd


def _lie(kind: str, rng: random.Random, status: int, headers: dict[str, str], body: bytes) -> Answer:
    if kind == "unasked":  # a part that nobody asked for
        part = body[: rng.randint(1, len(body))]
        return 206, _with(headers, f"0-{len(part) - 1}/{len(body)}", part), part
    if kind == "error":
        return rng.choice((500, 503, 404, 416)), {"Content-Length": "2"}, b"no"
    if kind == "page":
        return 200, {"Content-Type": "text/html", "Content-Length": "6"}, b"<html>"
    if kind == "empty":
        return 204, {}, b""
    if kind == "other version":
        return status, headers | {"ETag": '"7"'}, rng.randbytes(len(body))
    if kind == "no version":
        return status, {name: value for name, value in headers.items() if name != "ETag"}, rng.randbytes(len(body))
    if kind == "no range":
        return status, {name: value for name, value in headers.items() if name != "Content-Range"}, body
    start, last, total = headers["Content-Range"].removeprefix("bytes ").replace("/", "-").split("-")
    if kind == "early":
        body = body[: rng.randint(1, len(body))]
        last = str(int(start) + len(body) - 1)
    elif kind == "elsewhere":
        start = str(max(0, int(start) + rng.choice((-1, 1, -100))))
    else:
        total = rng.choice(("*", "1", str(int(last) + 1000), "x"))
    return status, _with(headers, f"{start}-{last}/{total}", body), body


def _with(headers: dict[str, str], span: str, body: bytes) -> dict[str, str]:
    return headers | {"Content-Range": f"bytes {span}"} | ({"Content-Length": str(len(body))} if body else {})


LIES = (
    *(None, None, "early", "other version", "no version", "elsewhere", "other total"),
    *("no range", "unasked", "error", "page", "empty"),
)
