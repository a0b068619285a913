"""Annotations beside images in the data folder, and sources made of others: formats, tags, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
import yaml
from PIL import Image
from support import task_data
from support.task_data import encoded, find, load, write

from ttmbench.data.loader import data_locations, finished
from ttmbench.data.paths import data_folder, inside
from ttmbench.errors import DataError, OutOfReachError, UsageError
from ttmbench.plugins.registry import build_registry
from ttmbench.scoring.inputs import open_upright
from ttmbench.types import Group, Loaded

SHARED = Path(__file__).resolve().parents[3] / "shared"
SUGARCREPE = {  # rows, distinct images
    "add_att": (692, 497),
    "add_obj": (2062, 908),
    "replace_att": (788, 524),
    "replace_obj": (1652, 823),
    "replace_rel": (1406, 777),
    "swap_att": (666, 593),
    "swap_obj": (245, 224),
}


def save_image(path: Path, size=(8, 6), color=(200, 10, 10), mode="RGB") -> Path:
    form = "JPEG" if path.suffix == ".jpg" else "PNG"
    return write(path, encoded(color if mode == "RGB" else (*color, 90), size, form, mode))


def task_file(folder: Path, source: dict, group: dict):
    return find(task_data.task_file(folder, source, group))


PLAIN = {"kind": "annotations", "file": "rows.json", "images": "images"}
PAIR = {"shape": [1, 2], "images": ["image"], "captions": ["good", "bad"]}
ROWS = [{"image": f"{i}.png", "good": f"good {i}", "bad": f"bad {i}"} for i in range(3)]


@pytest.fixture
def data(tmp_path) -> Path:
    """A data folder with three images."""
    for index in range(3):
        save_image(tmp_path / "data" / "images" / f"{index}.png")
    return tmp_path / "data"


@pytest.fixture
def read(tmp_path, data):
    """What a task of these rows gives."""

    def read(rows: object, group: dict = PAIR, name: str = "rows.json", **source: object):
        write(data / name, rows)
        return load(task_file(tmp_path, {**PLAIN, "file": name, **source}, group), data)

    return read


# --- formats -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "ids"),
    [
        ("rows.json", ROWS, ["0", "1", "2"]),
        ("rows.json", {"5": ROWS[0], "7": ROWS[1], "x": ROWS[2]}, ["5", "7", "x"]),
        ("rows.jsonl", "\n".join(json.dumps(row) for row in ROWS), ["0", "1", "2"]),
        ("rows.csv", "image,good,bad\n0.png,good 0,bad 0\n1.png,good 1,bad 1\n2.png,good 2,bad 2\n", ["0", "1", "2"]),
        ("rows.csv", "\ufeffimage,good,bad\r\n0.png,good 0,bad 0\r\n", ["0"]),
        ("rows.csv", '\ufeffimage;good;bad\r\n0.png;good 0;bad 0\r\n1.png;a, b;"two;cells"\r\n', ["0", "1"]),
        ("rows.csv", "\ufeffsep=;\r\nimage;good;bad\r\n0.png;good 0;bad 0\r\n", ["0"]),
        ("rows.csv", "image\tgood\tbad\n0.png\tgood 0\tbad 0\n", ["0"]),
        ("rows.tsv", 'image\tgood\tbad\n0.png\tgood 0\tbad 0\n1.png\ta, b\t"two\tcells"\n', ["0", "1"]),
        ("rows.json", [["0.png", "good 0", "bad 0"]], ["0"]),
    ],
)
def test_rows_are_read_from_json_json_lines_and_csv(read, name, content, ids):
    loaded = read(content, name=name, fields=["image", "good", "bad"])
    assert [group.group_id for group in loaded.groups] == ids
    assert loaded.groups[0].captions == ("good 0", "bad 0") and loaded.groups[0].images[0].name == "0.png"
    assert loaded.source["kind"] == "annotations" and len(loaded.source["sha256"]) == 64


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.json", "{", "rows.json: is not JSON"),
        ("rows.json", b"\xff\xfe", "is not UTF-8 text"),
        ("rows.json", "3", "expected a list or an object of rows, got int"),
        ("rows.json", [3], "row 0 is int, not an object"),
        ("rows.json", [["0.png", "good"]], "row 0 has 2 cells, but 3 are named: image, good, bad"),
        ("rows.json", [{**ROWS[0], "good": " "}], "caption 'good' of group 0 is empty"),
        ("rows.json", [{**ROWS[0], "image": None}], "'image' of group 0 must name an image file, got None"),
        ("rows.json", [{**ROWS[0], "image": "../secret.png"}], "leaves the folder"),
        ("rows.json", [{**ROWS[0], "image": "/etc/hostname"}], "leaves the folder"),
        ("rows.json", [{**ROWS[0], "image": "a\0b"}], "is not a usable path"),
        ("rows.json", [{**ROWS[0], "image": "9.png"}], "image 9.png of group 0 is not in"),
        ("rows.json", {"": ROWS[0]}, "the key of row 0 is ''"),
        ("rows.csv", "image,good,bad\n0.png,good\n", "row 0 (line 2) has not as many cells as the header"),
        ("rows.csv", "image,good,bad\n0.png,good,bad,worse\n", "row 0 (line 2) has not as many cells as the header"),
        ("rows.csv", "image,good\n0.png,good\n", "row 0 has no column 'bad'; it has image, good"),
        ("rows.tsv", "image,good,bad\n0.png,good,bad\n", "row 0 has no column 'good'; it has image,good,bad"),
        ("rows.tsv", "image\tgood\tbad\n0.png\tgood\n", "row 0 (line 2) has not as many cells as the header"),
        ("rows.tsv", 'image\tgood\tbad\n0.png\t"A" is it\tbad\n', "line 2 is not TSV ('\\t' expected"),
        ("rows.csv", b"image,good,bad\n0.png,caf\xc3\xa9 \xe9,bad\n", "line 2, character 12 is byte 0xe9"),
        ("rows.jsonl", b'{"image": "\xff"}\n', "line 1, character 12 is byte 0xff"),
    ],
)
def test_what_is_wrong_with_annotations_names_file_and_group(read, name, content, message):
    with pytest.raises(DataError) as caught:
        read(content, name=name, fields=["image", "good", "bad"])
    assert message in str(caught.value) and name in str(caught.value) and "\n" not in str(caught.value)
    assert not isinstance(caught.value, OutOfReachError), "wrong data are not passed over"


@pytest.mark.parametrize(
    ("cells", "group", "message"),
    [
        ({"texts": ["a", "b"]}, {"captions": "texts"}, "gives 2 captions (group.captions: *texts), but each"),
        ({"texts": "abc"}, {"captions": "texts"}, "must hold a list of captions, got 'abc'"),
        ({"texts": ["a", "b", 3]}, {"captions": "texts"}, "caption 'texts[2]' of group 0 is empty"),
        ({}, {"images": ["{no}.png"], "captions": "texts"}, "has no column 'no'"),
        ({}, {"images": ["a", "b"], "captions": "texts"}, "gives 2 images (group.images: a, b), but each"),
    ],
)
def test_wrong_columns_are_told(read, cells, group, message):
    rows = [{"nr": "x", "image": "0.png", "texts": ["a", "b", "c"], **cells}]
    with pytest.raises((DataError, UsageError)) as caught:
        read(rows, {"shape": [1, 3], "images": ["image"], **group})
    assert message in str(caught.value) and isinstance(caught.value, UsageError) == ("a, b" in message)


def test_several_rows_make_a_group_and_their_tags_must_agree(tmp_path, data, read):
    rows = [{"image": f"{i % 3}.png", "text": f"text {i}", "kind": "ab"[i // 2]} for i in range(4)]
    group = {"shape": [2, 2], "images": ["image"], "captions": ["text"], "tags": ["kind"]}
    groups = read(rows, group, rows_per_group=2).groups
    assert [one.group_id for one in groups] == ["0-1", "2-3"] and groups[1].tags == {"kind": "b"}
    assert groups[1].captions == ("text 2", "text 3") and [i.name for i in groups[1].images] == ["2.png", "0.png"]
    assert len(load(tmp_path / "mine.yaml", data, limit=1).groups) == 1
    with pytest.raises(DataError, match="2 rows make a group, but 1 remain at the end, from row 2"):
        read(rows[:3], group, rows_per_group=2)
    with pytest.raises(DataError, match="rows 0 to 1 should be one group, but their 'kind' differs: 'a' and 'b'"):
        read(rows[1:3], group, rows_per_group=2)
    with pytest.raises(UsageError, match="3 rows cannot share a 2x2 group evenly"):
        read(rows, group, rows_per_group=3)


# --- images --------------------------------------------------------------------------------------------------


def test_images_open_one_by_one_in_rgb_and_a_broken_one_names_file_and_group(data, read, monkeypatch):
    save_image(data / "images" / "0.png", (30, 20), mode="RGBA")
    (data / "images" / "1.png").write_bytes(b"no image")
    opened: list[str] = []
    real = Image.open
    monkeypatch.setattr(Image, "open", lambda file, **how: (opened.append(str(file)), real(file, **how))[1])
    first, second, _ = (group.images[0] for group in read(ROWS).groups)
    assert opened == [], "reading a task decodes no image"
    shown = open_upright(first, "0")
    assert (shown.mode, shown.size, len(opened)) == ("RGB", (30, 20), 1)
    with pytest.raises(DataError, match=r"image 1\.png of group 1 cannot be read"):
        open_upright(second, "1")


def test_the_images_folder_may_be_a_link_but_an_image_may_not_lead_out_of_it(tmp_path, data):
    elsewhere = tmp_path / "elsewhere"
    shutil.move(data / "images", elsewhere)
    (data / "images").symlink_to(elsewhere)
    write(data / "rows.json", ROWS)
    task = task_file(tmp_path, PLAIN, PAIR)
    assert len(load(task, data).groups) == 3
    (elsewhere / "2.png").unlink()
    (elsewhere / "2.png").symlink_to(save_image(tmp_path / "private.png"))
    with pytest.raises(DataError, match=r"'image' of group 2: '2\.png' leaves the folder"):
        load(task, data)


# --- where the data are --------------------------------------------------------------------------------------


def test_the_data_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("TTMBENCH_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder().parts[-2:] == ("ttmbench", "data")
    monkeypatch.setenv("TTMBENCH_DATA", str(tmp_path / "mine"))
    assert data_folder() == tmp_path / "mine"
    assert data_folder(tmp_path / "given") == tmp_path / "given"


def test_what_is_missing_is_named_with_where_to_get_it(tmp_path, data):
    get = {"rows.json": "https://example.org/rows.json", "images/extra": "https://example.org/extra.zip"}
    with pytest.raises(OutOfReachError) as caught:
        load(task_file(tmp_path, {**PLAIN, "get": get}, PAIR), data)
    for words in (str(data), *(f"{name} from {url}" for name, url in get.items()), "`ttmbench download mine`"):
        assert words in str(caught.value)
    assert caught.value.exit_code == 4


def both(**more):
    second = {**PLAIN, "file": "second.json", "columns": {"images": ["image"], "captions": "texts"}}
    return {"kind": "first_of", "of": [{**PLAIN, "file": "first.json"}, second], **more}


def test_the_first_source_at_hand_is_read_and_recorded(tmp_path, data):
    task = task_file(tmp_path, both(), PAIR)
    with pytest.raises(OutOfReachError) as caught:
        load(task, data)
    text = str(caught.value)
    assert text.startswith("data not found in 2 places: (1) first.json is not in the data folder")
    assert "(2) second.json is not in the data folder" in text and "\n" not in text
    write(data / "second.json", [{"image": "0.png", "texts": ["good", "bad"]}])
    loaded = load(task, data)
    assert loaded.groups[0].captions == ("good", "bad")
    assert loaded.source["file"] == "second.json" and loaded.source["passed_over"] == ["annotations first.json"]
    write(data / "first.json", ROWS)
    loaded = load(task, data)
    assert len(loaded.groups) == 3 and loaded.source["file"] == "first.json" and "passed_over" not in loaded.source
    json.dumps(loaded.source)
    write(data / "first.json", "{")
    with pytest.raises(DataError, match=r"first\.json: is not JSON"):  # a wrong source is not passed over
        load(task, data)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"kind": "first_of", "of": []}, "'of'"),
        ({"kind": "first_of"}, "key 'of' is missing"),
        ({"kind": "first_of", "of": [{"file": "x.json"}]}, "every source needs a 'kind'"),
        ({"kind": "first_of", "of": [{"kind": "annotation"}]}, "did you mean 'annotations'"),
        (both(file="x"), "unknown key 'file'"),
        ({"kind": "first_of", "of": [{"kind": "annotations", "file": "x", "columns": {"image": "x"}}]}, "'images'"),
        ({"kind": "first_of", "of": [{"kind": "annotations", "file": "x", "columns": 3}]}, "must be a mapping, got 3"),
        ({"kind": "folder", "path": "x.json", "file": "y.json"}, "remove 'file'"),
        ({"kind": "annotations", "fille": "x"}, "unknown key 'fille'; did you mean 'file'"),
    ],
)
def test_a_wrong_source_is_a_usage_error(tmp_path, data, source, message):
    with pytest.raises(UsageError) as caught:
        load(task_file(tmp_path, source, PAIR), data)
    assert message in str(caught.value)


@pytest.fixture
def foils(tmp_path):
    """Loads a task with random foils of built-in groups."""

    def load_foils(limit=None, n=20, seed=0, shape=(2, 2), **changes):
        base = find("shapes_color").spec.source
        source = {"kind": "random_foils", "seed": seed, "of": [{**base, **changes}]}
        group = {"shape": list(shape), "n_groups": n}
        return load(task_data.task_file(tmp_path, source, group, "foils", metrics=["text_score"]), limit=limit)

    return load_foils


def test_each_group_keeps_a_pair_and_gets_one_of_another_group(foils):
    own = {group.group_id: group for group in load("shapes_color").groups}
    loaded = foils(n=len(own))
    assert loaded.source["random_foils"] == {"seed": 0, "pairs_of": len(own)}
    kept, drawn = set(), set()
    for group in loaded.groups:
        mine = own[group.group_id]
        pair = int(group.tags["pair"])
        assert (group.images[0], group.captions[0]) == (mine.images[pair], mine.captions[pair])
        other, place = group.tags["foils"].rsplit("/", 1)
        assert other != group.group_id, "the group's own other pair is the foil that was made for it"
        assert (group.images[1], group.captions[1]) == (own[other].images[int(place)], own[other].captions[int(place)])
        assert len(set(group.captions)) == 2
        kept.add(pair)
        drawn.add((other, place))
    assert kept == {0, 1} and len(drawn) > len(own) / 3, "both sides, and foils from all over"


def test_the_draw_depends_on_the_seed_and_not_on_the_limit(foils):
    count = find("shapes_color").spec.group.n_groups
    whole = foils(n=count).groups
    assert [group.tags for group in foils(limit=5, n=count).groups] == [group.tags for group in whole[:5]]
    assert [group.tags["foils"] for group in foils(n=count, seed=1).groups] != [group.tags["foils"] for group in whole]


def test_what_cannot_be_drawn_says_so(foils, folder_task, tmp_path):
    with pytest.raises(UsageError, match=r"as many images as captions, and group\.shape is 1x2"):
        foils(shape=(1, 2))
    folder = folder_task("one", n=1)
    source = yaml.safe_load((folder / "one.yaml").read_text())
    source["source"] = {"kind": "random_foils", "of": [source["source"]]}
    (folder / "one.yaml").write_text(yaml.safe_dump(source))
    with pytest.raises(DataError, match="1 groups have no pair that is a foil of group g0"):
        load(folder / "one.yaml")


# --- tags ----------------------------------------------------------------------------------------------------


TAGGED = {**PAIR, "constant_tags": {"subset": "mine"}, "tag_files": {"more": "tags/more.json"}}


def test_tags_from_a_file_are_added_and_recorded(data, read):
    loaded = read(ROWS, TAGGED)
    assert loaded.groups[0].tags == {"subset": "mine"} and loaded.source["tag_files"] == {"more": None}
    write(data / "tags" / "more.json", {"0": ["a", "b"], "1": [], "2": "c"})
    loaded = read(ROWS, TAGGED)
    assert [group.tags["more"] for group in loaded.groups] == ["a, b", "", "c"]
    assert loaded.source["tag_files"]["more"]["file"] == "tags/more.json"


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "is not JSON"), ("[]", "expected an object of group ids, got list"), ({"0": [3]}, "tags of group 0")],
)
def test_a_wrong_tag_file_is_named(data, read, content, message):
    write(data / "tags" / "more.json", content)
    with pytest.raises(DataError, match=r"more\.json") as caught:
        read(ROWS, TAGGED)
    assert message in str(caught.value)


# --- SugarCrepe ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_sugarcrepe(tmp_path_factory) -> Path:
    """The real annotation files in a data folder, where they are at hand, with a small image for every name."""
    origin = SHARED / "annotations" / "sugarcrepe"
    if not origin.is_dir():
        pytest.skip("real annotation files are not at hand")
    data = tmp_path_factory.mktemp("real")
    shutil.copytree(origin, data / "sugarcrepe")
    (data / "coco" / "val2017").mkdir(parents=True)
    small = save_image(data / "small.jpg").read_bytes()
    files = [json.loads((data / "sugarcrepe" / f"{name}.json").read_text(encoding="utf-8")) for name in SUGARCREPE]
    for image in {row["filename"] for rows in files for row in rows.values()}:
        (data / "coco" / "val2017" / image).write_bytes(small)
    return data


def test_the_real_annotations_of_sugarcrepe(real_sugarcrepe):
    for name, (rows, images) in SUGARCREPE.items():
        loaded = load(f"sugarcrepe_{name}", real_sugarcrepe)
        assert len(loaded.groups) == rows, name
        assert len({group.images[0].name for group in loaded.groups}) == images, name
        assert all(group.tags == {"subset": name} for group in loaded.groups)
        assert loaded.source["kind"] == "annotations" and "passed_over" not in loaded.source
    ids = [group.group_id for group in loaded.groups]
    assert "108" not in ids and ids[-1] == "245", "items are taken as they come, gaps and all"


@pytest.mark.parametrize("folder", ["sugarcrepe", "."])
def test_sugarcrepe_with_its_images_beside_its_files(tmp_path, folder):
    for name in ("1.jpg", "2.jpg"):
        write(tmp_path / folder / "val2017" / name, encoded(size=(8, 8)))
    write(tmp_path / folder / "swap_att.json", {"0": {"filename": "1.jpg", "caption": "yes", "negative_caption": "no"}})
    task = task_data.changed("sugarcrepe_swap_att", n_groups=1)
    place = lambda: data_locations(build_registry(), task, tmp_path)[0][0]  # noqa: E731
    loaded = load(task, tmp_path)
    assert loaded.source["images"] == ("val2017" if folder == "." else "sugarcrepe/val2017")
    assert loaded.groups[0].images[0].open().size == (8, 8) and loaded.source.get("revision") is None
    assert place().missing() == {}
    (tmp_path / folder / "val2017" / "1.jpg").unlink()
    (why,) = place().missing().values()
    assert why.startswith("image 1.jpg is not in ") and "fetches it whole" in why


def test_the_real_tags_of_winoground(tmp_path):
    """Diwan et al.'s file through the code that adds its tags."""
    origin = SHARED / "annotations" / "winoground_tags.json"
    if not origin.is_file():
        pytest.skip("the real tags are not at hand")
    (tmp_path / "winoground").mkdir()
    shutil.copy(origin, tmp_path / "winoground" / "new_tag_assignments.json")
    groups = [Group(str(index), (), ("a", "b")) for index in range(400)]
    loaded = finished(find("winoground").spec, Loaded(groups), tmp_path)
    tags = [group.tags["diwan"].split(", ") if group.tags["diwan"] else [] for group in loaded.groups]
    counts = {"Complex Reasoning": 78, "Unusual Image": 56, "Unusual Text": 50, "Ambiguously Correct": 46}
    counts |= {"Visually Difficult": 38, "Non Minimal": 30}
    assert Counter(tag for several in tags for tag in several) == counts
    assert sum(len(several) > 1 for several in tags) == 55 and sum(not several for several in tags) == 172


