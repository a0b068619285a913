"""Datasets of the Hugging Face hub, from tiny copies in the hub's own formats; nothing here touches the network."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections import Counter
from pathlib import Path

import datasets
import pytest
from datasets import Image as ImageFeature
from datasets import List, Value
from datasets.exceptions import DatasetNotFoundError
from PIL import Image
from support import task_data
from support.task_data import changed, encoded, find, task_file

from ttmbench.cli import main
from ttmbench.data.cells import Condition
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import DataError, OutOfReachError, UsageError
from ttmbench.scoring.fingerprint import open_upright

pytestmark = pytest.mark.filterwarnings("default")

PATTERNS = [
    *("Orientation", "Presence", "State", "Quantity", "Spatial", "Color"),
    *("Structural Character", "Text", "Camera Perspective"),
]


@pytest.fixture(autouse=True)
def own_caches(tmp_path, monkeypatch):
    """The caches of the hub's libraries, empty and our own."""
    from huggingface_hub import constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache" / "datasets")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache" / "hub"))


def parquet(folder: Path, split: str, columns: dict, features: dict) -> str:
    """A repository of one parquet file, without a card, as the hub's libraries write it."""

    table = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    (folder / "data").mkdir(parents=True, exist_ok=True)
    table.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return str(folder)


def images(count: int, mode: str = "RGB") -> list:
    return [
        Image.new(mode, (20, 10 + index % 7), (index % 256, 0, 0) + (9,) * (mode == "RGBA")) for index in range(count)
    ]


def load(name: str, data_dir: Path | None = None, n_groups: int | None = None, limit: int | None = None, **source):
    if data_dir is not None:
        data_dir.mkdir(exist_ok=True)
    task = changed(name, source, **({"n_groups": n_groups} if n_groups else {}))
    return task_data.load(task, data_dir, limit=limit)


TEXT, IMAGE, NUMBER = Value("string"), ImageFeature(), Value("int32")


