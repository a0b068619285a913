"""One file from a web server: resumed, tried again, checked; and Google Drive's question on the way."""

from __future__ import annotations

import hashlib
import json
import time
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace

import pytest

from ttmbench.data.download import drive as download_drive
from ttmbench.data.download import http as download_web
from ttmbench.data.download.http import Web
from ttmbench.data.origin import Origin
from ttmbench.errors import DataError, OutOfReachError

BODY = bytes(range(256)) * 40


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def web(waits, monkeypatch) -> Web:
    monkeypatch.setattr(download_web, "CHUNK", 1000)
    return Web(tries=3, pause=0.5, longest_wait=20, timeout=5, sleep=waits.append)


def fetch(web: Web, url: str, part: Path, **declared):
    return web.fetch(Origin(url=url, **declared), part, "the file")


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def test_a_file_with_its_size_and_digest(site, web, tmp_path, waits):
    url = site.put("/file.bin", BODY)
    got = fetch(web, url, tmp_path / "file.part", sha256=sha256(BODY), bytes=len(BODY))
    assert (got.bytes, got.sha256, got.url) == (len(BODY), sha256(BODY), url)
    assert (tmp_path / "file.part").read_bytes() == BODY and waits == []
    (request,) = site.log
    assert "Range" not in request[2] and request[2]["User-Agent"].startswith("ttmbench/")


def test_a_file_without_a_length_is_read_to_its_end(site, web, tmp_path):
    url = site.put("/file.bin", BODY, length=False)
    assert fetch(web, url, tmp_path / "file.part").bytes == len(BODY)


def test_a_broken_connection_is_continued_where_it_stopped(site, web, tmp_path, waits):
    url = site.put("/file.bin", BODY, cut=[3000, 2500, 10])
    assert fetch(web, url, tmp_path / "file.part").sha256 == sha256(BODY)
    asked = [headers.get("Range") for _, _, headers in site.log]
    assert asked == [None, "bytes=3000-", "bytes=5500-", "bytes=5510-"]
    assert site.log[1][2]["If-Range"] == '"1"' and waits == [0.5, 0.5, 0.5], "what brings something new counts as one"


def test_an_interrupted_file_is_continued_by_the_next_command(site, web, tmp_path):
    url = site.put("/file.bin", BODY)
    part = tmp_path / "file.part"
    part.write_bytes(BODY[:4000])
    known = {"url": url, "validator": '"1"', "total": len(BODY)}
    part.with_name("file.part.json").write_text(json.dumps(known), encoding="utf-8")
    assert fetch(web, url, part).sha256 == sha256(BODY)
    assert site.log[0][2]["Range"] == "bytes=4000-"


def test_a_part_that_was_whole_already_is_not_fetched_again(site, web, tmp_path):
    url = site.put("/file.bin", BODY)
    fetch(web, url, tmp_path / "file.part")
    got = fetch(web, url, tmp_path / "file.part", sha256=sha256(BODY))
    assert got.bytes == len(BODY) and site.log[-1][2]["Range"] == f"bytes={len(BODY)}-" and len(site.log) == 2


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
def test_a_part_of_another_version_is_started_anew(site, web, tmp_path, how, known, content):
    url = site.put("/file.bin", BODY, **how)
    part = tmp_path / "file.part"
    part.write_bytes(content)
    if known is not None:
        state = {"url": url, "validator": '"1"', "total": len(BODY), **known}
        part.with_name("file.part.json").write_text(json.dumps(state), encoding="utf-8")
    assert fetch(web, url, part).sha256 == sha256(BODY) and part.read_bytes() == BODY


