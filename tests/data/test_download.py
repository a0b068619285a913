"""``ttmbench download``: from a web server to a folder from which tasks run offline, and what can go wrong."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from types import ModuleType
from unittest.mock import Mock

import pytest
from support import processes, task_data
from support.task_data import encoded, load, run, write, zip_of

from ttmbench.cli import download as command
from ttmbench.cli.doctor import check_task
from ttmbench.data.availability import DataLocation
from ttmbench.data.catalog import all_tasks, find_task
from ttmbench.data.download import files as download_files
from ttmbench.data.download import http as download_web
from ttmbench.data.download.files import DataFile
from ttmbench.data.download.http import Web
from ttmbench.data.fetch import Downloads, plans
from ttmbench.data.loader import data_locations
from ttmbench.data.paths import Origin
from ttmbench.data.sources.rendered import read_rendered
from ttmbench.errors import DataError
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
QUICK = Web(tries=2, pause=0.0, timeout=60.0)


@pytest.fixture(autouse=True)
def no_patience(monkeypatch):
    """Nobody waits in a test."""
    monkeypatch.setattr(command, "Web", lambda: QUICK)


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


def record(data: Path) -> dict:
    return json.loads((data / "downloads.json").read_text(encoding="utf-8"))["files"]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# --- the whole way -------------------------------------------------------------------------------------------


def test_from_the_server_to_a_run_offline(site, source, download, tmp_path, data, capsys):
    code, said, _ = download(source)
    assert code == 0
    assert said["mine/rows.json"].startswith("fetched ") and f"from {site.url}/rows.json" in said["mine/rows.json"]
    assert "unpacked to 4 files of" in said["mine/images"] and said["mine"] == "ready 4 groups"
    assert sorted(file.name for file in (data / "mine" / "images").iterdir()) == sorted(f"{c}.png" for c in COLORS)
    assert sorted(file.name for file in (data / "mine").iterdir()) == ["images", "rows.json"], "no part is left"
    rows, images = (record(data)[f"mine/{name}"] for name in ("rows.json", "images"))
    assert (rows["bytes"], rows["sha256"]) == (len(ANNOTATIONS), sha256(ANNOTATIONS))
    assert rows["url"] == f"{site.url}/rows.json" and rows["time"][:2] == "20"
    assert images["unpacked"] == {"files": 4, "bytes": sum(map(len, IMAGES.values()))}
    assert images["sha256"] == sha256(ARCHIVE)
    site.pages.clear()
    path = tmp_path / "mine.yaml"
    code, out, _ = run(capsys, "validate", path, "--data_dir", data, "--offline")
    assert code == 0 and "4 groups, all images decode; 4 images from annotations mine/rows.json;" in out
    offline = ["--model", "tiny-clip", "--tasks", path, "--data_dir", data, "--offline", "--device", "cpu"]
    assert run(capsys, *offline, "--bootstrap_iters", "10", "-o", tmp_path / "x.json")[0] == 0
    document = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert document["datasets"]["mine"]["source"]["sha256"] == sha256(ANNOTATIONS)
    assert len(site.log) == 2, "validate and run asked for nothing"


@pytest.mark.parametrize("stated", [False, True])
def test_what_is_here_and_whole_is_not_fetched_again(site, source, download, data, stated):
    if stated:
        source["get"]["mine/rows.json"] |= {"sha256": sha256(ANNOTATIONS), "bytes": len(ANNOTATIONS)}
        source["get"]["mine/images"]["sha256"] = sha256(ARCHIVE)
    download(source)
    code, said, _ = download(source)
    assert code == 0 and len(site.log) == 2
    assert said["mine/rows.json"] == f"present {data}" and said["mine/images"] == f"present {data}"
    (data / "mine" / "rows.json").write_bytes(ANNOTATIONS[:-9])
    (data / "mine" / "images" / "red.png").unlink()
    code, said, _ = download(source)
    assert code == 0 and len(site.log) == 4 and said["mine"] == "ready 4 groups"
    assert (data / "mine" / "images" / "red.png").is_file()


def test_a_users_own_files_are_taken_as_they_are(site, source, download, data):
    for name, body in IMAGES.items():
        write(data / "elsewhere" / Path(name).name, body)
    write(data / "mine" / "rows.json", json.dumps(ROWS, indent=2))
    (data / "mine" / "images").symlink_to(data / "elsewhere")
    assert download(source)[0] == 0 and site.log == [] and not (data / "downloads.json").exists()


def test_a_link_that_leads_nowhere_is_not_replaced(source, download, data):
    (data / "mine").mkdir(parents=True)
    (data / "mine" / "images").symlink_to(data / "nothing")
    code, _, text = download(source)
    assert code == 4 and "is a link, and it is not there; fix its target" in text
    assert (data / "mine" / "images").is_symlink()


def test_tasks_that_share_a_file_fetch_it_once(site, source, download, tmp_path):
    for name in ("one", "two"):
        task_file(tmp_path / "tasks", source, name)
    code, said, _ = download(None, "colors", "--include_path", tmp_path / "tasks")
    assert code == 0 and site.asked("/images.zip") == site.asked("/rows.json") == 1
    assert list(said) == ["mine/rows.json", "mine/images", "one", "two"]


def test_the_environment_names_the_folder(source, tmp_path, data, capsys, monkeypatch):
    monkeypatch.setenv("TTMBENCH_DATA", str(data))
    assert run(capsys, "download", task_file(tmp_path, source))[0] == 0
    assert (data / "mine" / "rows.json").is_file() and len(load(tmp_path / "mine.yaml").groups) == 4


# --- what goes wrong -----------------------------------------------------------------------------------------


def test_a_file_that_fails_does_not_stop_the_others(site, source, download):
    del site.pages["/rows.json"]
    code, said, text = download(source, "shapes_place")
    assert code == 4 and "the download is incomplete for mine" in text
    assert said["mine/rows.json"].startswith("failed ") and "answers 404" in said["mine/rows.json"]
    assert said["mine/images"].startswith("fetched ") and said["shapes_place"] == "ready 200 groups"
    assert said["mine"] == "missing mine/rows.json; `ttmbench download mine` resumes when that is fixed"


def test_a_digest_that_differs_is_refused(source, download, data):
    source["get"]["mine/rows.json"]["sha256"] = "0" * 64
    code, said, _ = download(source)
    assert code == 4 and f"but the task file says {'0' * 64}" in said["mine/rows.json"]
    assert "mine/rows.json" not in record(data)
    own = write(data / "mine" / "rows.json", b"a user's own, of another version")
    assert download(source)[0] == 4 and own.read_bytes().startswith(b"a user's own")


def test_an_unsafe_archive_is_refused_and_not_kept(site, source, download, tmp_path, data):
    site.put("/images.zip", zip_of({**IMAGES, "../../evil.png": b"x"}))
    code, said, _ = download(source)
    assert code == 4 and "'../../evil.png' leads out of its folder" in said["mine/images"]
    assert not (tmp_path / "evil.png").exists() and [file.name for file in (data / "mine").iterdir()] == ["rows.json"]


@pytest.mark.parametrize("while_unpacking", [False, True])
def test_ctrl_c_keeps_the_part_and_the_next_command_goes_on(site, source, download, data, monkeypatch, while_unpacking):
    monkeypatch.setattr(download_web, "CHUNK", 100)
    module, name = (download_files, "unpack") if while_unpacking else (download_web, "_read")
    real, calls = getattr(module, name), []

    def interrupted(*given):
        calls.append(given)
        if while_unpacking or len(calls) == 9:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(module, name, interrupted)
    code, _, text = download(source)
    assert code == 130 and "run the same command again to resume" in text
    (part,) = (data / "mine").glob("*.part")
    size = part.stat().st_size
    assert size > 0 and (not while_unpacking or part.read_bytes() == ARCHIVE)
    monkeypatch.setattr(module, name, real)
    assert download(source)[0] == 0
    assert any(headers.get("Range") == f"bytes={size}-" for _, _, headers in site.log)


@pytest.mark.parametrize(
    ("what", "code", "words"),
    [
        ("below a file", 2, "cannot be created"),
        ("a file", 2, "must be a directory"),
        ("read only", 4, "cannot be written"),
    ],
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


def test_the_data_folder_itself_may_not_be_writable(source, download, data, monkeypatch):
    monkeypatch.setattr(download_files, "FileLock", Mock(side_effect=PermissionError(13, "Permission denied")))
    code, _, text = download(source)
    assert code == 4 and f"the data folder {data} cannot be written to (Permission denied)" in text


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 9, "files": {}}', '{"format": 1, "files": {"x": 3}}'])
def test_a_damaged_record_is_named(source, download, data, content):
    write(data / "downloads.json", content)
    write(data / "mine" / "rows.json", ANNOTATIONS)
    code, _, text = download(source)
    assert code == 4 and "downloads.json cannot be read" in text


def test_what_nobody_can_fetch_is_told(source, download, data):
    source["get"]["mine/images"] = {"page": "https://example.org/agree"}
    code, _, text = download(source)
    where = data / "mine" / "images"
    assert code == 4 and f"is fetched by hand: https://example.org/agree; put it at {where}" in text
    code, _, text = download(source | {"get": {}}, to=data.with_name("other"))
    assert code == 4 and "does not say where mine/rows.json comes from; put it into" in text


def test_two_tasks_that_want_one_path_from_two_places(site, source, download, tmp_path):
    task_file(tmp_path / "tasks", source, "one")
    source["get"]["mine/rows.json"] = "http://example.org/rows.json"
    task_file(tmp_path / "tasks", source, "two")
    code, _, text = download(None, "one,two", "--include_path", tmp_path / "tasks")
    assert code == 4 and "mine/rows.json cannot come from both" in text and site.log == []


def test_images_in_a_part_of_a_fetched_folder_come_with_it(site, source, download):
    site.put("/images.zip", zip_of({**{f"all/deep/{color}.png": encoded(color) for color in COLORS}, "all/x": b""}))
    code, said, _ = download(source | {"images": "mine/images/deep"})
    assert code == 0 and said["mine"] == "ready 4 groups"


@pytest.mark.parametrize("path", ["../x.json", "/x.json", "a/../../x.json"])
def test_a_task_file_may_not_fetch_to_outside_the_folder(site, source, download, tmp_path, path):
    source["get"][path] = f"{site.url}/rows.json"
    code, _, text = download(source)
    assert code in (2, 4) and "leaves the folder" in text and site.asked("/rows.json") <= 1
    assert not (tmp_path / "x.json").exists()


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


def test_whatsup_knows_its_places(tmp_path, data):
    registry = build_registry()
    places, tags = data_locations(registry, find_task(registry, "whatsup_a_left_right"), data)
    assert [place.name for place in places] == ["the data folder", "dataset ServiceNow/whatsup_all"] and tags == []
    assert [need.name for place in places for need in place.needs] == [
        *("whatsup/controlled_images_dataset.json", "whatsup/controlled_images"),
        "dataset ServiceNow/whatsup_all, Controlled_Images_A",
    ]


def test_every_published_task_says_where_each_of_its_files_comes_from(data):
    registry = build_registry()
    tasks = all_tasks(registry)
    for plan in plans(registry, tasks, data, None):
        for place in plan.places:
            assert place.needs is not None, plan.name
            known = ("http", "the addresses in its rows")
            assert all(need.origin.startswith(known) for need in place.needs), plan.name
        assert all(need.origin.startswith("http") for need in plan.tags), plan.name


@pytest.fixture
def plugin(tmp_path, data, monkeypatch):
    """A task whose source is a plugin's: the registry, the task, and what its download said."""

    def make(read, locations=None):
        module = ModuleType("ttmbench_walls")
        module.read, module.locations = read, locations
        monkeypatch.setitem(sys.modules, "ttmbench_walls", module)

        class Walls:
            @hookimpl
            def ttmbench_register_sources(self):
                needs = "ttmbench_walls:locations" if locations else ""
                return [SourceSpec("walls", "ttmbench_walls:read", needs=needs)]

        registry = build_registry(extra=[("walls", Walls())])
        task = find_task(registry, str(task_file(tmp_path, {"kind": "rendered", "scene": "replace"})))
        task = task_data.changed(task, of={"kind": "walls", "scene": "replace"})
        said = []

        def fetch():
            (plan,) = plans(registry, {"mine": task}, data, None)
            assert Downloads(registry, data, Web(), said.append).fetch(plan)
            return [(line.name, line.status) for line in said]

        return registry, task, fetch

    return make