def winoground(folder: Path, n: int = 4) -> str:
    texts = {
        "caption_0": [f"caption {index}" for index in range(n)],
        "caption_1": [f"other {index}" for index in range(n)],
        "tag": ["Adjective-Noun"] * n,
        "secondary_tag": ["", "Pragmatics, Series"] * (n // 2),
        "collapsed_tag": ["Object"] * n,
    }
    columns = {"id": list(range(n)), "image_0": images(n, "RGBA"), "image_1": images(n), **texts}
    features = {"id": NUMBER, "image_0": IMAGE, "image_1": IMAGE, **dict.fromkeys(texts, TEXT)}
    return parquet(
        folder,
        "test",
        {**columns, "num_main_preds": [1, 2] * (n // 2)},
        {**features, "num_main_preds": NUMBER},
    )


def test_winoground_with_its_tags_and_transparent_images(tmp_path):
    (tmp_path / "winoground").mkdir()
    tags = {"0": [], "1": ["Complex Reasoning", "Unusual Text"], "2": ["Unusual Image"], "3": []}
    (tmp_path / "winoground" / "new_tag_assignments.json").write_text(json.dumps(tags), encoding="utf-8")
    path = winoground(tmp_path / "copy")
    loaded = load("winoground", tmp_path, 4, path=path)
    assert [group.group_id for group in loaded.groups] == ["0", "1", "2", "3"]
    second = loaded.groups[1]
    assert second.captions == ("caption 1", "other 1")
    assert second.tags == {
        "tag": "Adjective-Noun",
        "secondary_tag": "Pragmatics, Series",
        "num_main_preds": "2",
        "collapsed_tag": "Object",
        "diwan": "Complex Reasoning, Unusual Text",
    }
    assert loaded.groups[0].tags["diwan"] == "" and loaded.groups[0].tags["secondary_tag"] == ""
    assert second.images[0].open().mode == "RGBA" and open_upright(second.images[0], "1").mode == "RGB"
    assert open_upright(second.images[1], "1").size == (20, 11)
    assert loaded.source["revision"] is None, "a folder of the user's own has no commit of the hub"
    without = load("winoground", tmp_path / "nothing", 4, path=path)
    assert "diwan" not in without.groups[0].tags and without.source["tag_files"] == {"diwan": None}
    assert len(load("winoground", None, None, 2, path=path).groups) == 2
    assert load("winoground_global", None, 4, path=path).groups == without.groups


def test_colorswap_and_its_splits(tmp_path):
    for split, ids in (("train", [0, 1, 2]), ("test", [9, 11])):
        n = len(ids)
        texts = {name: [f"{name} {i}" for i in ids] for name in ("caption_1", "caption_2")}
        texts |= {"image_source": ["midjourney"] * n, "caption_source": ["human"] * n}
        columns = {"id": ids, "image_1": images(n), "image_2": images(n), **texts}
        features = {"id": Value("int64"), "image_1": IMAGE, "image_2": IMAGE, **dict.fromkeys(texts, TEXT)}
        path = parquet(tmp_path / "copy", split, columns, features)
    test = load("colorswap", None, 2, path=path)
    assert [group.group_id for group in test.groups] == ["9", "11"]
    assert test.groups[1].captions == ("caption_1 11", "caption_2 11")
    assert test.groups[0].tags == {"image_source": "midjourney", "caption_source": "human"}
    assert [group.group_id for group in load("colorswap_train", None, 3, path=path).groups] == ["0", "1", "2"]
    inner = {**find("colorswap_random").spec.source["of"][0], "path": path}
    foils = load("colorswap_random", None, 2, of=[inner]).groups
    assert [group.group_id for group in foils] == ["9", "11"], "as many groups, each with a pair of the other"
    assert {caption.split()[1] for caption in foils[0].captions} == {"9", "11"}
    with pytest.raises(DataError, match="has 2 groups, but task 'colorswap'"):
        load("colorswap", path=path)


def sugarcrepe(folder: Path, rows: list[tuple[str, str]]) -> str:
    columns = {"image": images(len(rows)), "tested_labels": [list(row) for row in rows], "true_label": [0] * len(rows)}
    labels = datasets.ClassLabel(names=["caption", "negative_caption"])
    return parquet(folder, "test", columns, {"image": IMAGE, "tested_labels": List(TEXT), "true_label": labels})


def mirror_of(task: str, path: str) -> list:
    first, second = find(task).spec.source["of"]
    return [first, {**second, "path": path}]


def test_the_mirror_of_sugarcrepe_without_its_wrong_group(tmp_path):
    rows = [(f"caption {index}", f"negative {index}") for index in range(246)]
    rows[108] = ("A West 32nd sign under a Korea Way road sign. ", "A Korea Way road sign under a West 32nd sign.")
    of = mirror_of("sugarcrepe_swap_obj", sugarcrepe(tmp_path / "copy", rows))
    loaded = load("sugarcrepe_swap_obj", tmp_path / "nothing", of=of)
    ids = [group.group_id for group in loaded.groups]
    assert len(ids) == 245 and "108" not in ids and ids[-1] == "245", "ids are those of the original file"
    assert loaded.groups[3].captions == ("caption 3", "negative 3") and loaded.groups[3].tags == {"subset": "swap_obj"}
    assert loaded.groups[108].images[0].open().size == (20, 10 + 109 % 7), "images stay with their captions"
    assert loaded.source["passed_over"] == ["annotations sugarcrepe/swap_obj.json"]
    (dropped,) = loaded.source["dropped"]
    assert dropped["group_id"] == "108" and "this caption is wrong" in dropped["because"]
    json.dumps(loaded.source)
    assert len(load("sugarcrepe_swap_obj", tmp_path / "nothing", limit=110, of=of).groups) == 110


def test_a_mirror_whose_wrong_group_cannot_be_found_is_refused(tmp_path):
    rows = [(f"caption {index}", f"negative {index}") for index in range(246)]
    of = mirror_of("sugarcrepe_swap_obj", sugarcrepe(tmp_path / "copy", rows))
    with pytest.raises(DataError, match=r"has 246 groups.*has 245: this is the copy from before 2023-11-18"):
        load("sugarcrepe_swap_obj", tmp_path / "nothing", of=of)


def test_spatial_rows_of_the_mirror(tmp_path):
    rows = 291
    columns = {"image_options": images(rows), "caption_options": [[f"right {i}", f"wrong {i}"] for i in range(rows)]}
    features = {"image_options": IMAGE, "caption_options": List(TEXT)}
    path = parquet(tmp_path / "copy", "VG_QA_two_obj", columns, features)
    (tmp_path / "copy" / "data" / "VG_Relation-00000-of-00001.parquet").write_bytes(b"nobody asked for this split")
    loaded = load("whatsup_vg_two", tmp_path / "nothing", of=mirror_of("whatsup_vg_two", path))
    assert loaded.groups[290].captions == ("right 290", "wrong 290"), "the true caption is the first"


def test_a_column_of_several_images(tmp_path):
    columns = {"both": [images(2), images(2)[::-1]], "texts": [["a", "b"], ["c", "d"]]}
    path = parquet(tmp_path / "copy", "test", columns, {"both": List(IMAGE), "texts": List(TEXT)})
    group = {"id": None, "tags": [], "n_groups": 2, "images": "both", "captions": "texts"}
    task = changed("colorswap", of={"kind": "huggingface", "path": path}, **group)
    groups = task_data.load(task).groups
    assert groups[1].captions == ("c", "d")
    assert [image.open().size for image in groups[1].images] == [(20, 11), (20, 10)]
    assert len({image.name for one in groups for image in one.images}) == 4
    with pytest.raises(DataError, match=r"'texts' holds .* and no images"):
        task_data.load(changed(task, images="texts"))


def plain_table(folder: Path, column: object, **more: object) -> Path:
    """A task on a parquet file as other libraries than ``datasets`` write it: without its feature metadata."""
    import pyarrow
    from pyarrow import parquet

    (folder / "table").mkdir()
    captions = pyarrow.array([[f"one {n}", f"two {n}"] for n in range(3)])
    table = pyarrow.table({"picture": column, "captions": captions, "blob": [b"no image"] * 3, **more})
    parquet.write_table(table, folder / "table" / "test-00000-of-00001.parquet")
    group = {"shape": [1, 2], "images": ["picture"], "captions": "captions"}
    return task_file(folder, {"kind": "huggingface", "path": str(folder / "table")}, group)


@pytest.mark.parametrize("form", ["bytes", "large bytes", "struct", "struct of bytes alone", "list", "list of structs"])
def test_images_without_the_metadata_of_the_library_are_read(tmp_path, form):
    import pyarrow

    cells = [encoded((n, 0, 0), (20, 10 + n)) for n in range(3)]
    column = {
        "bytes": lambda: cells,
        "large bytes": lambda: pyarrow.array(cells, pyarrow.large_binary()),
        "struct": lambda: [{"bytes": one, "path": "a.png"} for one in cells],
        "struct of bytes alone": lambda: [{"bytes": one} for one in cells],
        "list": lambda: [[one] for one in cells],
        "list of structs": lambda: [[{"bytes": one, "path": None}] for one in cells],
    }[form]()
    path = plain_table(tmp_path, column)
    if form.startswith("list"):
        path.write_text(path.read_text().replace("images:\n  - picture", "images: picture"))
    loaded = task_data.load(path)
    assert [group.images[0].open().height for group in loaded.groups] == [10, 11, 12]
    assert [group.images[0].read() for group in loaded.groups] == cells
    assert loaded.groups[2].captions == ("one 2", "two 2")


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        (["a.png", "b.png", "c.png"], r"'picture' holds string and no images; an image column holds encoded images"),
        ([1, 2, 3], r"'picture' holds int64 and no images"),
        ([{"x": 1}] * 3, r"'picture' holds struct<x: int64> and no images"),
        ([b"png"] * 3, r"image 0/picture of group 0 cannot be read: it is no image of a known format"),
        ([None, b"png", b"png"], r"'picture' of group 0 holds no image"),
    ],
)
def test_a_column_without_images_is_told(tmp_path, cells, line, capsys):
    assert main(["validate", str(plain_table(tmp_path, cells))]) != 0
    said = "".join(capsys.readouterr())
    assert re.search(line, said) and said.count("\n") == 1, said


@pytest.mark.parametrize(
    ("ids", "line"),
    [
        (["x", None, "z"], "'id' of row 1 is null"),
        ([0.0, float("nan"), 2.0], "'id' of row 1 is NaN"),
        (["x", "", "z"], "'id' of row 1 is blank"),
        ([b"x", b"y", b"z"], "'id' of row 0 is bytes"),
        ([1, 2, 3], None),
    ],
)
def test_ids_of_a_table(tmp_path, ids, line, capsys):
    path = plain_table(tmp_path, [encoded((n, 0, 0), (20, 10 + n)) for n in range(3)], id=ids)
    path.write_text(path.read_text().replace("group:", "group:\n  id: id"))
    assert (main(["validate", str(path)]) == 0) is (line is None)
    said = "".join(capsys.readouterr())
    assert line is None or (f"{line}; an id must be " in said and said.count("\n") == 1), said


def test_a_text_that_is_not_utf8_names_row_and_column(tmp_path, capsys):
    """Arrow does not look at the bytes of texts before they are read."""
    import pyarrow

    texts = pyarrow.array([b"good", b"also good", b"caf\xe9"])
    strings = pyarrow.Array.from_buffers(pyarrow.string(), 3, texts.buffers())
    path = plain_table(tmp_path, [encoded((n, 0, 0), (20, 10 + n)) for n in range(3)], note=strings)
    assert main(["validate", str(path)]) == 4
    said = "".join(capsys.readouterr())
    assert "'note' of row 2 is not UTF-8 text" in said and said.count("\n") == 1, said


def saved(folder: Path, split: str | None = "test", shards: int = 2) -> Path:
    """What `save_to_disk` writes: of several splits, or of a dataset without any."""

    texts = {"text_0": list("abcd"), "text_1": list("efgh"), "category": list("xxyy"), "id": list("1234")}
    columns = {"image_0": images(4), "image_1": images(4)[::-1], **texts}
    features = datasets.Features({"image_0": IMAGE, "image_1": IMAGE, **dict.fromkeys(texts, TEXT)})
    table = datasets.Dataset.from_dict(columns, features=features)
    if split is None:
        table.save_to_disk(str(folder), num_shards=shards)
    else:
        both = datasets.DatasetDict({split: table, "train": table.select([0])})
        both.save_to_disk(str(folder), num_shards={split: shards, "train": 1})
    return folder


def load_saved(path: Path, **group: object):
    task = changed("vismin", {"path": str(path), "revision": None}, **{"n_groups": None, **group})
    return task_data.load(TaskFile(task.spec.model_copy(update={"means": {}}), None))


@pytest.mark.parametrize(("inner", "split"), [("data", "test"), (".", "test"), ("data", None)])
def test_what_save_to_disk_wrote_is_found_wherever_it_lies(tmp_path, inner, split):
    saved(tmp_path / "copy" / inner, split)
    groups = load_saved(tmp_path / "copy").groups
    assert [group.group_id for group in groups] == list("1234") and groups[2].captions == ("c", "g")
    only = {"category": Condition(any_of=["y"])}
    assert [group.group_id for group in load_saved(tmp_path / "copy", where=only).groups] == ["3", "4"]
    assert groups[1].images[0].open().size == (20, 11)


def test_what_is_missing_of_a_saved_dataset_is_told(tmp_path):
    folder = saved(tmp_path / "copy" / "data")
    lost = sorted((folder / "test").glob("*.arrow"))[1]
    lost.rename(tmp_path / "elsewhere")
    with pytest.raises(OutOfReachError, match=f"is incomplete: {lost.name} is missing"):
        load_saved(tmp_path / "copy")
    state = folder / "test" / "state.json"
    content = json.loads(state.read_text(encoding="utf-8"))
    content["_data_files"][1]["filename"] = "../../../elsewhere"
    state.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DataError, match="leaves the folder"):
        load_saved(tmp_path / "copy")
    (folder / "test").rename(folder / "other")
    with pytest.raises(DataError, match="has no split 'test' as save_to_disk writes it; it has data/other, data/train"):
        load_saved(tmp_path / "copy")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(OutOfReachError, match=r"test/state\.json is missing"):
        load_saved(tmp_path / "nothing")


