"""Datasets of the Hugging Face Hub from small copies: tables, folders in their place, what caches lack, and answers."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shutil
from collections import Counter
from pathlib import Path

import datasets
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet as parquet_files
from support import task_data
from support.task_data import changed, encoded, find, run, task_file, write

from ttmbench.cli import main
from ttmbench.data.loader import data_locations
from ttmbench.data.rows import Condition
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import DataError, OutOfReachError, UsageError
from ttmbench.plugins.registry import build_registry
from ttmbench.scoring.inputs import open_upright

pytestmark = pytest.mark.filterwarnings("default")

SHA = "0123456789abcdef0123456789abcdef01234567"
PATTERNS = "Orientation,Presence,State,Quantity,Spatial,Color,Structural Character,Text,Camera Perspective".split(",")


@pytest.fixture(autouse=True)
def own_caches(tmp_path, monkeypatch):
    """The caches of the Hub's libraries, empty and our own."""
    from huggingface_hub import constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache" / "datasets")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache" / "hub"))


def parquet(folder: Path, columns: dict, split: str = "test", shards: int = 1) -> str:
    """The first file of a repository of parquet files without a card, as ``datasets`` writes it."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_dict(columns).to_parquet(folder / "data" / f"{split}-00000-of-{shards:05d}.parquet")
    return str(folder)


def images(count: int, mode: str = "RGB") -> list:
    color = (0, 0, 9) if mode == "RGBA" else (0, 0)
    return [Image.new(mode, (20, 10 + index % 7), (index % 256, *color)) for index in range(count)]


def pairs(task: str, n: int = 2, of: str = "caption") -> dict:
    """Columns of Winoground, or of ColorSwap."""
    first = int(task == "colorswap")
    columns = {"id": list(range(n))}
    for side in (first, first + 1):
        columns |= {f"image_{side}": images(n, "RGBA" if side == 0 else "RGB")}
        columns |= {f"caption_{side}": [f"{of} {side} {row}" for row in range(n)]}
    if first:
        return columns | {"image_source": ["midjourney"] * n, "caption_source": ["human"] * n}
    tags = {"tag": ["Adjective-Noun"] * n, "collapsed_tag": ["Object"] * n, "num_main_preds": [1, 2] * (n // 2)}
    return columns | tags | {"secondary_tag": ["", "Pragmatics, Series"] * (n // 2)}


def load(name: str, data: Path | None = None, groups: int | None = None, limit: int | None = None, **source: object):
    if data is not None:
        data.mkdir(exist_ok=True)
    return task_data.load(changed(name, source, **({"n_groups": groups} if groups else {})), data, limit=limit)


def missing(name: str, data: Path, **changes: object) -> list[dict[str, str]]:
    """What the first place and others lack."""
    return [place.missing() for place in data_locations(build_registry(), find(name).with_source(changes), data)[0]]


def ids(loaded) -> list[str]:
    return [group.group_id for group in loaded.groups]


def test_winoground_with_its_tags_and_transparent_images(tmp_path):
    tags = {"0": [], "1": ["Complex Reasoning", "Unusual Text"], "2": ["Unusual Image"], "3": []}
    write(tmp_path / "winoground" / "new_tag_assignments.json", tags)
    path = parquet(tmp_path / "copy", pairs("winoground", 4))
    loaded = load("winoground", tmp_path, 4, path=path)
    assert ids(loaded) == ["0", "1", "2", "3"]
    second = loaded.groups[1]
    assert second.captions == ("caption 0 1", "caption 1 1")
    tags = {"tag": "Adjective-Noun", "secondary_tag": "Pragmatics, Series", "num_main_preds": "2"}
    assert second.tags == {**tags, "collapsed_tag": "Object", "diwan": "Complex Reasoning, Unusual Text"}
    assert loaded.groups[0].tags["diwan"] == "" and loaded.groups[0].tags["secondary_tag"] == ""
    assert second.images[0].open().mode == "RGBA" and open_upright(second.images[0], "1").mode == "RGB"
    assert open_upright(second.images[1], "1").size == (20, 11)
    assert loaded.source["revision"] is None, "a folder of the user's own has no commit of the Hub"
    without = load("winoground", tmp_path / "nothing", 4, path=path)
    assert "diwan" not in without.groups[0].tags and without.source["tag_files"] == {"diwan": None}
    assert len(load("winoground", None, None, 2, path=path).groups) == 2
    assert load("winoground_global", None, 4, path=path).groups == without.groups


def test_colorswap_and_its_splits(tmp_path):
    for split, first in (("train", 0), ("test", 9)):
        columns = pairs("colorswap", 2, split)
        path = parquet(tmp_path / "copy", columns | {"id": [first, first + 2]}, split)
    test = load("colorswap", None, 2, path=path)
    assert ids(test) == ["9", "11"] and test.groups[1].captions == ("test 1 1", "test 2 1")
    assert test.groups[0].tags == {"image_source": "midjourney", "caption_source": "human"}
    assert ids(load("colorswap_train", None, 2, path=path)) == ["0", "2"]
    inner = {**find("colorswap_random").spec.source["of"][0], "path": path}
    foils = load("colorswap_random", None, 2, of=[inner])
    assert ids(foils) == ["9", "11"], "as many groups, each with a pair of the other"
    assert {caption.split()[2] for caption in foils.groups[0].captions} == {"0", "1"}
    with pytest.raises(DataError, match="has 2 groups, but task 'colorswap'"):
        load("colorswap", path=path)


def mirror_of(task: str, path: str) -> list:
    first, second = find(task).spec.source["of"]
    return [first, {**second, "path": path}]


def test_the_mirror_of_sugarcrepe_without_its_wrong_group(tmp_path):
    rows = [[f"caption {index}", f"negative {index}"] for index in range(246)]
    columns = {"image": images(246), "true_label": [0] * 246}
    of = mirror_of("sugarcrepe_swap_obj", parquet(tmp_path / "old", columns | {"tested_labels": rows}))
    with pytest.raises(DataError, match=r"has 246 groups.*has 245: this is the copy from before 2023-11-18"):
        load("sugarcrepe_swap_obj", tmp_path / "nothing", of=of)
    rows[108] = ["A West 32nd sign under a Korea Way road sign. ", "A Korea Way road sign under a West 32nd sign."]
    of = mirror_of("sugarcrepe_swap_obj", parquet(tmp_path / "copy", columns | {"tested_labels": rows}))
    loaded = load("sugarcrepe_swap_obj", tmp_path / "nothing", of=of)
    assert len(ids(loaded)) == 245 and "108" not in ids(loaded) and ids(loaded)[-1] == "245", "ids of the original file"
    assert loaded.groups[3].captions == ("caption 3", "negative 3") and loaded.groups[3].tags == {"subset": "swap_obj"}
    assert loaded.groups[108].images[0].open().size == (20, 10 + 109 % 7), "images stay with their captions"
    assert loaded.source["passed_over"] == ["annotations sugarcrepe/swap_obj.json"]
    (dropped,) = loaded.source["dropped"]
    assert dropped["group_id"] == "108" and "this caption is wrong" in dropped["because"]
    json.dumps(loaded.source)
    assert len(load("sugarcrepe_swap_obj", tmp_path / "nothing", limit=110, of=of).groups) == 110


CELLS = [encoded((n, 0, 0), (20, 10 + n)) for n in range(3)]


def plain_table(folder: Path, column: object, **more: object) -> Path:
    """A task on a parquet file as other libraries than ``datasets`` write it: without its feature metadata."""
    (folder / "table").mkdir()
    captions = pyarrow.array([[f"one {n}", f"two {n}"] for n in range(3)])
    table = pyarrow.table({"picture": column, "captions": captions, "blob": [b"no image"] * 3, **more})
    parquet_files.write_table(table, folder / "table" / "test-00000-of-00001.parquet")
    group = {"shape": [1, 2], "images": ["picture"], "captions": "captions"}
    return task_file(folder, {"kind": "huggingface", "path": str(folder / "table")}, group)


@pytest.mark.parametrize(
    ("in_list", "column"),
    [
        (False, CELLS),
        (False, pyarrow.array(CELLS, pyarrow.large_binary())),
        (False, [{"bytes": cell, "path": "a.png"} for cell in CELLS]),
        (False, [{"bytes": cell} for cell in CELLS]),
        (True, [[cell] for cell in CELLS]),
        (True, [[{"bytes": cell, "path": None}] for cell in CELLS]),
    ],
)
def test_images_without_the_metadata_of_the_library_are_read(tmp_path, in_list, column):
    path = plain_table(tmp_path, column)
    if in_list:
        path.write_text(path.read_text().replace("images:\n  - picture", "images: picture"))
    loaded = task_data.load(path)
    assert [group.images[0].open().height for group in loaded.groups] == [10, 11, 12]
    assert [group.images[0].read() for group in loaded.groups] == CELLS
    assert loaded.groups[2].captions == ("one 2", "two 2")


# Arrow does not look at the bytes of texts before they are read.
NOT_UTF8 = pyarrow.Array.from_buffers(pyarrow.string(), 3, pyarrow.array([b"good", b"fine", b"caf\xe9"]).buffers())


@pytest.mark.parametrize(
    ("column", "more", "line"),
    [
        (["a.png", "b.png", "c.png"], {}, r"'picture' holds string and no images"),
        ([1, 2, 3], {}, r"'picture' holds int64 and no images"),
        ([{"x": 1}] * 3, {}, r"'picture' holds struct<x: int64> and no images"),
        ([b"png"] * 3, {}, r"image 0/picture of group 0 cannot be read: it is not an image of a known format"),
        ([None, b"png", b"png"], {}, r"'picture' of group 0 holds no image"),
        (
            [{"bytes": None, "path": "/etc/hostname"}] * 3,
            {},
            r"'picture' of group 0: '/etc/hostname' leaves the folder",
        ),
        (CELLS, {"id": [b"x", b"y", b"z"]}, "'id' of row 0 is b'x'; an id must be "),
        (CELLS, {"note": NOT_UTF8}, "row 2 has a text that is not UTF-8"),
    ],
)
def test_what_is_wrong_with_a_table_is_one_line(tmp_path, column, more, line, capsys):
    path = plain_table(tmp_path, column, **more)
    if "id" in more:
        path.write_text(path.read_text().replace("group:", "group:\n  id: id"))
    assert main(["validate", str(path)]) != 0
    printed = "".join(capsys.readouterr())
    assert re.search(line, printed) and printed.count("\n") == 1, printed


# --- what save_to_disk writes --------------------------------------------------------------------------------


@pytest.mark.parametrize(("inner", "more"), [("data", {}), (".", {}), ("own", {"data_files": "own/data-*.arrow"})])
def test_what_save_to_disk_wrote_is_found_wherever_it_lies(tmp_path, inner, more):
    """Of several splits, or of a dataset without any."""
    texts = {"text_0": list("abcd"), "text_1": list("efgh"), "category": list("xxyy"), "id": list("1234")}
    table = datasets.Dataset.from_dict({"image_0": images(4), "image_1": images(4)[::-1], **texts})
    saved = table if more else datasets.DatasetDict({"test": table, "train": table.select([0])})
    saved.save_to_disk(str(tmp_path / "copy" / inner))

    def load_saved(path: Path, **group: object):
        files = group.pop("data_files", more.get("data_files", []))
        source = {"path": str(path), "revision": None, **more, "data_files": files}
        task = changed("vismin", source, **{"n_groups": None, **group})
        return task_data.load(TaskFile(task.spec.model_copy(update={"means": {}}), None))

    if more:
        inside = tmp_path / "copy" / inner
        shutil.copy(inside / "data-00000-of-00001.arrow", inside / "cache-1.arrow")  # of a later map()
        assert ids(load_saved(inside, data_files=[])) == ids(load_saved(inside, data_files="*.arrow")) == list("1234")
    loaded = load_saved(tmp_path / "copy")
    assert ids(loaded) == list("1234") and loaded.groups[2].captions == ("c", "g")
    assert ids(load_saved(tmp_path / "copy", where={"category": Condition(any_of=["y"])})) == ["3", "4"]
    assert loaded.groups[1].images[0].open().size == (20, 11)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(OutOfReachError, match=r"incomplete: .*arrow .*is missing"):
        load_saved(tmp_path / "nothing")


@pytest.mark.parametrize("folder", ["facebook_winoground", "stanfordnlp_colorswap"])
def test_datasets_that_the_authors_code_saved(tmp_path, folder):
    """Neither part of it, nor what a later save left beside it, is taken for the whole."""
    task = folder.partition("_")[2]
    splits = {split: datasets.Dataset.from_dict(pairs(task, of=split)) for split in ("train", "test")}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / folder), num_shards={"train": 1, "test": 2})
    loaded = load(task, tmp_path, 2)
    assert loaded.groups[0].captions[0].startswith("test ") and loaded.groups[0].images[1].open().size == (20, 10)
    assert loaded.source["revision"] is None and loaded.source["folder"] == str(tmp_path / folder)
    assert missing(task, tmp_path) == [{}]
    test = tmp_path / folder / "test"
    shutil.copy(test / "data-00000-of-00002.arrow", test / "data-00000-of-00001.arrow")
    with pytest.raises(DataError, match="has several splits 'test'"):
        load(task, tmp_path, 2)
    (test / "data-00000-of-00001.arrow").unlink()
    (test / "data-00001-of-00002.arrow").unlink()
    state = json.loads((test / "state.json").read_text(encoding="utf-8"))
    state["_data_files"] = [{"filename": "../train/data-00000-of-00001.arrow"}]
    write(test / "state.json", state)
    with pytest.raises(OutOfReachError, match=r"incomplete: 1 of 2 files test/data-\* is missing"):
        load(task, tmp_path, 2)
    shutil.rmtree(test)
    with pytest.raises(OutOfReachError, match="not in the cache"):
        load(task, tmp_path, 2)


# --- the Hub's cache -----------------------------------------------------------------------------------------


def cached_colorswap(tmp_path: Path, shards: int) -> Path:
    """The first shard of a repository in the Hub's cache."""
    repository = tmp_path / "cache" / "hub" / "datasets--stanfordnlp--colorswap"
    write(repository / "refs" / "main", SHA)
    return Path(parquet(repository / "snapshots" / SHA, pairs("colorswap"), shards=shards)) / "data"


