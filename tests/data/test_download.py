"""``ttmbench download``: from a web server to a folder from which tasks run offline, and what can go wrong."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from support import processes, task_data
from support.task_data import encoded, load, run, tar_of, write, zip_of

from ttmbench._util.third_party import TRIES
from ttmbench.cli import main
from ttmbench.data import fetch as module
from ttmbench.data.loader import data_locations
from ttmbench.data.task_file import all_tasks
from ttmbench.hookspecs import hookimpl
from ttmbench.plugins.registry import build_registry
from ttmbench.types import SourceSpec

COLORS = ("red", "green", "blue", "yellow")
ROWS = [
    {"image": f"{color}.png", "good": f"a {color} circle", "bad": f"a {other} circle"}
    for color, other in zip(COLORS, COLORS[1:] + COLORS[:1], strict=True)
]
GROUP = {"shape": [1, 2], "n_groups": 4, "images": ["image"], "captions": ["good", "bad"]}
IMAGES = {f"val/{color}.png": encoded(color, (48, 48)) for color in COLORS}
ARCHIVE = zip_of(IMAGES)
ANNOTATIONS = json.dumps(ROWS).encode()


@pytest.fixture(autouse=True)
def waits(monkeypatch) -> list[float]:
    """Nobody waits in a test."""
    waited: list[float] = []
    monkeypatch.setattr("ttmbench._util.third_party.time", SimpleNamespace(sleep=waited.append))
    return waited


@pytest.fixture
def data(tmp_path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def source(site) -> dict:
    """A source whose files are on the server."""
    site.put("/rows.json", ANNOTATIONS)
    site.put("/images.zip", ARCHIVE)
    images = {"url": f"{site.url}/images.zip", "unpack": True}
    get = {"mine/rows.json": {"url": f"{site.url}/rows.json"}, "mine/images": images}
    return {"kind": "annotations", "file": "mine/rows.json", "images": "mine/images", "get": get}


@pytest.fixture
def two_places(site, source) -> dict:
    site.put("/second.json", ANNOTATIONS)
    get = {"second/rows.json": f"{site.url}/second.json", "mine/images": source["get"]["mine/images"]}
    return {"kind": "first_of", "of": [source, {**source, "file": "second/rows.json", "get": get}]}


@pytest.fixture
def download(tmp_path, data, capsys):
    """Downloads a task of a source, or what the words name: exit code, what is said of each thing, and all of it."""

    def download(source: dict | None, *words: object, to: Path = data, **group: object) -> tuple[int, dict, str]:
        named = [] if source is None else [task_file(tmp_path, source, **group)]
        code, out, err = run(capsys, "download", *named, *words, "--data_dir", to)
        assert "Traceback" not in err
        said = {line.split()[0].rstrip(":"): " ".join(line.split()[1:]) for line in out.splitlines()}
        return code, said, out + err

    return download


def task_file(folder: Path, source: dict, name: str = "mine", **group: object) -> Path:
    more = {"metrics": ["text_score", "group_match"], "tag": ["colors"]}
    return task_data.task_file(folder, source, {**GROUP, **group}, name, **more)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def ranges(site, path: str) -> list[str | None]:
    """What was asked for of a file, request by request."""
    return [headers.get("Range") for _, at, headers in site.log if at.startswith(path)]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- the whole way -------------------------------------------------------------------------------------------


def test_from_the_server_to_a_run_offline(site, source, download, tmp_path, data, capsys):
    code, said, _ = download(source)
    assert code == 0
    assert said["mine/rows.json"].startswith("fetched ") and f"from {site.url}/rows.json" in said["mine/rows.json"]
    assert "unpacked to 4 files of" in said["mine/images"] and said["mine"] == "ready 4 groups"
    assert names(data / "mine") == ["images", "rows.json"], "no part is left"
    assert names(data / "mine" / "images") == sorted(f"{color}.png" for color in COLORS)
    site.pages.clear()
    path = tmp_path / "mine.yaml"
    code, out, _ = run(capsys, "validate", path, "--data_dir", data, "--offline")
    assert code == 0 and "4 groups, all images decode; 4 images from annotations mine/rows.json;" in out
    offline = ["--model", "tiny-clip", "--tasks", path, "--data_dir", data, "--offline", "--device", "cpu"]
    assert run(capsys, *offline, "--bootstrap_iters", "10", "-o", tmp_path / "x.json")[0] == 0
    document = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert document["datasets"]["mine"]["source"]["sha256"] == sha256(ANNOTATIONS)
    assert len(site.log) == 2, "validate and run asked for nothing"


def test_what_is_here_and_whole_is_not_fetched_again(site, source, download, data):
    source["get"]["mine/rows.json"] |= {"sha256": sha256(ANNOTATIONS), "bytes": len(ANNOTATIONS)}
    source["get"]["mine/images"]["sha256"] = sha256(ARCHIVE)
    download(source)
    code, said, _ = download(source)
    assert code == 0 and len(site.log) == 2
    assert said["mine/rows.json"] == f"present {data}" and said["mine/images"] == f"present {data}"
    (data / "mine" / "rows.json").write_bytes(ANNOTATIONS[:-9])
    assert download(source)[0] == 0 and len(site.log) == 3
    (data / "mine" / "images" / "red.png").unlink()
    code, said, _ = download(source)
    assert code == 4 and "image red.png is not in mine/images; put what is missing there" in said["mine/rows.json"]


def test_a_users_own_files_are_taken_as_they_are(site, source, download, data):
    for name, body in IMAGES.items():
        write(data / "elsewhere" / Path(name).name, body)
    write(data / "mine" / "rows.json", json.dumps(ROWS, indent=2))
    (data / "mine" / "images").symlink_to(data / "elsewhere")
    assert download(source)[0] == 0 and site.log == []
    (data / "mine" / "images").unlink()
    (data / "mine" / "images").symlink_to(data / "nothing")
    code, said, _ = download(source)
    assert code == 4 and "is a link or a folder, and it is not there" in said["mine/images"]
    assert (data / "mine" / "images").is_symlink()


def test_tasks_that_share_a_file_fetch_it_once(site, source, download, tmp_path):
    for name in ("one", "two"):
        task_file(tmp_path / "tasks", source, name)
    code, said, _ = download(None, "colors", "--include_path", tmp_path / "tasks")
    assert code == 0 and site.asked("/images.zip") == site.asked("/rows.json") == 1
    assert list(said) == ["mine/rows.json", "mine/images", "one", "two"]
    source["get"]["mine/rows.json"] = "http://example.org/rows.json"
    task_file(tmp_path / "tasks", source, "two")
    code, _, text = download(None, "one,two", "--include_path", tmp_path / "tasks")
    assert code == 4 and "mine/rows.json cannot come from both" in text


def test_two_processes_at_once_fetch_a_file_once(site, source, tmp_path, data):
    words = ["-m", "ttmbench", "download", task_file(tmp_path, source), "--data_dir", data]
    both_of_them = [processes.start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    for process in both_of_them:
        _, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
    assert site.asked("/rows.json") == site.asked("/images.zip") == 1 and not list(data.rglob("*.part"))


@pytest.mark.parametrize("member", ["data/deep", "data/rows.json"])
def test_a_member_of_an_archive_becomes_the_path(site, source, download, data, member):
    files = {f"data/deep/{color}.png": encoded(color) for color in COLORS} | {"data/rows.json": ANNOTATIONS}
    url = site.put("/all.tgz", tar_of({**files, "data/._rows.json": b"x", "other": b"x"}))
    path = "mine/images" if member == "data/deep" else "mine/rows.json"
    source["get"][path] = {"url": url, "unpack": True, "member": member}
    assert download(source)[1]["mine"] == "ready 4 groups"
    assert names(data / "mine") == ["images", "rows.json"]


# --- what goes wrong -----------------------------------------------------------------------------------------


def test_a_file_that_fails_does_not_stop_the_others(site, source, download):
    del site.pages["/rows.json"]
    code, said, text = download(source, "shapes_place")
    assert code == 4 and "the download is incomplete for mine" in text
    assert said["mine/rows.json"].startswith("failed ") and "answers 404" in said["mine/rows.json"]
    assert said["mine/images"].startswith("fetched ") and said["shapes_place"] == "ready 200 groups"
    assert said["mine"] == "missing mine/rows.json; `ttmbench download mine` resumes when that is fixed"


@pytest.mark.parametrize("stated", [{"sha256": "0" * 64}, {"bytes": 5}])
@pytest.mark.parametrize("length", [True, False])
def test_another_digest_or_size_is_refused(site, source, download, data, stated, length):
    site.pages["/rows.json"].length = length
    source["get"]["mine/rows.json"] |= stated
    own = write(data / "mine" / "rows.json", b"a user's own, of another version")
    code, said, _ = download(source)
    assert code == 4 and "but the task file says" in said["mine/rows.json"]
    assert own.read_bytes().startswith(b"a user's own") and not list(data.rglob("*.part"))


@pytest.mark.parametrize(
    ("page", "asked", "waited"),
    [
        ({"length": False}, [None], 0),
        ({"cut": [30, 999, 25]}, [None, None, "bytes=30-", None, "bytes=55-"], 2),
        ({"cut": [30], "etag": None}, [None, None], 1),
        ({"cut": [30], "ranges": False}, [None, None, "bytes=30-"], 1),
        *(({"first": [(status, {}, b"")] * 2}, [None] * 3, 2) for status in (408, 429, 500, 503)),
    ],
)
def test_what_may_pass_is_tried_again_and_a_broken_file_goes_on(site, source, download, waits, page, asked, waited):
    """Without a version, or a server that sends parts, it starts anew."""
    site.put("/rows.json", ANNOTATIONS, **page)
    assert download(source)[0] == 0
    assert ranges(site, "/rows.json") == asked and waits == [1.0, 2.0][:waited]
    assert all(headers["If-Range"] == '"1"' for _, _, headers in site.log if "Range" in headers)


@pytest.mark.parametrize("changed", [False, True])
def test_the_next_command_resumes_a_file_of_the_same_version(site, source, download, data, changed):
    site.pages["/images.zip"].cut = [300] + [0] * 20
    code, said, _ = download(source)
    assert code == 4 and f"ended after 300 of {len(ARCHIVE)} bytes; try again later" in said["mine/images"]
    (part,) = (data / "mine").glob(".images.*.part")
    assert part.stat().st_size == 300
    site.put("/images.zip", ARCHIVE, etag='"2"' if changed else '"1"')
    site.log.clear()
    assert download(source)[0] == 0 and names(data / "mine") == ["images", "rows.json"]
    assert ranges(site, "/images.zip") == [None] if changed else [None, "bytes=300-"]


@pytest.mark.parametrize(
    ("page", "asked", "words"),
    [
        ({"first": [(500, {}, b"")] * 9}, TRIES, "/rows.json answers 500 (Internal Server Error); try again"),
        ({"first": [(404, {}, b"")]}, 1, "answers 404 (Not Found); it may ask for a login or have moved"),
        ({"first": [(403, {}, b"")]}, 1, "answers 403 (Forbidden); it may ask for a login"),
        ({"first": [(302, {"Location": "file:///etc/hostname"}, b"")]}, 1, "answers 302"),
        ({"first": [(302, {"Location": "/gone?key=a"}, b"")]}, 1, "/gone) answers 404"),
        ({"kind": "text/html; charset=utf-8"}, 1, "gave a web page in place of the file"),
    ],
)
def test_what_will_not_pass_is_named(site, source, download, data, page, asked, words):
    site.put("/rows.json", ANNOTATIONS, **page)
    code, said, _ = download(source)
    assert code == 4 and words in said["mine/rows.json"]
    assert site.asked("/rows.json") == asked and not list(data.rglob("*.part"))


@pytest.mark.parametrize(
    ("what", "code", "words"),
    [("below a file", 2, "must be a folder"), ("a file", 2, "must be a folder"), ("read only", 4, "be written")],
)
def test_a_folder_that_cannot_be_written_to(source, download, data, what, code, words):
    if what == "read only":
        if os.geteuid() == 0:
            pytest.skip("root may write anywhere")
        data.mkdir(mode=0o500)
    else:
        data.write_text("", encoding="utf-8")
    got, _, text = download(source, to=data / "x" if what == "below a file" else data)
    assert got == code and words in text


def test_what_nobody_can_fetch_is_told(source, download, data):
    source["get"]["mine/images"] = {"page": "https://example.org/agree"}
    code, _, text = download(source)
    where = data / "mine" / "images"
    assert code == 4 and f"has to be downloaded manually: https://example.org/agree; put it at {where}" in text
    code, _, text = download(source | {"get": {}}, to=data.with_name("other"))
    assert code == 4 and "mine/rows.json has no address in the task file; put it at" in text


# --- several places ------------------------------------------------------------------------------------------


def test_the_first_place_that_can_be_fetched_is_taken(site, two_places, download, tmp_path):
    assert download(two_places)[0] == 0 and site.asked("/second.json") == 0
    again = tmp_path / "again"
    del site.pages["/rows.json"]
    code, said, _ = download(two_places, to=again)
    assert code == 0 and site.asked("/second.json") == 1
    assert said["mine"] == "ready 4 groups, without annotations mine/rows.json"
    before = len(site.log)
    assert download(two_places, to=again)[0] == 0
    assert len(site.log) == before, "a place that is here is enough"


def test_a_place_may_be_chosen(site, two_places, download, tmp_path):
    code, said, _ = download(two_places, "--alternative", "2")
    assert code == 0 and site.asked("/rows.json") == 0 and "second/rows.json" in said
    assert download(None, "shapes_place", "--alternative", "2")[0] == 0
    del site.pages["/second.json"]
    assert download(two_places, "--alternative", "2", to=tmp_path / "other")[0] == 4
    assert site.asked("/rows.json") == 0


def test_tag_files_are_fetched_too(site, source, download, tmp_path, data):
    site.put("/tags.json", json.dumps({"0": "warm"}).encode())
    files = {"mood": {"file": "tags/mood.json", "get": {"url": f"{site.url}/tags.json"}}}
    assert download(source, tag_files=files)[0] == 0
    assert load(tmp_path / "mine.yaml", data).groups[0].tags == {"mood": "warm"}
    site.put("/tags.json", b"[1]")
    code, said, _ = download(source, to=tmp_path / "third", tag_files=files)
    assert code == 4 and "expected an object of group ids, got list" in said["mine"]
    del site.pages["/tags.json"]
    code, said, _ = download(source, to=tmp_path / "other", tag_files=files)
    assert code == 4 and said["tags/mood.json"].startswith("failed ")


def test_every_published_task_says_where_each_of_its_files_comes_from(data):
    registry = build_registry()
    for name, task in all_tasks(registry).items():
        places, tags = data_locations(registry, task, data)
        for place in places:
            assert place.needs is not None, name
            known = ("http", "the addresses in its rows")
            assert all(need.origin.startswith(known) for need in place.needs), name
        assert all(need.origin.startswith("http") for need in tags), name


def test_a_dry_run_lists_what_would_be_fetched_and_writes_nothing(site, source, two_places, download, data):
    source["get"]["mine/rows.json"]["bytes"] = 1234
    code, said, _ = download(two_places, "shapes_place", "--dry_run")
    assert code == 0 and not data.exists()
    assert said["mine/rows.json"].startswith("would fetch 1.2 kB, http")
    assert said["mine/images"].startswith(f"would fetch {len(ARCHIVE)} B, {site.url}/images.zip (unpacked)")
    assert said["mine"] == "incomplete the data folder; fallback: the data folder"
    assert said["shapes_place"] == "present drawn on this machine"


PLUGIN = """
import ttmbench
from ttmbench.data.sources.rendered import read_rendered as read