def test_reading_a_table_decodes_no_image_and_a_broken_one_names_its_group(tmp_path):
    import pyarrow
    from pyarrow import parquet as files

    names = ("caption_1", "caption_2", "image_source", "caption_source")
    features = {"id": datasets.Value("int64"), "image_1": datasets.Image(), "image_2": datasets.Image()}
    schema = datasets.Features({**features, **dict.fromkeys(names, datasets.Value("string"))}).arrow_schema
    columns = {
        "id": [7, 8],
        "image_1": [{"bytes": b"no image", "path": None}, {"bytes": None, "path": "/etc/hostname"}],
        "image_2": [None, {"bytes": None, "path": None}],
        **{name: ["a", "b"] for name in names},
    }
    (tmp_path / "copy" / "data").mkdir(parents=True)
    files.write_table(pyarrow.table(columns, schema), tmp_path / "copy" / "data" / "test-00000-of-00001.parquet")
    path = str(tmp_path / "copy")
    first, second = load("colorswap", None, 2, path=path).groups
    with pytest.raises(DataError, match="image 7/image_1 of group 7 cannot be read"):
        open_upright(first.images[0], "7")
    with pytest.raises(DataError, match=r"dataset .*: 'image_2' of group 7 holds no image"):
        open_upright(first.images[1], "7")
    with pytest.raises(DataError, match="'image_2' of group 8 holds no image"):
        open_upright(second.images[1], "8")
    with pytest.raises(DataError, match="'image_1' of group 8 names /etc/hostname, outside the dataset's own folders"):
        open_upright(second.images[0], "8")