def ends_early(status, headers, body):
    if status == 206:
        start, _, total = headers["Content-Range"].removeprefix("bytes ").replace("/", "-").split("-")
        body = body[: len(body) // 2]
        headers |= {"Content-Range": f"bytes {start}-{int(start) + len(body) - 1}/{total}"}
        headers |= {"Content-Length": str(len(body))}
    return status, headers, body


def other_version(status, headers, body):
    return status, headers | ({"ETag": '"2"'} if status == 206 else {}), bytes(len(body)) if status == 206 else body


def no_version(status, headers, body):
    if status == 206:
        headers, body = {name: value for name, value in headers.items() if name != "ETag"}, bytes(len(body))
    return status, headers, body


def other_total(status, headers, body):
    if status == 206:
        headers, body = headers | {"Content-Range": headers["Content-Range"] + "0"}, bytes(len(body))
    return status, headers, body


def no_total(status, headers, body):
    if status == 206:
        span = headers["Content-Range"].partition("/")[0]
        headers, body = headers | {"Content-Range": f"{span}/*"}, bytes(len(body))
    return status, headers, body


def other_length(status, headers, body):
    return (
        (status, headers | {"Content-Length": str(len(body) - 7)}, body[7:]) if status == 206 else (200, headers, body)
    )


@pytest.mark.parametrize("odd", [ends_early, other_version, no_version, other_total, no_total, other_length])
def test_a_rest_is_taken_only_if_it_surely_is_the_rest(site, web, tmp_path, odd):
    """What a server sends as the rest of a file may end early, be of another version, or be counted wrongly."""
    url = site.put("/file.bin", BODY, cut=[3000], odd=odd)
    part = tmp_path / "file.part"
    assert fetch(web, url, part).sha256 == sha256(BODY) and part.read_bytes() == BODY
    ranges = [headers.get("Range") for _, _, headers in site.log]
    assert ranges[:2] == [None, "bytes=3000-"] and (ranges[2] is not None) == (odd is ends_early)


def test_a_part_that_nobody_asked_for_is_not_the_whole(site, web, tmp_path):
    def part_of_it(status, headers, body):
        return 206, headers | {"Content-Range": f"bytes 0-4999/{len(BODY)}", "Content-Length": "5000"}, body[:5000]

    url = site.put("/file.bin", BODY, odd=part_of_it)
    with pytest.raises(OutOfReachError, match="sent a part where the whole was asked for"):
        fetch(web, url, tmp_path / "file.part")
    site.pages["/file.bin"].odd = lambda status, headers, body: (
        206,
        headers | {"Content-Range": f"bytes 0-{len(BODY) - 1}/{len(BODY)}"},
        body,
    )
    assert fetch(web, url, tmp_path / "file.part").sha256 == sha256(BODY)


def test_without_a_version_there_is_no_rest(site, web, tmp_path):
    url = site.put("/file.bin", BODY, cut=[3000], etag=None)
    assert fetch(web, url, tmp_path / "file.part").sha256 == sha256(BODY)
    assert [headers.get("Range") for _, _, headers in site.log] == [None, None]


def test_a_server_that_trickles_is_given_up(site, waits, tmp_path):
    url = site.put("/file.bin", BODY, pause=0.02)
    slow = Web(tries=2, pause=0.5, timeout=5, patience=0.1, least=1000, sleep=waits.append)
    with pytest.raises(OutOfReachError, match=r"gave \d+ bytes in \d+ seconds, which is too slow, 2 times"):
        fetch(slow, url, tmp_path / "file.part")
    assert 0 < (tmp_path / "file.part").stat().st_size < 1000


def test_a_body_without_end_is_given_up(site, web, tmp_path, monkeypatch):
    monkeypatch.setenv("TTMBENCH_LIMITS", "download_bytes=5000")
    url = site.put("/file.bin", BODY, length=False)
    with pytest.raises(DataError, match="goes on beyond 5000 bytes; TTMBENCH_LIMITS=download_bytes="):
        fetch(web, url, tmp_path / "file.part")
    assert not (tmp_path / "file.part").exists()


def test_a_server_that_always_stops_is_given_up_and_the_part_is_kept(site, web, tmp_path, waits):
    url = site.put("/file.bin", BODY, cut=[3000, 0, 0, 0, 0])
    with pytest.raises(OutOfReachError) as caught:
        fetch(web, url, tmp_path / "file.part")
    text = str(caught.value)
    assert f"{url} ended after 3000 of {len(BODY)} bytes, 3 times; try again later" in text
    assert "the 3000 bytes that came are kept" in text and "\n" not in text
    assert (tmp_path / "file.part").stat().st_size == 3000 and waits == [0.5, 1.0]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 408])
def test_what_may_pass_is_tried_again(site, web, tmp_path, waits, status):
    url = site.put("/file.bin", BODY, first=[(status, {}, b""), (status, {}, b"")])
    assert fetch(web, url, tmp_path / "file.part").bytes == len(BODY)
    assert waits == [0.5, 1.0], "each wait is twice as long"


