"""``ttmbench download``: from a web server to a folder from which tasks run offline, and what can go wrong."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import processes, task_data
from support.task_data import encoded, load, run, tar_of, zip_of

from ttmbench.data.catalog import all_tasks, find_task
from ttmbench.data.download import http as download_web
from ttmbench.data.download.files import DataFile
from ttmbench.data.download.http import Web
from ttmbench.data.fetch import Downloads, plans
from ttmbench.data.loader import data_locations
from ttmbench.data.origin import Origin
from ttmbench.errors import DataError, OutOfReachError, UsageError
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
def no_patience(monkeypatch):
    """Nobody waits in a test."""
    from ttmbench.cli import download as command

    monkeypatch.setattr(command, "Web", lambda: Web(tries=2, pause=0.0, timeout=5.0))


@pytest.fixture
def quick() -> Web:
    return Web(tries=2, pause=0.0, timeout=5.0)


@pytest.fixture
def data(tmp_path) -> Path:
    return tmp_path / "data"


def annotations(site, **get) -> dict:
    """A source whose files are on the server."""
    site.put("/rows.json", ANNOTATIONS)
    site.put("/images.zip", ARCHIVE)
    origins = {
        "mine/rows.json": {"url": f"{site.url}/rows.json"},
        "mine/images": {"url": f"{site.url}/images.zip", "unpack": True},
    }
    return {"kind": "annotations", "file": "mine/rows.json", "images": "mine/images", "get": {**origins, **get}}


def task_file(folder: Path, source: dict, name: str = "mine", group: dict | None = None) -> Path:
    group = {**GROUP, **(group or {})}
    return task_data.task_file(folder, source, group, name, metrics=["text_score", "group_match"], tag=["colors"])


def lines(out: str) -> dict[str, str]:
    """Name -> status and detail."""
    return {line.split()[0].rstrip(":"): " ".join(line.split()[1:]) for line in out.splitlines()}


def record(data: Path) -> dict:
    return json.loads((data / "downloads.json").read_text(encoding="utf-8"))["files"]


# --- the whole way -------------------------------------------------------------------------------------------


def test_from_the_server_to_a_run_offline(site, tmp_path, data, capsys):
    path = task_file(tmp_path, annotations(site))
    code, out, err = run(capsys, "download", path, "--data_dir", data)
    assert code == 0 and err == "", err
    said = lines(out)
    assert said["mine/rows.json"].startswith("fetched ") and f"from {site.url}/rows.json" in said["mine/rows.json"]
    assert "unpacked to 4 files of" in said["mine/images"] and said["mine"] == "ready 4 groups"
    assert sorted(file.name for file in (data / "mine" / "images").iterdir()) == sorted(f"{c}.png" for c in COLORS)
    assert sorted(file.name for file in (data / "mine").iterdir()) == ["images", "rows.json"], "no part is left"
    site.pages.clear()
    code, out, _ = run(capsys, "validate", path, "--data_dir", data, "--offline")
    assert code == 0 and "4 groups, all images decode; 4 images from annotations mine/rows.json;" in out
    offline = ["--model", "tiny-clip", "--tasks", path, "--data_dir", data, "--offline", "--device", "cpu"]
    code, out, _ = run(capsys, *offline, "--bootstrap_iters", "10", "-o", tmp_path / "x.json")
    assert code == 0
    document = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert document["datasets"]["mine"]["source"]["sha256"] == hashlib.sha256(ANNOTATIONS).hexdigest()
    assert len(site.log) == 2, "validate and run asked for nothing"


def test_what_was_done_is_written_beside_the_data(site, tmp_path, data, capsys):
    run(capsys, "download", task_file(tmp_path, annotations(site)), "--data_dir", data)
    known = record(data)
    assert list(known) == ["mine/images", "mine/rows.json"]
    assert known["mine/rows.json"]["bytes"] == len(ANNOTATIONS)
    assert known["mine/rows.json"]["sha256"] == hashlib.sha256(ANNOTATIONS).hexdigest()
    assert known["mine/rows.json"]["url"] == f"{site.url}/rows.json" and known["mine/rows.json"]["time"][:2] == "20"
    sizes = sum(map(len, IMAGES.values()))
    assert known["mine/images"]["unpacked"] == {"files": 4, "bytes": sizes}
    assert known["mine/images"]["sha256"] == hashlib.sha256(ARCHIVE).hexdigest()


def test_what_is_here_and_whole_is_not_fetched_again(site, tmp_path, data, capsys):
    words = ["download", task_file(tmp_path, annotations(site)), "--data_dir", data]
    run(capsys, *words)
    code, out, _ = run(capsys, *words)
    assert code == 0 and len(site.log) == 2
    assert lines(out)["mine/rows.json"] == f"present {data}" and lines(out)["mine/images"] == f"present {data}"
    (data / "mine" / "rows.json").write_bytes(ANNOTATIONS[:-9])
    (data / "mine" / "images" / "red.png").unlink()
    code, out, _ = run(capsys, *words)
    assert code == 0 and len(site.log) == 4 and lines(out)["mine"] == "ready 4 groups"
    assert (data / "mine" / "images" / "red.png").is_file()


def test_a_users_own_files_are_taken_as_they_are(site, tmp_path, data, capsys):
    (data / "elsewhere").mkdir(parents=True)
    (data / "mine").mkdir()
    for name, body in IMAGES.items():
        (data / "elsewhere" / Path(name).name).write_bytes(body)
    (data / "mine" / "images").symlink_to(data / "elsewhere")
    (data / "mine" / "rows.json").write_text(json.dumps(ROWS, indent=2), encoding="utf-8")
    code, _, _ = run(capsys, "download", task_file(tmp_path, annotations(site)), "--data_dir", data)
    assert code == 0 and site.log == [] and not (data / "downloads.json").exists()


def test_a_link_that_leads_nowhere_is_not_replaced(site, tmp_path, data, capsys):
    (data / "mine").mkdir(parents=True)
    (data / "mine" / "images").symlink_to(data / "nothing")
    code, out, _ = run(capsys, "download", task_file(tmp_path, annotations(site)), "--data_dir", data)
    assert code == 4 and "is a link, and it is not there; mend what it leads to" in out
    assert (data / "mine" / "images").is_symlink()


def test_tasks_that_share_a_file_fetch_it_once(site, tmp_path, data, capsys):
    for name in ("one", "two"):
        task_file(tmp_path / "tasks", annotations(site), name)
    code, out, _ = run(capsys, "download", "colors", "--include_path", tmp_path / "tasks", "--data_dir", data)
    assert code == 0 and site.asked("/images.zip") == site.asked("/rows.json") == 1
    assert [line.split()[0] for line in out.splitlines()] == ["mine/rows.json", "mine/images", "one:", "two:"]


def test_names_tags_and_globs(tmp_path, data, capsys):
    code, out, _ = run(capsys, "download", "shapes_place,shapes_replace", "shapes_s*", "--data_dir", data)
    assert code == 0 and [line.split(":")[0] for line in out.splitlines()] == [
        "shapes_place",
        "shapes_replace",
        "shapes_spatial",
    ]
    assert list(data.iterdir()) == [], "a later run with this folder finds it"
    code, _, err = run(capsys, "download", "shape_place")
    assert code == 2 and "did you mean 'shapes_place'" in err


def test_the_environment_names_the_folder(site, tmp_path, data, capsys, monkeypatch):
    monkeypatch.setenv("TTMBENCH_DATA", str(data))
    assert run(capsys, "download", task_file(tmp_path, annotations(site)))[0] == 0
    assert (data / "mine" / "rows.json").is_file()


# --- what goes wrong -----------------------------------------------------------------------------------------


def test_a_file_that_fails_does_not_stop_the_others(site, tmp_path, data, capsys):
    path = task_file(tmp_path, annotations(site))
    del site.pages["/rows.json"]
    code, out, err = run(capsys, "download", path, "shapes_place", "--data_dir", data)
    assert code == 4 and "not everything could be fetched for mine" in err
    said = lines(out)
    assert said["mine/rows.json"].startswith("failed ") and "answers 404" in said["mine/rows.json"]
    assert said["mine/images"].startswith("fetched ") and said["shapes_place"] == "ready 200 groups"
    assert said["mine"] == "missing mine/rows.json; `ttmbench download mine` goes on when that is mended"


def test_a_digest_that_differs_is_refused(site, tmp_path, data, capsys):
    declared = {"url": f"{site.url}/rows.json", "sha256": "0" * 64}
    path = task_file(tmp_path, annotations(site, **{"mine/rows.json": declared}))
    code, out, _ = run(capsys, "download", path, "--data_dir", data)
    assert code == 4 and f"but the task file says {'0' * 64}" in lines(out)["mine/rows.json"]
    assert not (data / "mine" / "rows.json").exists() and "mine/rows.json" not in record(data)
    (data / "mine" / "rows.json").write_bytes(b"a user's own, of another version")
    code, out, _ = run(capsys, "download", path, "--data_dir", data)
    assert code == 4 and (data / "mine" / "rows.json").read_bytes().startswith(b"a user's own")


def test_a_digest_that_fits_is_kept(site, tmp_path, data, capsys):
    rows = {
        "url": f"{site.url}/rows.json",
        "sha256": hashlib.sha256(ANNOTATIONS).hexdigest(),
        "bytes": len(ANNOTATIONS),
    }
    images = {"url": f"{site.url}/images.zip", "unpack": True, "sha256": hashlib.sha256(ARCHIVE).hexdigest()}
    path = task_file(tmp_path, annotations(site, **{"mine/rows.json": rows, "mine/images": images}))
    assert run(capsys, "download", path, "--data_dir", data)[0] == 0
    assert run(capsys, "download", path, "--data_dir", data)[0] == 0 and len(site.log) == 2


@pytest.mark.parametrize("make", [zip_of, tar_of])
def test_an_unsafe_archive_is_refused_and_not_kept(site, tmp_path, data, capsys, make):
    path = task_file(tmp_path, annotations(site))
    site.put("/images.zip", make({**IMAGES, "../../evil.png": b"x"}))
    code, out, _ = run(capsys, "download", path, "--data_dir", data)
    assert code == 4 and "'../../evil.png' leads out of its folder" in lines(out)["mine/images"]
    assert not (tmp_path / "evil.png").exists() and [one.name for one in (data / "mine").iterdir()] == ["rows.json"]


def test_an_archive_cut_short_on_the_way_is_continued(site, tmp_path, data, capsys):
    path = task_file(tmp_path, annotations(site))
    site.pages["/images.zip"].cut = [100, 100]
    assert run(capsys, "download", path, "--data_dir", data)[0] == 0 and site.asked("/images.zip") == 3


def test_ctrl_c_keeps_the_part_and_the_next_command_goes_on(site, tmp_path, data, capsys, monkeypatch):
    path = task_file(tmp_path, annotations(site))
    monkeypatch.setattr(download_web, "CHUNK", 100)
    real, calls = download_web._read, []

    def read(response, url):
        calls.append(url)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return real(response, url)

    monkeypatch.setattr(download_web, "_read", read)
    code, _, err = run(capsys, "download", path, "--data_dir", data)
    assert code == 130 and "the same command goes on where it stopped" in err
    (part,) = (data / "mine").glob("*.part")
    size = part.stat().st_size
    assert size > 0
    monkeypatch.setattr(download_web, "_read", real)
    assert run(capsys, "download", path, "--data_dir", data)[0] == 0
    assert any(headers.get("Range") == f"bytes={size}-" for _, _, headers in site.log)


def test_ctrl_c_while_unpacking_keeps_the_archive(site, tmp_path, data, capsys, monkeypatch):
    from ttmbench.data.download import files as download_files

    path = task_file(tmp_path, annotations(site))
    real = download_files.unpack

    def unpack(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(download_files, "unpack", unpack)
    assert run(capsys, "download", path, "--data_dir", data)[0] == 130
    assert (data / "mine" / "images.part").read_bytes() == ARCHIVE
    monkeypatch.setattr(download_files, "unpack", real)
    assert run(capsys, "download", path, "--data_dir", data)[0] == 0
    assert site.log[-1][2]["Range"] == f"bytes={len(ARCHIVE)}-"


@pytest.mark.parametrize("what", ["below a file", "a file", "read only"])
def test_a_folder_that_cannot_be_written_to(site, tmp_path, data, capsys, what):
    path = task_file(tmp_path, annotations(site))
    if what == "read only":
        if os.geteuid() == 0:
            pytest.skip("root may write anywhere")
        data.mkdir(mode=0o500)
    else:
        data.write_text("", encoding="utf-8")
    code, out, err = run(capsys, "download", path, "--data_dir", data / "x" if what == "below a file" else data)
    assert code == (4 if what == "read only" else 2)
    said = {"a file": "is no folder", "below a file": "cannot be made", "read only": "cannot be written"}
    assert said[what] in out + err


def test_a_damaged_record_is_named(site, tmp_path, data, capsys):
    data.mkdir()
    path = task_file(tmp_path, annotations(site))
    for text in ("{", "[]", '{"format": 9, "files": {}}', '{"format": 1, "files": {"x": 3}}'):
        (data / "downloads.json").write_text(text, encoding="utf-8")
        (data / "mine").mkdir(exist_ok=True)
        (data / "mine" / "rows.json").write_bytes(ANNOTATIONS)
        code, out, err = run(capsys, "download", path, "--data_dir", data)
        assert code == 4 and "downloads.json cannot be read" in out + err and "Traceback" not in err


def test_a_page_that_a_person_visits_is_told(site, tmp_path, data, capsys):
    source = annotations(site, **{"mine/images": {"page": "https://example.org/agree"}})
    code, out, _ = run(capsys, "download", task_file(tmp_path, source), "--data_dir", data)
    assert code == 4
    assert f"is fetched by hand: https://example.org/agree; put it at {data / 'mine' / 'images'}" in out


def test_a_file_of_unknown_origin_is_told(site, tmp_path, data, capsys):
    source = annotations(site) | {"get": {}}
    code, out, _ = run(capsys, "download", task_file(tmp_path, source), "--data_dir", data)
    assert code == 4 and "does not say where mine/rows.json comes from; put it into" in out


def test_two_tasks_that_want_one_path_from_two_places(site, tmp_path, data, capsys):
    task_file(tmp_path / "tasks", annotations(site), "one")
    other = annotations(site, **{"mine/rows.json": "http://example.org/rows.json"})
    task_file(tmp_path / "tasks", other, "two")
    code, _, err = run(capsys, "download", "one,two", "--include_path", tmp_path / "tasks", "--data_dir", data)
    assert code == 4 and "mine/rows.json should come from" in err and site.log == []


def test_the_data_folder_itself_may_not_be_writable(site, tmp_path, data, capsys, monkeypatch):
    from ttmbench.data.download import manifest as download_record

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(download_record, "FileLock", refuse)
    code, out, _ = run(capsys, "download", task_file(tmp_path, annotations(site)), "--data_dir", data)
    assert code == 4 and f"the data folder {data} cannot be written to (Permission denied)" in out


def test_images_in_a_part_of_a_fetched_folder_come_with_it(site, tmp_path, data, capsys):
    source = annotations(site) | {"images": "mine/images/deep"}
    site.put("/images.zip", zip_of({**{f"all/deep/{color}.png": encoded(color) for color in COLORS}, "all/x": b""}))
    code, out, _ = run(capsys, "download", task_file(tmp_path, source), "--data_dir", data)
    assert code == 0 and lines(out)["mine"] == "ready 4 groups"


def test_data_that_are_not_what_the_task_says_are_found_at_once(site, tmp_path, data, capsys):
    path = task_file(tmp_path, annotations(site), group={"n_groups": 5})
    code, out, _ = run(capsys, "download", path, "--data_dir", data)
    assert code == 4 and "has 4 groups, but task 'mine' (version 1) has 5" in lines(out)["mine"]


@pytest.mark.parametrize("path", ["../x.json", "/x.json", "a/../../x.json"])
def test_a_task_file_may_not_fetch_to_outside_the_folder(site, tmp_path, data, capsys, path):
    source = annotations(site, **{path: f"{site.url}/rows.json"})
    code, out, err = run(capsys, "download", task_file(tmp_path, source), "--data_dir", data)
    assert code in (2, 4) and "leaves the folder" in out + err and site.asked("/rows.json") <= 1
    assert not (tmp_path / "x.json").exists()


# --- several places ------------------------------------------------------------------------------------------


def both(site) -> dict:
    site.put("/second.json", ANNOTATIONS)
    second = annotations(site) | {"file": "second/rows.json"}
    second["get"] = {"second/rows.json": f"{site.url}/second.json", "mine/images": second["get"]["mine/images"]}
    return {"kind": "first_of", "of": [annotations(site), second]}


def test_the_first_place_that_can_be_fetched_is_taken(site, tmp_path, data, capsys):
    path = task_file(tmp_path, both(site))
    assert run(capsys, "download", path, "--data_dir", data)[0] == 0 and site.asked("/second.json") == 0
    again = tmp_path / "again"
    del site.pages["/rows.json"]
    code, out, _ = run(capsys, "download", path, "--data_dir", again)
    assert code == 0 and site.asked("/second.json") == 1
    assert lines(out)["mine"] == "ready 4 groups, without annotations mine/rows.json"
    before = len(site.log)
    assert run(capsys, "download", path, "--data_dir", again)[0] == 0
    assert len(site.log) == before, "a place that is here is enough"


def test_a_place_may_be_chosen(site, tmp_path, data, capsys):
    path = task_file(tmp_path, both(site))
    code, out, _ = run(capsys, "download", path, "--data_dir", data, "--alternative", "2")
    assert code == 0 and site.asked("/rows.json") == 0 and "second/rows.json" in lines(out)
    assert run(capsys, "download", "shapes_place", "--data_dir", data, "--alternative", "2")[0] == 0
    del site.pages["/second.json"]
    code, _, _ = run(capsys, "download", path, "--data_dir", tmp_path / "other", "--alternative", "2")
    assert code == 4 and site.asked("/rows.json") == 0


def test_tag_files_are_fetched_too(site, tmp_path, data, capsys):
    site.put("/tags.json", json.dumps({"0": "warm"}).encode())
    files = {"mood": {"file": "tags/mood.json", "get": {"url": f"{site.url}/tags.json"}}}
    path = task_file(tmp_path, annotations(site), group={"tag_files": files})
    assert run(capsys, "download", path, "--data_dir", data)[0] == 0
    assert load(path, data).groups[0].tags == {"mood": "warm"}
    site.put("/tags.json", b"[1]")
    code, out, _ = run(capsys, "download", path, "--data_dir", tmp_path / "third")
    assert code == 4 and "expected an object of group ids, got list" in lines(out)["mine"]
    del site.pages["/tags.json"]
    code, out, _ = run(capsys, "download", path, "--data_dir", tmp_path / "other")
    assert code == 4 and lines(out)["tags/mood.json"].startswith("failed ")


def test_whatsup_knows_its_places(tmp_path, data):
    registry = build_registry()
    places, tags = data_locations(registry, find_task(registry, "whatsup_a_left_right"), data)
    assert [place.name for place in places] == ["the data folder", "dataset ServiceNow/whatsup_all"] and tags == []
    assert [need.name for need in places[0].needs] == [
        "whatsup/controlled_images_dataset.json",
        "whatsup/controlled_images",
    ]
    assert places[1].needs[0].name == "dataset ServiceNow/whatsup_all, Controlled_Images_A"


def test_every_published_task_says_where_each_of_its_files_comes_from(data):
    registry = build_registry()
    tasks = all_tasks(registry)
    for plan in plans(registry, tasks, data, None):
        for place in plan.places:
            assert place.needs is not None, plan.name
            known = ("http", "the addresses in its rows")
            assert all(need.origin.startswith(known) for need in place.needs), plan.name
        assert all(need.origin.startswith("http") for need in plan.tags), plan.name


def test_a_source_that_does_not_tell_is_read_once(tmp_path, data, monkeypatch):
    from types import ModuleType

    from ttmbench.data.sources.rendered import read_rendered
    from ttmbench.hookspecs import hookimpl

    asked = []
    module = ModuleType("ttmbench_silent")
    module.read = lambda request: (asked.append(request.offline), list(read_rendered(request)))[1]
    monkeypatch.setitem(sys.modules, "ttmbench_silent", module)

    class Silent:
        @hookimpl
        def ttmbench_register_sources(self):
            return [SourceSpec("silent", "ttmbench_silent:read")]

    registry = build_registry(extra=[("silent", Silent())])
    task = find_task(registry, str(task_file(tmp_path, {"kind": "rendered", "scene": "replace"})))
    spec = task.spec.model_copy(update={"source": {"kind": "silent", "scene": "replace"}})
    (plan,) = plans(registry, {"mine": type(task)(spec, None)}, data, None)
    said = []
    assert Downloads(registry, data, Web(), said.append).fetch(plan)
    assert asked == [False, True] and [line.status for line in said] == ["fetched", "ready"]


def test_a_plugins_source_may_say_what_it_needs(tmp_path, data, monkeypatch):
    from types import ModuleType

    from ttmbench.cli.doctor import check_task
    from ttmbench.data.availability import DataLocation
    from ttmbench.data.sources.rendered import read_rendered
    from ttmbench.hookspecs import hookimpl

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
    module = ModuleType("ttmbench_walls")
    module.read, module.places = read_rendered, lambda request: [DataLocation("the yard", [stone])]
    monkeypatch.setitem(sys.modules, "ttmbench_walls", module)

    class Walls:
        @hookimpl
        def ttmbench_register_sources(self):
            return [SourceSpec("walls", "ttmbench_walls:read", needs="ttmbench_walls:places")]

    registry = build_registry(extra=[("walls", Walls())])
    task = find_task(registry, str(task_file(tmp_path, {"kind": "rendered", "scene": "replace"})))
    task = type(task)(task.spec.model_copy(update={"source": {"kind": "walls", "scene": "replace"}}), None)
    assert check_task(registry, task, data).detail == "not here: a stone in the yard"
    (plan,) = plans(registry, {"mine": task}, data, None)
    said = []
    assert Downloads(registry, data, Web(), said.append).fetch(plan)
    assert [(line.name, line.status) for line in said] == [("a stone", "fetched"), ("mine", "ready")]
    assert check_task(registry, task, data).state == "present"


# --- dry run -------------------------------------------------------------------------------------------------


def test_a_dry_run_lists_what_would_be_fetched_and_writes_nothing(site, tmp_path, data, capsys):
    declared = {"url": f"{site.url}/rows.json", "bytes": 1234}
    path = task_file(
        tmp_path, both(site) | {"of": [annotations(site, **{"mine/rows.json": declared}), both(site)["of"][1]]}
    )
    code, out, _ = run(capsys, "download", path, "shapes_place", "--data_dir", data, "--dry_run")
    assert code == 0 and not data.exists() and not any(method == "GET" for method, _, _ in site.log)
    said = lines(out)
    assert said["mine/rows.json"].startswith("would fetch 1.2 kB, http")
    assert said["mine/images"].startswith(f"would fetch {len(ARCHIVE)} B, {site.url}/images.zip (unpacked)")
    assert said["mine"].startswith("not all here ") and said["mine"].endswith("if that fails: the data folder")
    assert said["shapes_place"] == "present drawn on this machine"


# --- two at once ---------------------------------------------------------------------------------------------


def test_two_processes_at_once_fetch_a_file_once(site, tmp_path, data):
    path = task_file(tmp_path, annotations(site))
    words = ["-m", "ttmbench", "download", path, "--data_dir", data]
    both_of_them = [processes.start(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    for process in both_of_them:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    assert site.asked("/rows.json") == site.asked("/images.zip") == 1
    assert set(record(data)) == {"mine/rows.json", "mine/images"}
    assert not list(data.rglob("*.part*")) and not list(data.rglob(".*.unpacking.*"))


def test_a_part_that_is_a_link_is_not_followed(site, tmp_path, data, capsys):
    path, victim = task_file(tmp_path, annotations(site)), tmp_path / "victim"
    victim.write_bytes(b"years of work")
    (data / "mine").mkdir(parents=True)
    (data / "mine" / "rows.json.part").symlink_to(victim)
    code, out, _ = run(capsys, "download", str(path), "--data_dir", str(data))
    assert code == 4 and "rows.json.part is a link, which no download makes and none follows" in out
    assert victim.read_bytes() == b"years of work"


@pytest.mark.parametrize("fails", [False, True])
def test_a_token_in_an_address_is_never_shown_or_written(site, tmp_path, data, capsys, fails):
    spec = annotations(site)
    spec["get"]["mine/rows.json"] = f"{site.url}/rows.json?token=sesame-open&n=1"
    spec["get"]["mine/images"]["url"] = f"{site.url}/images.zip?access_key=sesame-open"
    if fails:
        site.pages["/images.zip"].body = b"no archive"
        site.pages["/rows.json"].cut = [5] * 20
    path = task_file(tmp_path, spec)
    words = ["download", str(path), "--data_dir", str(data)]
    texts = []
    for more in (["--dry_run"], []):
        code, out, err = run(capsys, *words, *more)
        texts += [out, err]
    assert (code != 0) == fails and any("token=sesame-open" in at for _, at, _ in site.log)
    texts += [file.read_text("utf-8", "replace") for file in data.rglob("*") if file.is_file()]
    assert not [text for text in texts if "sesame" in text] and "token=<redacted>" in "".join(texts)


def test_who_waits_for_another_process_says_so(tmp_path, capsys):
    from threading import Thread

    from ttmbench.data.download.manifest import locked

    def second() -> None:
        with locked(tmp_path, "mine/rows.json"):
            pass

    with locked(tmp_path, "mine/rows.json"):
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
    from concurrent.futures import ThreadPoolExecutor

    from ttmbench.data.download import manifest as download_record

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda index: download_record.write(tmp_path, f"f{index:02d}", {"bytes": index}), range(24)))
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
    assert f"--data_dir {tmp_path / 'nothing'} is no folder; `ttmbench download" in err and out == ""


def test_what_a_run_misses_names_the_command(site, tmp_path, data, capsys):
    data.mkdir()
    path = task_file(tmp_path, annotations(site))
    code, _, err = run(capsys, "--model", "tiny-clip", "--tasks", path, "--data_dir", data, "--device", "cpu")
    assert code == 4 and "`ttmbench download mine` fetches what it can" in err and site.log == []


# --- one file ------------------------------------------------------------------------------------------------


def data_file(data: Path, path: str, **origin) -> DataFile:
    return DataFile(data, path, Origin(**origin))


def test_a_file_in_place_of_a_folder_and_the_other_way_round(site, data, quick):
    site.put("/rows.json", ANNOTATIONS)
    (data / "rows.json").mkdir(parents=True)
    with pytest.raises(DataError, match="is a folder, but"):
        data_file(data, "rows.json", url=f"{site.url}/rows.json").fetch(quick)


def test_a_member_of_an_archive_may_be_one_file(site, data, quick):
    url = site.put("/all.zip", zip_of({"data/rows.json": ANNOTATIONS, "other": b"x"}))
    one = data_file(data, "mine/rows.json", url=url, unpack=True, member="data/rows.json")
    assert one.missing() == "it is not there"
    one.fetch(quick)
    assert one.missing() is None and (data / "mine" / "rows.json").read_bytes() == ANNOTATIONS
    (data / "mine" / "rows.json").write_bytes(b"x")
    assert one.missing() == f"it has 1 bytes in place of {len(ANNOTATIONS)}"


def test_an_empty_folder_is_missing(data):
    (data / "images").mkdir(parents=True)
    assert data_file(data, "images", url="http://x.org/a.zip", unpack=True).missing() == "the folder is empty"


def test_another_process_that_was_faster_is_believed(site, data, quick):
    (data / "x").mkdir(parents=True)
    (data / "x" / "rows.json").write_bytes(b"[]")
    assert data_file(data, "x/rows.json", url=f"{site.url}/rows.json").fetch(quick) == "present" and site.log == []


def test_errors_of_this_page_are_of_the_documented_kinds(data, quick):
    with pytest.raises(OutOfReachError):
        DataFile(data, "x", None).fetch(quick)
    with pytest.raises(UsageError):
        _ = DataFile(data, "../x", None).target