def test_a_missing_column_is_named(tmp_path):
    source = {"kind": "huggingface", "path": winoground(tmp_path / "copy")}
    with pytest.raises(DataError, match=r"has no column 'caption_2'; it has id, caption_0"):
        task_data.load(changed("winoground", of=source, captions=["caption_0", "caption_2"]))


# --- what the hub answers ------------------------------------------------------------------------------------


def answering(monkeypatch, error: Exception) -> None:

    def answer(*_, **__):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", answer)


def test_a_gated_dataset_says_where_to_ask_and_what_to_set(monkeypatch):
    import httpx2
    from huggingface_hub.errors import GatedRepoError

    answer = httpx2.Response(401, request=httpx2.Request("GET", "https://example.org"))
    error = DatasetNotFoundError("as the library wraps it, in words that may change")
    error.__context__ = GatedRepoError("gated", response=answer)
    answering(monkeypatch, error)
    with pytest.raises(OutOfReachError) as caught:
        load("winoground")
    assert str(caught.value) == (
        "dataset facebook/winoground at revision b400e173549071916ad1b3d449293bc8d8b4b763 is gated: accept its terms "
        "at https://huggingface.co/datasets/facebook/winoground and set HF_TOKEN to a token of that account"
    )


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            ConnectionError("Couldn't reach 'x' on the Hub"),
            OutOfReachError,
            "it is not in the cache and the hub cannot",
        ),
        (TimeoutError("timeout"), OutOfReachError, "it is not in the cache and the hub cannot"),
        (FileNotFoundError("Dataset 'x' doesn't exist on the Hub"), OutOfReachError, "doesn't exist on the Hub"),
        (DatasetNotFoundError("Dataset 'x' is nowhere"), OutOfReachError, "Dataset 'x' is nowhere (https://hugg"),
        (ValueError("a gated connection could not be found: 404"), DataError, "a gated connection could not be found"),
        (ValueError('Unknown split "tset". Should be one of ["test"].'), DataError, 'Unknown split "tset"'),
    ],
)
def test_other_answers_are_told_in_one_line(monkeypatch, error, kind, message):
    answering(monkeypatch, error)
    with pytest.raises(kind) as caught:
        load("colorswap")
    assert message in str(caught.value) and type(caught.value) is kind and "\n" not in str(caught.value)


