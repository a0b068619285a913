"""One file from a web server: resumed, tried again, checked; and Google Drive's question on the way."""

from __future__ import annotations

import hashlib
import json
import socket
import time
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace

import pytest

from ttmbench.data.download import drive as download_drive
from ttmbench.data.download import http as download_web
from ttmbench.data.download.http import Web
from ttmbench.data.paths import Origin
from ttmbench.errors import DataError, OutOfReachError

BODY = bytes(range(256)) * 40


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def web(waits, monkeypatch) -> Web:
    monkeypatch.setattr(download_web, "CHUNK", 1000)
    return Web(tries=3, pause=0.5, longest_wait=20, timeout=60, sleep=waits.append)


@pytest.fixture
def part(tmp_path) -> Path:
    return tmp_path / "file.part"


def fetch(web: Web, url: str, part: Path, **declared):
    return web.fetch(Origin(url=url, **declared), part, "the file")


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def ranges(site) -> list[str | None]:
    """What was asked for, request by request."""
    return [headers.get("Range") for _, _, headers in site.log]


def state(part: Path, **known: object) -> None:
    """What is known of a part, written beside it."""
    part.with_name("file.part.json").write_text(json.dumps(known), encoding="utf-8")


def test_a_file_with_its_size_and_digest(site, web, part, waits):
    url = site.put("/file.bin", BODY)
    got = fetch(web, url, part, sha256=sha256(BODY), bytes=len(BODY))
    assert (got.bytes, got.sha256, got.url) == (len(BODY), sha256(BODY), url)
    assert part.read_bytes() == BODY and waits == []
    (request,) = site.log
    assert "Range" not in request[2] and request[2]["User-Agent"].startswith("ttmbench/")


@pytest.mark.parametrize(
    ("page", "asked", "waited"),
    [
        ({"length": False}, [None], []),
        ({"cut": [3000, 2500, 10]}, [None, "bytes=3000-", "bytes=5500-", "bytes=5510-"], [0.5, 0.5, 0.5]),
        ({"cut": [3000], "etag": None}, [None, None], [0.5]),
        *(({"first": [(status, {}, b"")] * 2}, [None] * 3, [0.5, 1.0]) for status in (408, 429, 500, 502, 503, 504)),
        ({"first": [(503, {"Retry-After": "soon"}, b"")]}, [None] * 2, [0.5]),
        ({"first": [(429, {"Retry-After": "7"}, b"")]}, [None] * 2, [7]),
    ],
)
def test_what_may_pass_is_tried_again_and_a_broken_connection_goes_on(site, web, part, waits, page, asked, waited):
    """Each wait is twice as long, but what brings something new counts as one; without a version there is no rest."""
    assert fetch(web, site.put("/file.bin", BODY, **page), part).sha256 == sha256(BODY)
    assert ranges(site) == asked and waits == waited
    assert all(headers["If-Range"] == '"1"' for _, _, headers in site.log if "Range" in headers)


def test_a_server_that_names_a_date_is_obeyed(site, web, part, waits):
    date = formatdate(time.time() + 19, usegmt=True)
    fetch(web, site.put("/file.bin", BODY, first=[(429, {"Retry-After": date}, b"")]), part)
    assert len(waits) == 1 and 0 < waits[0] <= 19


def test_an_interrupted_file_is_continued_by_the_next_command_and_a_whole_one_is_not_fetched_again(site, web, part):
    url = site.put("/file.bin", BODY)
    part.write_bytes(BODY[:4000])
    state(part, url=url, validator='"1"', total=len(BODY))
    for _ in range(2):
        got = fetch(web, url, part, sha256=sha256(BODY))
        assert got.bytes == len(BODY)
    assert ranges(site) == ["bytes=4000-", f"bytes={len(BODY)}-"]


