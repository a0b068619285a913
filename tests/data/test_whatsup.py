"""WhatsUp's photographs: scenes by file names and by captions, pairs, and the two that are labelled wrongly."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image
from support import task_data
from support.task_data import encoded, find, write

from ttmbench.data.loader import data_locations
from ttmbench.data.sources.whatsup import told_by_captions
from ttmbench.errors import DataError, OutOfReachError, UsageError
from ttmbench.plugins.registry import build_registry
from ttmbench.types import Group, ImageRef

SETS = {
    "a": ("controlled_images", "controlled_images_dataset.json", 103, ("left_of", "on", "right_of", "under")),
    "b": ("controlled_clevr", "controlled_clevr_dataset.json", 102, ("behind", "left_of", "in-front_of", "right_of")),
}
WORDS = {"on": "on", "under": "under", "left_of": "to the left of", "right_of": "to the right of", "behind": "behind"}
WORDS["in-front_of"] = "in front of"


def scenes_of(which: str) -> list[tuple[str, str]]:
    """As many pairs of objects as the set has, one of them the pillow and the chair in set A."""
    pairs = [(f"beer-bottle{index}", "armchair") for index in range(SETS[which][2])]
    if which == "a":
        pairs[7] = ("pillow", "chair")
    return pairs


def options(first: str, second: str, relation: str, relations: tuple[str, ...]) -> list[str]:
    """The four captions of a photograph, the true one first and the others in the order of the set."""
    order = [relation, *(other for other in relations if other != relation)]
    return [f"A {first.replace('-', ' ')} {WORDS[one]} a {second}" for one in order]


def archive(root: Path, which: str) -> Path:
    """An archive in the original's format: photographs one by one, not scene by scene, each a colour of its own."""
    folder, file, _, relations = SETS[which]
    rows = []
    for number, relation in enumerate(relations):
        for index, (first, second) in enumerate(scenes_of(which)):
            name = f"{first}_{relation}_{second}.jpeg"
            write(root / "whatsup" / folder / name, encoded((index, 60 * number, 0), (6, 4), "JPEG"))
            captions = options(first, second, relation, relations)
            rows.append({"image_path": f"data/{folder}/{name}", "caption_options": captions})
    write(root / "whatsup" / file, rows)
    return root


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data")
    return archive(archive(root, "a"), "b")


def load(task: str, data: Path, limit: int | None = None, **changes: object):
    data.mkdir(exist_ok=True)
    return task_data.load(task_data.changed(task, changes), data, limit=limit)


def test_single_photographs_scene_by_scene(data):
    loaded = load("whatsup_a", data)
    assert len(loaded.groups) == 412
    expected = [f"beer-bottle0_{relation}_armchair" for relation in ("on", "under", "left_of", "right_of")]
    assert [group.group_id for group in loaded.groups[:4]] == expected
    third = loaded.groups[2]
    assert third.captions[0] == "A beer bottle0 to the left of a armchair" and len(set(third.captions)) == 4
    assert third.images[0].name == "controlled_images/beer-bottle0_left_of_armchair.jpeg"
    assert third.tags == {"scene": "beer-bottle0__armchair", "relation": "left_of"}
    assert len(load("whatsup_b", data).groups) == 408
    assert [group.group_id for group in load("whatsup_a", data, limit=5).groups][4] == "beer-bottle1_on_armchair"


@pytest.mark.parametrize(
    ("task", "count", "relations"),
    [
        ("whatsup_a_left_right", 103, ("left_of", "right_of")),
        ("whatsup_a_on_under", 103, ("on", "under")),
        ("whatsup_b_left_right", 102, ("left_of", "right_of")),
        ("whatsup_b_front_behind", 102, ("in-front_of", "behind")),
    ],
)
def test_pairs_of_a_scene(data, task, count, relations):
    loaded = load(task, data)
    assert len(loaded.groups) == count
    group = loaded.groups[1]
    assert group.group_id == "beer-bottle1__armchair"
    assert group.captions == tuple(f"A beer bottle1 {WORDS[relation]} a armchair" for relation in relations)
    names = [Path(image.name).stem for image in group.images]
    assert names == [f"beer-bottle1_{relation}_armchair" for relation in relations]
    assert loaded.source["data"]["kind"] == "annotations" and loaded.source["relations"] == list(relations)