@pytest.mark.parametrize("date", [False, True])
def test_a_server_that_says_how_long_to_wait_is_obeyed(site, web, tmp_path, waits, date):
    wait = formatdate(time.time() + 7, usegmt=True) if date else "7"
    url = site.put("/file.bin", BODY, first=[(429, {"Retry-After": wait}, b"")])
    fetch(web, url, tmp_path / "file.part")
    assert len(waits) == 1 and 5 < waits[0] <= 7


def test_a_server_that_asks_for_too_long_a_wait_is_not_waited_for(site, web, tmp_path, waits):
    url = site.put("/file.bin", BODY, first=[(429, {"Retry-After": "3600"}, b"")])
    with pytest.raises(OutOfReachError, match=r"answers 429 .*asks to wait 3600 seconds; try again then"):
        fetch(web, url, tmp_path / "file.part")
    assert waits == []


def test_an_unreadable_wait_is_no_wait(site, web, tmp_path, waits):
    url = site.put("/file.bin", BODY, first=[(503, {"Retry-After": "soon"}, b"")])
    fetch(web, url, tmp_path / "file.part")
    assert waits == [0.5]


def test_a_server_that_keeps_failing_is_named(site, web, tmp_path):
    url = site.put("/file.bin", BODY, first=[(500, {}, b"")] * 9)
    with pytest.raises(OutOfReachError, match=r"/file\.bin answers 500 \(Internal Server Error\), 3 times"):
        fetch(web, url, tmp_path / "file.part")
    assert site.asked("/file.bin") == 3


@pytest.mark.parametrize(
    ("status", "advice"), [(404, "it may have moved"), (403, "may ask for a login"), (410, "moved")]
)
def test_what_will_not_pass_is_not_tried_again(site, web, tmp_path, waits, status, advice):
    url = site.put("/file.bin", BODY, first=[(status, {}, b"")])
    with pytest.raises(OutOfReachError, match=rf"answers {status} .*{advice}"):
        fetch(web, url, tmp_path / "file.part")
    assert waits == [] and not (tmp_path / "file.part").exists()


def test_no_server_at_all(web, tmp_path):
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(OutOfReachError, match=rf"127\.0\.0\.1:{port} cannot be reached \(.*refused.*\), 3 times"):
        fetch(web, f"http://127.0.0.1:{port}/file.bin", tmp_path / "file.part")


def test_patience_with_a_server_that_does_not_answer_is_shown_once(web, tmp_path, waits):
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for attempts in (2, 2):  # waits after the first file, and no more after the second
        with pytest.raises(OutOfReachError):
            fetch(web, f"http://127.0.0.1:{port}/file.bin", tmp_path / "file.part")
        assert len(waits) == attempts


def test_another_digest_is_refused_and_nothing_is_kept(site, web, tmp_path):
    url = site.put("/file.bin", BODY)
    with pytest.raises(DataError, match=rf"has sha256 {sha256(BODY)}, but the task file says {'0' * 64}") as caught:
        fetch(web, url, tmp_path / "file.part", sha256="0" * 64)
    assert not isinstance(caught.value, OutOfReachError) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("length", "declared"), [(True, 5), (True, 99999), (False, 5), (False, 99999)])
def test_another_size_is_refused(site, web, tmp_path, length, declared):
    url = site.put("/file.bin", BODY, length=length)
    with pytest.raises(DataError, match=rf"the (task file says {declared}|{declared} bytes of the task file)"):
        fetch(web, url, tmp_path / "file.part", bytes=declared)


def test_a_web_page_is_no_file(site, web, tmp_path):
    url = site.put("/file.bin", b"<html>Please log in</html>", kind="text/html; charset=utf-8")
    with pytest.raises(OutOfReachError, match="gave a web page in place of the file"):
        fetch(web, url, tmp_path / "file.part")


@pytest.mark.parametrize("target", ["file:///etc/hostname", "ftp://example.org/file"])
def test_a_redirect_out_of_the_web_is_refused(site, web, tmp_path, target):
    url = site.put("/file.bin", BODY, first=[(302, {"Location": target}, b"")])
    with pytest.raises(OutOfReachError, match=r"no safe address|answers 302"):
        fetch(web, url, tmp_path / "file.part")