here = []


def missing():
    return None if here else "it is not in the yard"


def fetch():
    here.append(1)
    return "one stone"


def locations(request):
    return [ttmbench.DataLocation("the yard", [ttmbench.DataNeed("a stone", "the quarry", "the yard", missing, fetch)])]
"""


@pytest.mark.parametrize("lists", [False, True])
def test_a_plugins_source_lists_what_it_needs_or_is_read_once(tmp_path, data, monkeypatch, capsys, lists):
    walls = ModuleType("ttmbench_walls")
    exec(PLUGIN, walls.__dict__)
    monkeypatch.setitem(__import__("sys").modules, "ttmbench_walls", walls)
    spec = SourceSpec("walls", "ttmbench_walls:read", needs="ttmbench_walls:locations" if lists else "")
    plugin = type("Walls", (), {"ttmbench_register_sources": hookimpl(lambda self: [spec])})()
    point = SimpleNamespace(name="walls", value="walls:plugin", dist=None, load=lambda: plugin)
    monkeypatch.setattr("ttmbench.plugins.registry.entry_points", lambda group: [point])
    path = task_file(tmp_path, {"kind": "walls", "scene": "replace"})
    missing = main(["doctor", str(path), "--data_dir", str(data)])
    assert missing == 4 and ("a stone in the yard" in capsys.readouterr().out) == lists
    code, out, _ = run(capsys, "download", path, "--data_dir", data)
    assert code == 0 and ("one stone, from the quarry" in out) == lists


def test_a_data_folder_that_does_not_exist_is_a_usage_error(tmp_path, capsys):
    words = ["--model", "tiny-clip", "--tasks", "shapes_place"]
    code, out, err = run(capsys, *words, "--data_dir", tmp_path / "nothing")
    assert code == 2 and "\n" not in err.strip()
    assert f"--data_dir {tmp_path / 'nothing'} must be a folder; `ttmbench download" in err and out == ""


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
def drive(site, source, monkeypatch):
    """The server passes for Drive, and the rows lie there."""
    monkeypatch.setattr(module, "DRIVE", (site.host,))
    source["get"]["mine/rows.json"] = f"{site.url}/uc?id=FILE"
    return site


@pytest.mark.parametrize("cut", [False, True])
def test_a_large_file_of_drive_comes_after_its_question_and_is_continued(drive, source, download, tmp_path, cut):
    drive.put("/uc", ANNOTATIONS)
    assert download(source, to=tmp_path / "small")[0] == 0 and drive.log[0][1] == "/uc?id=FILE&export=download"
    drive.put("/download", ANNOTATIONS, cut=[30] if cut else [])
    action = "/download" if cut else f"{drive.url}/download"
    drive.put("/uc", QUESTION.format(action=action).encode(), kind="text/html; charset=utf-8")
    assert download(source)[0] == 0
    asked = [at for _, at, _ in drive.log if at.startswith("/download")]
    assert set(asked) == {"/download?id=FILE&export=download&confirm=t&uuid=a%26b"}
    assert ranges(drive, "/download") == ([None, None, "bytes=30-"] if cut else [None])


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (QUOTA, "Too many users have viewed or downloaded this file recently."),
        ("<html>Sign in</html>", "does it ask for a login?"),
        (QUESTION.format(action="http://example.org/download"), "does it ask for a login?"),
        (QUESTION.format(action="/uc"), "gave a web page in place of the file"),
    ],
)
def test_drive_says_why_it_refuses(drive, source, download, page, words):
    drive.put("/uc", page.encode(), kind="text/html")
    code, said, _ = download(source)
    assert code == 4 and words in said["mine/rows.json"]


@pytest.mark.parametrize(
    "value",
    [
        "ftp://example.org/x",
        "x.zip",
        {"url": "http://a/b", "page": "http://a/c"},
        {},
        {"url": "http://a/b", "member": "x"},
        {"url": "http://a/b", "sha256": "abc"},
        {"url": "http://a/b", "bytes": -1},
        {"url": "http://a/b", "md5": "x"},
    ],
)
def test_an_origin_that_is_wrong_is_a_usage_error(source, download, value):
    source["get"]["mine/images"] = value
    assert download(source)[0] == 2