def test_a_source_that_does_not_tell_is_read_once(plugin):
    asked = []
    _, _, fetch = plugin(lambda request: (asked.append(request.offline), list(read_rendered(request)))[1])
    assert [status for _, status in fetch()] == ["fetched", "ready"] and asked == [False, True]


def test_a_plugins_source_may_say_what_it_needs(plugin, data):
    class Stone:
        name, origin, where, here = "a stone", "the quarry", "the yard", False

        def missing(self):
            return None if self.here else "it is not in the yard"

        def size(self, web):
            return 7

        def fetch(self, web):
            self.here = True
            return "one stone"

    stone = Stone()
    registry, task, fetch = plugin(read_rendered, lambda request: [DataLocation("the yard", [stone])])
    assert check_task(registry, task, data).detail == "needs a stone in the yard"
    assert fetch() == [("a stone", "fetched"), ("mine", "ready")]
    assert check_task(registry, task, data).state == "present"


# --- dry run -------------------------------------------------------------------------------------------------


def test_a_dry_run_lists_what_would_be_fetched_and_writes_nothing(site, source, two_places, download, data):
    source["get"]["mine/rows.json"]["bytes"] = 1234
    code, said, _ = download(two_places, "shapes_place", "--dry_run")
    assert code == 0 and not data.exists() and not any(method == "GET" for method, _, _ in site.log)
    assert said["mine/rows.json"].startswith("would fetch 1.2 kB, http")
    assert said["mine/images"].startswith(f"would fetch {len(ARCHIVE)} B, {site.url}/images.zip (unpacked)")
    assert said["mine"].startswith("not all here ") and said["mine"].endswith("if that fails: the data folder")
    assert said["shapes_place"] == "present drawn on this machine"