def test_a_file_that_is_packed_on_the_way_is_refused_and_an_archive_is_not(site, web, tmp_path):
    url = site.put("/file.bin", BODY, headers={"Content-Encoding": "gzip"})
    with pytest.raises(OutOfReachError, match=r"is sent packed \(gzip\)"):
        fetch(web, url, tmp_path / "file.part")
    assert fetch(web, url, tmp_path / "file.part", unpack=True).bytes == len(BODY)


def test_a_redirect_is_followed(site, web, tmp_path):
    url = site.put("/old", b"", first=[(302, {"Location": site.put("/new", BODY)}, b"")])
    assert fetch(web, url, tmp_path / "file.part").bytes == len(BODY)


def test_a_full_disk_is_told_before_it_is_full(site, web, tmp_path, monkeypatch):
    monkeypatch.setattr(download_web.shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(DataError, match=rf"needs {len(BODY)} more bytes than are free in"):
        fetch(web, site.put("/file.bin", BODY), tmp_path / "file.part")


def test_a_folder_that_cannot_be_written_to(site, web, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(DataError, match="the file cannot be written to"):
        fetch(web, site.put("/file.bin", BODY), tmp_path / "file" / "x.part")


def test_ctrl_c_keeps_what_came(site, web, tmp_path, monkeypatch):
    url = site.put("/file.bin", BODY)
    real, calls = download_web._read, []

    def read(response, address):
        calls.append(address)
        if len(calls) > 3:
            raise KeyboardInterrupt
        return real(response, address)

    monkeypatch.setattr(download_web, "_read", read)
    with pytest.raises(KeyboardInterrupt):
        fetch(web, url, tmp_path / "file.part")
    assert (tmp_path / "file.part").read_bytes() == BODY[:3000]
    monkeypatch.setattr(download_web, "_read", real)
    assert fetch(web, url, tmp_path / "file.part").sha256 == sha256(BODY)
    assert site.log[-1][2]["Range"] == "bytes=3000-"


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


def test_a_small_file_of_drive_comes_at_once(drive, web, tmp_path):
    drive.put("/uc", BODY)
    assert fetch(web, f"{drive.url}/uc?id=FILE", tmp_path / "file.part").bytes == len(BODY)
    assert drive.log[0][1] == "/uc?id=FILE&export=download"


def test_a_large_file_of_drive_comes_after_its_question(drive, web, tmp_path):
    drive.put("/download", BODY)
    url = question(drive, f"{drive.url}/download")
    assert fetch(web, url, tmp_path / "file.part").sha256 == sha256(BODY)
    assert drive.log[-1][1] == "/download?id=FILE&export=download&confirm=t&uuid=a%26b"


def test_a_large_file_of_drive_is_continued(drive, web, tmp_path):
    drive.put("/download", BODY, cut=[3000])
    assert fetch(web, question(drive, "/download"), tmp_path / "file.part").sha256 == sha256(BODY)
    assert drive.log[-1][2]["Range"] == "bytes=3000-"


def test_drive_says_why_it_refuses(drive, web, tmp_path):
    drive.put("/uc", QUOTA.encode(), kind="text/html")
    with pytest.raises(OutOfReachError) as caught:
        fetch(web, f"{drive.url}/uc?id=FILE", tmp_path / "file.part")
    assert "Too many users have viewed or downloaded this file recently." in str(caught.value)
    drive.put("/uc", b"<html>Sign in</html>", kind="text/html")
    with pytest.raises(OutOfReachError, match="it may ask for a login"):
        fetch(web, f"{drive.url}/uc?id=FILE", tmp_path / "file.part")


def test_a_question_that_leads_elsewhere_is_not_answered(drive, web, tmp_path):
    with pytest.raises(OutOfReachError, match=r"leads to example\.org, which is not Drive's"):
        fetch(web, question(drive, "http://example.org/download"), tmp_path / "file.part")


def test_a_question_without_end_is_given_up(drive, web, tmp_path):
    with pytest.raises(OutOfReachError, match="again and again"):
        fetch(web, question(drive, "/uc"), tmp_path / "file.part")


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
    ],
)
def test_what_a_task_file_may_not_say_of_an_address(value, message):
    with pytest.raises(ValueError, match=message):
        Origin.model_validate(value)