def test_the_pillow_and_the_chair_are_exchanged_and_recorded(data):
    loaded = load("whatsup_a_left_right", data)
    (pair,) = (group for group in loaded.groups if group.group_id == "pillow__chair")
    assert pair.captions == ("A pillow to the left of a chair", "A pillow to the right of a chair")
    assert [Path(image.name).stem for image in pair.images] == ["pillow_right_of_chair", "pillow_left_of_chair"]
    assert loaded.source["fix_labels"] is True
    assert loaded.source["corrections"] == ["images of pillow_left_of_chair and pillow_right_of_chair exchanged"]
    asis = load("whatsup_a_left_right", data, fix_labels=False)
    (pair,) = (group for group in asis.groups if group.group_id == "pillow__chair")
    assert [Path(image.name).stem for image in pair.images] == ["pillow_left_of_chair", "pillow_right_of_chair"]
    assert asis.source["fix_labels"] is False and asis.source["corrections"] == []
    single = {group.group_id: group for group in load("whatsup_a", data).groups}
    assert Path(single["pillow_left_of_chair"].images[0].name).stem == "pillow_right_of_chair"
    assert Path(single["pillow_on_chair"].images[0].name).stem == "pillow_on_chair"
    json.dumps(loaded.source)


def mirror(root: Path, which: str, in_a_list: bool) -> Path:
    """The mirror's format: a split a set, image_options and caption_options, no file names."""
    import datasets

    relations = SETS[which][3]
    rows = [(index, relation, pair) for index, pair in enumerate(scenes_of(which)) for relation in relations]
    images = [Image.new("RGB", (6, 4), (index, 60 * relations.index(relation), 0)) for index, relation, _ in rows]
    columns = {
        "image_options": [[image] for image in images] if in_a_list else images,
        "caption_options": [options(*pair, relation, relations) for _, relation, pair in rows],
    }
    split = f"Controlled_Images_{which.upper()}"
    (root / "data").mkdir(parents=True)
    datasets.Dataset.from_dict(columns).to_parquet(root / "data" / f"{split}-00000-of-00001.parquet")
    (root / "data" / "VG_Relation-00000-of-00001.parquet").write_bytes(b"a large split that nobody asked for")
    return root


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("which", "in_a_list"), [("a", False), ("b", True)])
def test_the_mirror_gives_the_same_groups_without_file_names(tmp_path, data, monkeypatch, which, in_a_list):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    local = str(mirror(tmp_path / "mirror", which, in_a_list))
    tasks = {"a": ["whatsup_a", "whatsup_a_left_right", "whatsup_a_on_under"], "b": ["whatsup_b_front_behind"]}
    for task in tasks[which]:
        archived = load(task, data)
        of = find(task).spec.source["of"]
        mirrored = load(task, tmp_path / "nothing", of=[of[0], {**of[1], "path": local}])
        assert mirrored.source["data"]["passed_over"] == [f"annotations whatsup/{SETS[which][1]}"]
        assert mirrored.source["data"]["kind"] == "huggingface"
        assert mirrored.source["corrections"] == archived.source["corrections"]
        for one, other in zip(archived.groups, mirrored.groups, strict=True):
            assert (one.group_id, one.captions, one.tags) == (other.group_id, other.captions, other.tags)
        pillow = [index for index, one in enumerate(archived.groups) if "pillow" in one.group_id]
        for index in (0, *pillow):
            for left, right in zip(archived.groups[index].images, mirrored.groups[index].images, strict=True):
                close = zip(left.open().getpixel((0, 0)), right.open().getpixel((0, 0)), strict=True)
                assert all(abs(a - b) < 12 for a, b in close), "the same images, also exchanged ones (JPEG is lossy)"


def photo(*captions: str) -> Group:
    return Group("17", (ImageRef("x", lambda: None),), captions)