# --- two at once ---------------------------------------------------------------------------------------------


def test_two_processes_at_once_fetch_a_file_once(site, source, tmp_path, data):
    words = ["-m", "ttmbench", "download", task_file(tmp_path, source), "--data_dir", data]
    both_of_them = [processes.start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    for process in both_of_them:
        _, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
    assert site.asked("/rows.json") == site.asked("/images.zip") == 1
    assert set(record(data)) == {"mine/rows.json", "mine/images"}
    assert not list(data.rglob("*.part*")) and not list(data.rglob(".*.unpacking.*"))


def test_a_part_that_is_a_link_is_not_followed(source, download, tmp_path, data):
    victim = write(tmp_path / "victim", b"years of work")
    (data / "mine").mkdir(parents=True)
    (data / "mine" / "rows.json.part").symlink_to(victim)
    code, _, text = download(source)
    assert code == 4 and "rows.json.part is a link, which no download makes and none follows" in text
    assert victim.read_bytes() == b"years of work"


def test_who_waits_for_another_process_says_so(tmp_path, capsys):
    def second() -> None:
        with download_files.locked(tmp_path, "mine/rows.json"):
            pass

    with download_files.locked(tmp_path, "mine/rows.json"):
        waiting = Thread(target=second)
        waiting.start()
        for _ in range(500):
            told = capsys.readouterr().err
            if told:
                break
            time.sleep(0.01)
        assert waiting.is_alive()
    waiting.join(10)
    assert told == "ttmbench: mine/rows.json is being fetched by another process; waiting until it is done\n"


def test_records_of_many_at_once_are_all_kept(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(lambda index: download_files.write_record(tmp_path, f"f{index:02d}", {"bytes": index}), range(24))
        )
    assert [one["bytes"] for one in record(tmp_path).values()] == list(range(24))


# --- run, validate and analyze -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["validate", "shapes_place"],
        ["--model", "tiny-clip", "--tasks", "shapes_place"],
        ["analyze", "thresholds", "--model", "tiny-clip", "--tasks", "shapes_place"],
    ],
)
def test_a_data_folder_that_does_not_exist_is_a_usage_error(tmp_path, capsys, words):
    code, out, err = run(capsys, *words, "--data_dir", tmp_path / "nothing")
    assert code == 2 and "\n" not in err.strip()
    assert f"--data_dir {tmp_path / 'nothing'} must be a folder; `ttmbench download" in err and out == ""