@pytest.mark.parametrize(
    ("how", "known", "content"),
    [
        ({"ranges": False}, {}, BODY[:4000]),
        ({"etag": '"2"'}, {}, b"x" * 4000),
        ({"etag": None}, {"validator": None, "total": 77}, b"x" * 4000),
        ({}, {"url": "http://elsewhere"}, b"x" * 4000),
        ({}, None, b"x" * 4000),
        ({}, {"total": "nonsense", "validator": None}, b"x" * 4000),
        ({}, {"validator": None, "total": None}, b"x" * (len(BODY) + 5)),
    ],
)
def test_a_part_of_another_version_is_started_anew(site, web, part, how, known, content):
    url = site.put("/file.bin", BODY, **how)
    part.write_bytes(content)
    if known is not None:
        state(part, **{"url": url, "validator": '"1"', "total": len(BODY), **known})
    assert fetch(web, url, part).sha256 == sha256(BODY) and part.read_bytes() == BODY


def changed_rest(change):
    """An honest answer but where it is the rest of a file: headers and body as the function makes them."""
    return lambda status, headers, body: (status, *(change(dict(headers), body) if status == 206 else (headers, body)))


def ends_early(headers, body):
    start, _, total = headers["Content-Range"].removeprefix("bytes ").replace("/", "-").split("-")
    body = body[: len(body) // 2]
    span = f"bytes {start}-{int(start) + len(body) - 1}/{total}"
    return headers | {"Content-Range": span, "Content-Length": str(len(body))}, body


ODD = {
    "ends early": ends_early,
    "other version": lambda headers, body: (headers | {"ETag": '"2"'}, bytes(len(body))),
    "no version": lambda headers, body: ({key: headers[key] for key in headers if key != "ETag"}, bytes(len(body))),
    "other total": lambda headers, body: (
        headers | {"Content-Range": f"{headers['Content-Range']}0"},
        bytes(len(body)),
    ),
    "no total": lambda headers, body: (
        headers | {"Content-Range": headers["Content-Range"].partition("/")[0] + "/*"},
        bytes(len(body)),
    ),
    "other length": lambda headers, body: (headers | {"Content-Length": str(len(body) - 7)}, body[7:]),
}


@pytest.mark.parametrize("odd", ODD)
def test_a_rest_is_taken_only_if_it_surely_is_the_rest(site, web, part, odd):
    """What a server sends as the rest of a file may end early, be of another version, or be counted wrongly."""
    url = site.put("/file.bin", BODY, cut=[3000], odd=changed_rest(ODD[odd]))
    assert fetch(web, url, part).sha256 == sha256(BODY) and part.read_bytes() == BODY
    assert ranges(site)[:2] == [None, "bytes=3000-"] and (ranges(site)[2] is not None) == (odd == "ends early")


def test_a_part_that_nobody_asked_for_is_not_the_whole(site, web, part):
    def part_of_it(status, headers, body):
        return 206, headers | {"Content-Range": f"bytes 0-4999/{len(BODY)}", "Content-Length": "5000"}, body[:5000]

    url = site.put("/file.bin", BODY, odd=part_of_it)
    with pytest.raises(OutOfReachError, match="sent a part where the whole was asked for"):
        fetch(web, url, part)
    whole = {"Content-Range": f"bytes 0-{len(BODY) - 1}/{len(BODY)}"}
    site.pages["/file.bin"].odd = lambda status, headers, body: (206, headers | whole, body)
    assert fetch(web, url, part).sha256 == sha256(BODY)


def test_a_server_that_trickles_is_given_up(site, waits, part):
    url = site.put("/file.bin", BODY, pause=0.02)
    slow = Web(tries=2, pause=0.5, timeout=60, patience=0.1, least=1000, sleep=waits.append)
    with pytest.raises(OutOfReachError, match=r"gave \d+ bytes in \d+ seconds, which is too slow, 2 times"):
        fetch(slow, url, part)
    assert 0 < part.stat().st_size < 1000


def test_a_body_without_end_is_given_up(site, web, part, monkeypatch):
    monkeypatch.setenv("TTMBENCH_LIMITS", "download_bytes=5000")
    with pytest.raises(DataError, match="has more than 5000 bytes; TTMBENCH_LIMITS=download_bytes="):
        fetch(web, site.put("/file.bin", BODY, length=False), part)
    assert not part.exists()


def test_a_server_that_always_stops_is_given_up_and_the_part_is_kept(site, web, part, waits):
    url = site.put("/file.bin", BODY, cut=[3000, 0, 0, 0, 0])
    with pytest.raises(OutOfReachError) as caught:
        fetch(web, url, part)
    text = str(caught.value)
    assert f"{url} ended after 3000 of {len(BODY)} bytes, 3 times; try again later" in text
    assert "the 3000 bytes received are saved" in text and "\n" not in text
    assert part.stat().st_size == 3000 and waits == [0.5, 1.0]


@pytest.mark.parametrize(
    ("page", "asked", "words"),
    [
        ({"first": [(500, {}, b"")] * 9}, 3, r"/file\.bin answers 500 \(Internal Server Error\), 3 times"),
        ({"first": [(429, {"Retry-After": "3600"}, b"")]}, 1, r"answers 429 .*asks to wait 3600 seconds; try again"),
        ({"first": [(404, {}, b"")]}, 1, "answers 404 .*it may have moved"),
        ({"first": [(410, {}, b"")]}, 1, "answers 410 .*moved"),
        ({"first": [(403, {}, b"")]}, 1, "answers 403 .*may ask for a login"),
        ({"first": [(302, {"Location": "file:///etc/hostname"}, b"")]}, 1, "not a safe address|answers 302"),
        ({"first": [(302, {"Location": "ftp://example.org/file"}, b"")]}, 1, "not a safe address|answers 302"),
        ({"kind": "text/html; charset=utf-8"}, 1, "gave a web page in place of the file"),
        ({"headers": {"Content-Encoding": "gzip"}}, 1, r"is sent packed \(gzip\)"),
    ],
)
def test_what_will_not_pass_is_named_and_not_tried_again(site, web, part, page, asked, words):
    with pytest.raises(OutOfReachError, match=words):
        fetch(web, site.put("/file.bin", BODY, **page), part)
    assert site.asked("/file.bin") == asked and not part.exists()


def test_an_archive_may_be_packed_on_the_way_and_a_redirect_is_followed(site, web, part):
    url = site.put("/file.bin", BODY, headers={"Content-Encoding": "gzip"})
    assert fetch(web, url, part, unpack=True).bytes == len(BODY)
    url = site.put("/old", b"", first=[(302, {"Location": site.put("/new", BODY)}, b"")])
    assert fetch(web, url, part).bytes == len(BODY)


def test_patience_with_a_server_that_does_not_answer_is_shown_once(web, part, waits):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{free.getsockname()[1]}"
    for times in (", 3 times", ""):  # waits after the first file, and no more after the second
        with pytest.raises(OutOfReachError, match=rf"{host} cannot be reached \(.*refused.*\){times}; try again"):
            fetch(web, f"http://{host}/file.bin", part)
        assert len(waits) == 2


def test_another_digest_is_refused_and_nothing_is_kept(site, web, part):
    url = site.put("/file.bin", BODY)
    with pytest.raises(DataError, match=rf"has sha256 {sha256(BODY)}, but the task file says {'0' * 64}") as caught:
        fetch(web, url, part, sha256="0" * 64)
    assert not isinstance(caught.value, OutOfReachError) and list(part.parent.iterdir()) == []


@pytest.mark.parametrize(("length", "declared"), [(True, 5), (True, 99999), (False, 5), (False, 99999)])
def test_another_size_is_refused(site, web, part, length, declared):
    url = site.put("/file.bin", BODY, length=length)
    with pytest.raises(DataError, match=rf"the (task file says {declared}|{declared} bytes of the task file)"):
        fetch(web, url, part, bytes=declared)


def test_a_full_disk_is_told_before_it_is_full(site, web, part, monkeypatch):
    monkeypatch.setattr(download_web.shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(DataError, match=rf"needs {len(BODY)} more bytes than are free in"):
        fetch(web, site.put("/file.bin", BODY), part)


def test_a_folder_that_cannot_be_written_to(site, web, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(DataError, match="the file cannot be written to"):
        fetch(web, site.put("/file.bin", BODY), tmp_path / "file" / "x.part")


def test_sizes_are_asked_for_without_fetching(site, web):
    assert web.size(site.put("/file.bin", BODY)) == len(BODY) and site.asked("/file.bin") == 0
    assert web.size(site.url + "/nothing") is None
    assert web.size(site.put("/long", BODY, length=False)) is None
    assert web.size("http://127.0.0.1:9/", timeout=0.5) is None
    assert web.size("https://drive.google.com/uc?id=x") is None


# --- Google Drive --------------------------------------------------------------------------------------------

QUESTION = """<!DOCTYPE html><html><head><title>Google Drive - Virus scan warning</title></head><body>
<p class="uc-warning-caption">Google Drive can't scan this file for viruses.</p>
<form id="download-form" action="{action}" method="get">
<input type="submit" id="uc-download-link" value="Download anyway"/>
<input type="hidden" name="id" value="FILE"><input type="hidden" name="export" value="download">
<input type="hidden" name="confirm" value="t"><input type="hidden" name="uuid" value="a&amp;b"></form></body></html>"""
QUOTA = """<html><head><title>Google Drive - Quota exceeded</title></head><body>
<p class="uc-error-caption">Sorry, you can't view or download this file at this time.</p>
<p class="uc-error-subcaption">Too many users have viewed or downloaded this file recently.</p></body></html>"""


@pytest.fixture
def drive(site, monkeypatch):
    """The server passes for Drive."""
    monkeypatch.setattr(download_drive, "HOSTS", (site.host,))
    return site


def question(drive, action: str) -> str:
    drive.put("/uc", QUESTION.format(action=action).encode(), kind="text/html; charset=utf-8")
    return f"{drive.url}/uc?id=FILE"


def test_a_small_file_of_drive_comes_at_once(drive, web, part):
    drive.put("/uc", BODY)
    assert fetch(web, f"{drive.url}/uc?id=FILE", part).bytes == len(BODY)
    assert drive.log[0][1] == "/uc?id=FILE&export=download"


@pytest.mark.parametrize("cut", [False, True])
def test_a_large_file_of_drive_comes_after_its_question_and_is_continued(drive, web, part, cut):
    drive.put("/download", BODY, cut=[3000] if cut else [])
    assert fetch(web, question(drive, "/download" if cut else f"{drive.url}/download"), part).sha256 == sha256(BODY)
    assert drive.log[-1][1] == "/download?id=FILE&export=download&confirm=t&uuid=a%26b"
    assert ranges(drive)[-1] == ("bytes=3000-" if cut else None)


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (QUOTA, "Too many users have viewed or downloaded this file recently."),
        ("<html>Sign in</html>", "it may ask for a login"),
        (QUESTION.format(action="http://example.org/download"), r"leads to example\.org, which is not Drive's"),
        (QUESTION.format(action="/uc"), "again and again"),
    ],
)
def test_drive_says_why_it_refuses(drive, web, part, page, words):
    drive.put("/uc", page.encode(), kind="text/html")
    with pytest.raises(OutOfReachError, match=words):
        fetch(web, f"{drive.url}/uc?id=FILE", part)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("ftp://example.org/x", "http or https"),
        ("http://example.org/x.zip (unpacked)", "'unpack: true'"),
        ("x.zip", "http or https"),
        ({"url": "http://a/b", "page": "http://a/c"}, "either 'url'"),
        ({}, "either 'url'"),
        ({"url": "http://a/b", "member": "x"}, "needs 'unpack: true'"),
        ({"url": "http://a/b", "sha256": "abc"}, "pattern"),
        ({"url": "http://a/b", "bytes": -1}, "greater than or equal"),
        ({"url": "http://a/b", "md5": "x"}, "Extra inputs"),
        ({"page": "https://a/b", "each": True}, "'each' needs a 'url'"),
        ({"url": "https://a/b", "each": True, "unpack": True}, "'each' needs a 'url'"),
        ({"url": "https://a/b", "each": True, "bytes": 3}, "'each' needs a 'url'"),
    ],
)
def test_what_a_task_file_may_not_say_of_an_address(value, message):
    with pytest.raises(ValueError, match=message):
        Origin.model_validate(value)


def test_a_redirect_names_its_target_without_its_query(site, web, part):
    target = site.put("/new", BODY, first=[(404, {}, b"")])
    with pytest.raises(OutOfReachError) as caught:
        fetch(web, site.put("/old", b"", first=[(302, {"Location": f"{target}?signature=secret"}, b"")]), part)
    assert target in str(caught.value) and "/old" in str(caught.value) and "secret" not in str(caught.value)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(OutOfReachError, match=f"redirected to {host}"):
        fetch(web, site.put("/gone", b"", first=[(302, {"Location": f"http://{host}/x"}, b"")] * 3), part)