def test_a_gated_dataset_out_of_reach_still_says_where_its_terms_are():
    with pytest.raises(OutOfReachError, match=r"terms at https://huggingface\.co/datasets/stanfordnlp/colorswap"):
        load("colorswap")


# --- MMVP-VLM ------------------------------------------------------------------------------------------------


def mmvp(folder: Path, blobs: Path | None = None) -> Path:
    """Questions.csv and nine folders of thirty images; with blobs, links as the hub's cache has them."""
    folder.mkdir(parents=True)
    rows = [(number, PATTERNS[(number - 1) // 30], f"Statement, {number}") for number in range(1, 271)]
    with (folder / "Questions.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("Question ID", "Type", "Statement"), *rows])
    for number, pattern, _ in rows:
        image = folder / "MLLM_VLM Images" / pattern / f"{number}.jpg"
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (224, 20), (number % 256, 0, 0)).save(image)
    for file in list(folder.rglob("*")) if blobs else []:
        if file.is_file():
            blobs.mkdir(parents=True, exist_ok=True)
            blob = blobs / hashlib.sha256(str(file.relative_to(folder)).encode()).hexdigest()
            file.rename(blob)
            file.symlink_to(blob)
    return folder


@pytest.fixture
def cached_mmvp(tmp_path) -> Path:
    """The snapshot of the task's revision in the hub's cache."""
    repository = tmp_path / "cache" / "hub" / "datasets--MMVP--MMVP_VLM"
    return mmvp(repository / "snapshots" / find("mmvp_vlm").spec.source["revision"], repository / "blobs")


def test_mmvp_vlm_from_the_hubs_cache_at_its_revision(cached_mmvp):
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
    (cached_mmvp / "MLLM_VLM Images" / "Color" / "151.jpg").unlink()
    with pytest.raises(DataError, match=r"image Color/151\.jpg of group 151-152 is not in .*fetches it again"):
        load("mmvp_vlm")


def test_a_link_out_of_the_repository_is_refused(tmp_path, cached_mmvp):
    image = cached_mmvp / "MLLM_VLM Images" / "Orientation" / "2.jpg"
    image.unlink()
    Image.new("RGB", (4, 4)).save(tmp_path / "private.jpg")
    image.symlink_to(tmp_path / "private.jpg")
    with pytest.raises(DataError, match=r"group 1-2: 'Orientation/2\.jpg' leaves the folder"):
        load("mmvp_vlm")
    questions = cached_mmvp / "Questions.csv"
    rows = questions.read_text(encoding="utf-8").replace("1,Orientation", "1,../../../blobs")
    questions.unlink()
    questions.write_text(rows, encoding="utf-8")
    with pytest.raises(DataError, match="leaves the folder"):
        load("mmvp_vlm")


def test_mmvp_vlm_from_a_local_folder(tmp_path):
    folder = mmvp(tmp_path / "MMVP_VLM")
    assert len(load("mmvp_vlm", path=str(folder)).groups) == 135
    rows = (folder / "Questions.csv").read_text(encoding="utf-8").splitlines()
    (folder / "Questions.csv").write_text("\n".join([rows[0], *rows[2:]]), encoding="utf-8")
    with pytest.raises(DataError, match="should be one group, but their 'Type' differs: 'Orientation' and 'Presence'"):
        load("mmvp_vlm", path=str(folder))


def test_mmvp_vlm_out_of_reach():
    with pytest.raises(OutOfReachError, match=r"dataset MMVP/MMVP_VLM at revision 211372d.*not in the cache"):
        load("mmvp_vlm")
    with pytest.raises(UsageError, match="unknown key 'spilt'"):
        load("mmvp_vlm", spilt="test")


# --- by the public command -----------------------------------------------------------------------------------


def finished(capsys, *words: str) -> str:
    from ttmbench.cli import main

    code = main(["--model", "tiny-clip", "--device", "cpu", "--offline", "--bootstrap_iters", "0", *words])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def test_a_run_of_winoground(tmp_path, capsys):
    results = tmp_path / "x.json"
    path = winoground(tmp_path / "copy", 400)
    finished(capsys, "--tasks", "winoground", "--task_args", f"path={path},revision=none", "-o", str(results))
    document = json.loads(results.read_text())
    assert document["n-samples"]["winoground"] == {"original": 400, "effective": 400, "clusters": 400}
    rows = document["breakdowns"]["winoground"]["secondary_tag"]
    assert {value: row["groups"] for value, row in rows.items()} == {"(none)": 200, "Pragmatics": 200, "Series": 200}


def test_a_run_of_mmvp_vlm_from_the_hubs_cache(tmp_path, cached_mmvp, capsys):
    blob = (cached_mmvp / "MLLM_VLM Images" / "Color" / "151.jpg").resolve()
    Image.new("CMYK", (224, 30), (10, 90, 0, 20)).save(blob, format="JPEG")
    results = tmp_path / "x.json"
    out = finished(capsys, "--tasks", "mmvp_vlm,mmvp_vlm_global", "--output_path", str(results))
    document = json.loads(results.read_text())
    samples = document["n-samples"]["mmvp_vlm"]
    assert samples == {"original": 135, "effective": 135, "clusters": 52}, "images of the copy repeat"
    assert set(document["breakdowns"]["mmvp_vlm"]["Type"]) == set(PATTERNS)
    assert all(row["groups"] == 15 for row in document["breakdowns"]["mmvp_vlm"]["Type"].values())
    assert document["datasets"]["mmvp_vlm"]["revision"] == cached_mmvp.name
    assert "global_assignment_accuracy" in out


def test_a_run_of_sugarcrepe_from_the_mirror(tmp_path, capsys):
    rows = [(f"caption {index}", f"negative {index}") for index in range(666)]
    of = mirror_of("sugarcrepe_swap_att", sugarcrepe(tmp_path / "copy", rows))
    source = {"kind": "first_of", "of": [of[0], {**of[1], "revision": None}]}
    task = task_data.rewritten(
        tmp_path, "sugarcrepe_swap_att", lambda spec: spec.update(source=source), "sugarcrepe_swap_att"
    )
    results = tmp_path / "x.json"
    finished(capsys, "--tasks", str(task), "--output_path", str(results))
    document = json.loads(results.read_text())
    assert document["n-samples"]["sugarcrepe_swap_att"]["effective"] == 666
    source = document["datasets"]["sugarcrepe_swap_att"]["source"]
    assert source["passed_over"] == ["annotations sugarcrepe/swap_att.json"]
    assert document["groups"] == {}, "one subset of seven has no mean"