def test_what_a_run_misses_names_the_command(site, source, tmp_path, data, capsys):
    data.mkdir()
    path = task_file(tmp_path, source)
    code, _, err = run(capsys, "--model", "tiny-clip", "--tasks", path, "--data_dir", data, "--device", "cpu")
    assert code == 4 and "`ttmbench download mine` fetches what it can" in err and site.log == []


# --- one file ------------------------------------------------------------------------------------------------


def test_a_file_in_place_of_a_folder(site, data):
    site.put("/rows.json", ANNOTATIONS)
    (data / "rows.json").mkdir(parents=True)
    with pytest.raises(DataError, match="is a folder, but"):
        DataFile(data, "rows.json", Origin(url=f"{site.url}/rows.json")).fetch(QUICK)


def test_a_member_of_an_archive_may_be_one_file(site, data):
    url = site.put("/all.zip", zip_of({"data/rows.json": ANNOTATIONS, "other": b"x"}))
    one = DataFile(data, "mine/rows.json", Origin(url=url, unpack=True, member="data/rows.json"))
    assert one.missing() == "it is not there"
    one.fetch(QUICK)
    assert one.missing() is None and (data / "mine" / "rows.json").read_bytes() == ANNOTATIONS
    (data / "mine" / "rows.json").write_bytes(b"x")
    assert one.missing() == f"it has 1 bytes in place of {len(ANNOTATIONS)}"


def test_an_empty_folder_is_missing_and_another_process_that_was_faster_is_believed(site, data):
    (data / "images").mkdir(parents=True)
    assert DataFile(data, "images", Origin(url="http://x.org/a.zip", unpack=True)).missing() == "the folder is empty"
    write(data / "x" / "rows.json", b"[]")
    assert (
        DataFile(data, "x/rows.json", Origin(url=f"{site.url}/rows.json")).fetch(QUICK) == "present" and site.log == []
    )