def test_a_missing_shard_is_found_and_named(tmp_path):
    data = cached_colorswap(tmp_path, 2)
    (why,) = missing("colorswap", tmp_path)[0].values()
    assert why.startswith("incomplete: 1 of 2 files data/test-* is missing")
    with pytest.raises(OutOfReachError, match=r"is incomplete: 1 of 2 files data/test-\* is missing"):
        load("colorswap", tmp_path, 2)
    (why,) = missing("colorswap", tmp_path, path=str(data.parent))[0].values()
    assert "1 of 2 files data/test-* is missing" in why
    (data / "test-00001-of-00002.parquet").symlink_to(tmp_path / "a blob that is gone")
    assert missing("colorswap", tmp_path)[0], "a link without its file is not a shard"
    (data / "test-00001-of-00002.parquet").unlink()
    (data / "test-00000-of-00002.parquet").rename(data / "test-00000-of-00002-3b51d4c9c6b8d2f1.parquet")
    assert "1 of 2 files data/test-* is missing" in missing("colorswap", tmp_path)[0].popitem()[1]


def test_which_tables_hold_a_split_is_never_guessed(tmp_path):
    """Two folders may have one; a name that only begins alike is another."""
    path = Path(parquet(tmp_path / "copy", pairs("colorswap")))
    shutil.copy(path / "data" / "test-00000-of-00001.parquet", path / "data" / "test-more-00000-of-00001.parquet")

    def read(**more: object) -> int:
        return len(task_data.load(changed("colorswap", {"path": str(path), **more}, n_groups=2)).groups)

    assert read() == 2
    shutil.copytree(path / "data", path / "other")
    with pytest.raises(DataError, match="has several splits 'test'"):
        read()
    for choice in ({"data_files": "other/test-0*"}, {"data_files": ["data/test-0*"]}):
        assert read(**choice) == 2
    with pytest.raises(OutOfReachError, match=r"validation.* is missing in"):
        read(split="validation")