# --- COCO and Visual Genome spatial --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "file", "count", "image"),
    [
        ("whatsup_coco_one", "coco_qa_one_obj.json", 2247, "coco/val2017/000000000139.jpg"),
        ("whatsup_coco_two", "coco_qa_two_obj.json", 440, "coco/val2017/000000000139.jpg"),
        ("whatsup_vg_one", "vg_qa_one_obj.json", 1160, "whatsup/vg_images/139.jpg"),
        ("whatsup_vg_two", "vg_qa_two_obj.json", 291, "whatsup/vg_images/139.jpg"),
    ],
)
def test_spatial_rows_of_coco_and_visual_genome(tmp_path, task, file, count, image):
    save_image(tmp_path / image)
    rows = [[139, f"A photo of a cup on the left {i}", f"A photo of a cup on the right {i}"] for i in range(count)]
    write(tmp_path / "whatsup" / file, rows)
    loaded = load(task, tmp_path)
    assert loaded.groups[3].captions == ("A photo of a cup on the left 3", "A photo of a cup on the right 3")
    assert loaded.groups[3].images[0].name == Path(image).name and len(loaded.groups) == count
    with pytest.raises(DataError, match=f"has {count - 1} groups, but task '{task}'"):
        write(tmp_path / "whatsup" / file, rows[1:])
        load(task, tmp_path)


def test_a_folder_of_which_the_name_begins_alike_is_another_one(tmp_path):
    for name in ("a/x.png", "ab/x.png"):
        save_image(tmp_path / name)
    (tmp_path / "a" / "link.png").symlink_to(tmp_path / "ab" / "x.png")
    (tmp_path / "linked").symlink_to(tmp_path / "a")
    assert inside(tmp_path / "linked", "x.png", "here") == (tmp_path / "a" / "x.png").resolve()
    for name in ("link.png", "../ab/x.png"):
        with pytest.raises(DataError, match="leaves the folder"):
            inside(tmp_path / "a", name, "here")