def test_captions_tell_objects_and_relation():
    for relation, words in WORDS.items():
        others = [f"A cup {other} a saucer." for other in WORDS.values() if other != words][:3]
        assert told_by_captions(photo(f"A cup {words} a saucer.", *others)) == ("cup", relation, "saucer")
    group = photo("The front left cup under the box", "The front left cup on the box")
    assert told_by_captions(group) == ("front-left-cup", "under", "box")
    with pytest.raises(DataError, match="photograph 17: the relation cannot be determined from 'A cup near a box'"):
        told_by_captions(photo("A cup near a box", "A cup on a box"))
    with pytest.raises(DataError, match="cannot be determined"):
        told_by_captions(photo("under a box", "on a box"))


@pytest.mark.parametrize(
    ("change", "task", "message"),
    [
        (lambda rows: rows[:-1], "whatsup_a_on_under", "scene beer-bottle102__armchair has no photograph of 'under'"),
        (lambda rows: rows + rows[:1], "whatsup_a", "scene beer-bottle0__armchair has two photographs of 'left_of'"),
        (
            lambda rows: [row for row in rows if "pillow" not in row["image_path"]],
            "whatsup_a",
            "needs photograph pillow_left_of_chair, which the data do not have; --task_args fix_labels=false",
        ),
    ],
)
def test_wrong_photographs_are_named(tmp_path, change, task, message):
    root = archive(tmp_path, "a")
    file = root / "whatsup" / SETS["a"][1]
    file.write_text(json.dumps(change(json.loads(file.read_text(encoding="utf-8")))), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        load(task, root)
    assert message in str(caught.value) and not isinstance(caught.value, OutOfReachError)


@pytest.mark.parametrize(
    ("task", "changes", "message"),
    [
        ("whatsup_a", {"relations": ["left_of", "right_of"]}, "with 'relations' makes 2x2 groups"),
        ("whatsup_a_left_right", {"relations": None}, "without 'relations' makes 1x4 groups"),
        ("whatsup_a_left_right", {"relations": ["left", "right"]}, "'left' is unknown; known: on, under"),
        ("whatsup_a", {"seed": 3}, "unknown key 'seed'"),
    ],
)
def test_wrong_options_are_told(data, task, changes, message):
    with pytest.raises(UsageError) as caught:
        load(task, data, **changes)
    assert message in str(caught.value)


# --- other layouts, links, and what is missing ---------------------------------------------------------------


@pytest.mark.parametrize("folder", ["whatsup_a_raw", "."])
def test_folders_of_the_authors_code_are_read_as_they_are(tmp_path, data, folder):
    moved = tmp_path / "cache" / folder
    shutil.copytree(archive(tmp_path / "own", "a") / "whatsup", moved, dirs_exist_ok=True)
    documented, found = load("whatsup_a_left_right", data), load("whatsup_a_left_right", tmp_path / "cache")
    assert found.groups == documented.groups
    file = "controlled_images_dataset.json"
    assert found.source["data"]["file"] == (file if folder == "." else f"{folder}/{file}")
    assert found.source["data"]["sha256"] == documented.source["data"]["sha256"]
    places, _ = data_locations(build_registry(), find("whatsup_a"), tmp_path / "cache")
    assert places[0].missing() == {}
    with pytest.raises(OutOfReachError, match=r"whatsup/controlled_clevr_dataset\.json and whatsup/controlled_clevr"):
        load("whatsup_b", tmp_path / "cache")


def test_captions_that_were_corrected_need_no_exchange(tmp_path):
    root = archive(tmp_path, "a")
    file = root / "whatsup" / SETS["a"][1]
    rows = json.loads(file.read_text(encoding="utf-8"))
    one, other = (next(row for row in rows if f"pillow_{side}_of" in row["image_path"]) for side in ("left", "right"))
    one["caption_options"], other["caption_options"] = other["caption_options"], one["caption_options"]
    file.write_text(json.dumps(rows), encoding="utf-8")
    loaded = load("whatsup_a_left_right", root)
    (pair,) = (group for group in loaded.groups if group.group_id == "pillow__chair")
    assert [Path(image.name).stem for image in pair.images] == ["pillow_left_of_chair", "pillow_right_of_chair"]
    assert loaded.source["corrections"] == []