# --- MMVP-VLM: loose files -----------------------------------------------------------------------------------


def mmvp(folder: Path, numbers: int = 4, blobs: Path | None = None) -> Path:
    """Questions.csv and folders of thirty images; with blobs, links as the Hub's cache has them."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [(number, PATTERNS[(number - 1) // 30], f"Statement, {number}") for number in range(1, numbers + 1)]
    with (folder / "Questions.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("Question ID", "Type", "Statement"), *rows])
    for number, pattern, _ in rows:
        write(folder / "MLLM_VLM Images" / pattern / f"{number}.jpg", encoded((number % 256, 0, 0), (224, 20), "JPEG"))
    for file in list(folder.rglob("*")) if blobs else []:
        if file.is_file():
            blobs.mkdir(parents=True, exist_ok=True)
            blob = blobs / hashlib.sha256(str(file.relative_to(folder)).encode()).hexdigest()
            file.rename(blob)
            file.symlink_to(blob)
    return folder


@pytest.fixture
def cached_mmvp(tmp_path) -> Path:
    """The snapshot of the task's revision in the Hub's cache."""
    repository = tmp_path / "cache" / "hub" / "datasets--MMVP--MMVP_VLM"
    return mmvp(repository / "snapshots" / find("mmvp_vlm").spec.source["revision"], 270, repository / "blobs")


def test_mmvp_vlm_from_the_hubs_cache_at_its_revision(tmp_path, cached_mmvp):
    loaded = load("mmvp_vlm")
    assert len(loaded.groups) == 135
    last = loaded.groups[-1]
    assert last.group_id == "269-270" and last.captions == ("Statement, 269", "Statement, 270")
    assert [image.name for image in last.images] == ["Camera Perspective/269.jpg", "Camera Perspective/270.jpg"]
    assert Counter(group.tags["Type"] for group in loaded.groups) == dict.fromkeys(PATTERNS, 15)
    assert open_upright(last.images[1], "x").size == (224, 20)
    assert loaded.source["revision"] == cached_mmvp.name and len(loaded.source["sha256"]) == 64
    assert load("mmvp_vlm_global").groups == loaded.groups
    assert len(load("mmvp_vlm", limit=3).groups) == 3
    assert missing("mmvp_vlm", tmp_path) == [{}]
    (cached_mmvp / "MLLM_VLM Images" / "Color" / "151.jpg").unlink()
    with pytest.raises(DataError, match=r"image Color/151\.jpg of group 151-152 is not in .*fetches it again"):
        load("mmvp_vlm")
    (why,) = missing("mmvp_vlm", tmp_path)[0].values()
    assert why == f"incomplete: image Color/151.jpg is not in {cached_mmvp}"


def test_a_link_out_of_the_repository_is_refused(tmp_path, cached_mmvp):
    image = cached_mmvp / "MLLM_VLM Images" / "Orientation" / "2.jpg"
    image.unlink()
    image.symlink_to(write(tmp_path / "private.jpg", encoded(form="JPEG")))
    with pytest.raises(DataError, match=r"group 1-2: 'Orientation/2\.jpg' leaves the folder"):
        load("mmvp_vlm")
    questions = cached_mmvp / "Questions.csv"
    rows = questions.read_text(encoding="utf-8").replace("1,Orientation", "1,../../../blobs")
    questions.unlink()
    questions.write_text(rows, encoding="utf-8")
    with pytest.raises(DataError, match="leaves the folder"):
        load("mmvp_vlm")


@pytest.mark.parametrize("place", ["mmvp_vlm", ".", "path"])
def test_mmvp_vlm_in_a_folder_is_read_before_the_hub(tmp_path, place):
    """In the data folder under its names, or where ``path`` says."""
    folder = mmvp(tmp_path / "data" / place)
    source = {"path": str(folder)} if place == "path" else {}
    loaded = load("mmvp_vlm", tmp_path / "data", 2, **source)
    assert loaded.groups[1].captions == ("Statement, 3", "Statement, 4")
    assert loaded.source["revision"] is None and loaded.source["folder"] == str(folder)
    assert missing("mmvp_vlm", tmp_path / "data", **source) == [{}]
    (folder / "MLLM_VLM Images" / "Orientation" / "3.jpg").unlink()
    (why,) = missing("mmvp_vlm", tmp_path / "data", **source)[0].values()
    assert why == f"incomplete: image Orientation/3.jpg is not in {folder}"
    with pytest.raises(DataError, match=r"image Orientation/3\.jpg of group 3-4 is not in"):
        load("mmvp_vlm", tmp_path / "data", 2, **source)


# --- a local folder in place of a dataset --------------------------------------------------------------------


def local_task(folder: Path, path: str, kind: str = "huggingface", **more: object) -> Path:
    columns = {"id": "id", "images": ["image_0", "image_1"], "captions": ["caption_0", "caption_1"]}
    return task_file(folder, {"kind": kind, "path": path, **more}, {"shape": [2, 2], **columns})


def named(folder: Path, name: str) -> Path:
    return Path(parquet(folder, pairs("winoground", of=name)))


@pytest.mark.parametrize("path", ["./own", "../tasks/own", "absolute"])
def test_a_path_starts_from_the_task_file_and_not_from_the_working_directory(tmp_path, monkeypatch, path):
    folder = named(tmp_path / "tasks" / "own", "right")
    named(tmp_path / "elsewhere" / "own", "wrong")
    named(tmp_path / "elsewhere" / "tasks" / "own", "wrong")
    (tmp_path / "elsewhere" / "here").mkdir()
    file = local_task(tmp_path / "tasks", str(folder) if path == "absolute" else path)
    monkeypatch.chdir(tmp_path / "elsewhere" / "here" if path.startswith("..") else tmp_path / "elsewhere")
    loaded = task_data.load(file)
    assert loaded.groups[0].captions[0] == "right 0 0" and loaded.source["folder"] == str(folder)
    assert loaded.source["revision"] is None


def test_a_missing_folder_is_an_error_that_names_it_and_nothing_takes_its_place(tmp_path, monkeypatch, capsys):
    """The library would find a folder in the working directory, or a dataset of this name in its cache."""
    named(tmp_path / "elsewhere" / "own", "wrong")
    monkeypatch.chdir(tmp_path / "elsewhere")
    file = local_task(tmp_path / "tasks", "./own")
    for offline in (True, False):
        with pytest.raises(OutOfReachError) as found:
            task_data.load(file, offline=offline)
        assert f"the folder {tmp_path / 'tasks' / 'own'} does not exist" in str(found.value)
        assert "ttmbench download" not in str(found.value)
    code, _, err = run(capsys, "run", "--model", "tiny-clip", "--tasks", file, "--offline")
    assert code == 4 and f"the folder {tmp_path / 'tasks' / 'own'} does not exist" in err
    with pytest.raises(OutOfReachError, match=r"the folder .*tasks.own does not exist"):
        task_data.load(local_task(tmp_path / "tasks", "./own", "hub_files", file="rows.jsonl"))


def test_a_name_without_a_dot_or_slash_in_front_is_an_id_and_a_folder_of_that_name_is_no_guess(tmp_path, monkeypatch):
    folder = named(tmp_path / "tasks" / "own", "mine")
    with pytest.raises(UsageError, match=r"'own' is the id of a dataset on the Hub .*; write './own'") as caught:
        task_data.load(local_task(tmp_path / "tasks", "own"))
    assert str(folder) in str(caught.value)
    named(tmp_path / "owner" / "name", "wrong")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutOfReachError, match="it is not in the cache"):
        task_data.load(local_task(tmp_path / "tasks", "owner/name"))


def test_a_path_of_the_command_line_starts_from_the_working_directory(tmp_path, monkeypatch, capsys):
    named(tmp_path / "here" / "own", "right")
    named(tmp_path / "tasks" / "own", "wrong")
    words = ["--model", "tiny-clip", "--device", "cpu", "--offline", "--bootstrap_iters", "0"]
    words += ["--tasks", local_task(tmp_path / "tasks", "owner/none"), "--task_args"]
    monkeypatch.chdir(tmp_path / "here")
    assert run(capsys, *words, "path=./own", "--output_path", "x.json", "--log_samples")[0] == 0
    document = json.loads((tmp_path / "here" / "x.json").read_text(encoding="utf-8"))
    assert document["datasets"]["mine"]["source"]["folder"] == str(tmp_path / "here" / "own")
    assert document["datasets"]["mine"]["revision"] is None, "a folder never has the Hub's commit"
    assert document["configs"]["mine"]["source"]["path"] == str(tmp_path / "here" / "own")
    code, _, err = run(capsys, *words, "path=own")
    assert code == 2 and "write './own' for the folder" in err


@pytest.mark.parametrize("kind", ["huggingface", "random_foils"])
def test_groups_of_a_table_without_their_images_may_be_left_out(tmp_path, kind):
    image = datasets.Image()
    features = datasets.Features({"one": image, "two": image, "texts": [datasets.Value("string")]})
    inside, outside = {"bytes": None, "path": "a.png"}, {"bytes": None, "path": "b.png"}
    cells = [{"bytes": CELLS[0], "path": None}, None, inside, outside]
    rows = {"one": cells, "two": [cells[0]] * 4, "texts": [[f"one {n}", f"two {n}"] for n in range(4)]}
    table = pyarrow.table(rows, features.arrow_schema)
    write(tmp_path / "own" / "a.png", CELLS[1])
    parquet_files.write_table(table, tmp_path / "own" / "test-00000-of-00001.parquet")
    group = {"shape": [2, 2], "n_groups": 4, "images": ["one", "two"], "captions": "texts"}
    source = {"kind": "huggingface", "path": "./own", "missing": "leave_out"}
    source = source if kind == source["kind"] else {"kind": kind, "of": [source]}
    loaded = task_data.load(task_file(tmp_path, source, group))
    assert ids(loaded) == ["0", "2"] and loaded.source["coverage"] == {"rows": 4, "here": 2, "missing": ["1", "3"]}
    assert all(open_upright(image, "x").size[0] == 20 for one in loaded.groups for image in one.images)
    parquet_files.write_table(table.slice(1, 1), tmp_path / "own" / "test-00000-of-00001.parquet")
    with pytest.raises(OutOfReachError, match="none of 1 groups has its images"):
        task_data.load(tmp_path / "mine.yaml")
