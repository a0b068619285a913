"""What of the data a task reads: nested cells, conditions on rows, the first rows of a file, boxes, tags, arrays."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import numpy as np
import pytest
import torch
from PIL import Image
from support.task_data import find, load, task_file, write

from ttmbench.cli import main
from ttmbench.data.rows import Condition, PathPart, Row, box_of, cropped, kept_rows, listed, read_rows
from ttmbench.data.task_file import GroupSpec
from ttmbench.errors import DataError, UsageError
from ttmbench.scoring.inputs import Inputs, open_upright
from ttmbench.types import Group, ImageRef

CELLS = {"id": 3, "box": {"x": 1.5, "y": 2}, "texts": {"POS": ["a", "b"], "NEG": ["c"]}, "one": "alone"}
ROW = Row("7", CELLS, 7, "rows.json")


@pytest.mark.parametrize("column", ["box.z", "texts.POS.2", "one.1", "id.x", "texts.POS.-1", "one.__class__"])
def test_inner_cells_that_are_not_there_are_told(column):
    with pytest.raises(DataError, match=r"rows.json: row 7 has no column '.*'; it has id, box, texts, one"):
        ROW.cell(column)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "", "  ", b"x", ["a"], {"a": 1}])
def test_what_is_no_id_is_refused(value):
    row = Row("0", {"id": value, "deep": {"id": value}}, 5, "rows.csv")
    for column, name in (("id", "id"), ("deep.id", "deep.id"), ("v-{id}", "id")):
        with pytest.raises(DataError, match=rf"^rows\.csv: '{name}' of row 5 is .*; an id must be text"):
            row.group_id(column)


@pytest.mark.parametrize(
    ("value", "name"),
    [(1.5, "1.5"), ("nan", "nan"), (" a ", " a "), (0, "0"), (np.int64(3), "3"), (date(2020, 1, 2), "2020-01-02")],
)
def test_numbers_and_texts_are_ids(value, name):
    assert Row("0", {"id": value}, 0).group_id("id") == name
    assert Row("0", {"id": value}, 0, file="x").group_id("id") == f"x/{name}"


@pytest.mark.parametrize("content", [torch.zeros(3), {"a": torch.zeros(3)}, {"a": []}])
def test_a_pickle_without_lists_is_told(tmp_path, content):
    torch.save(content, tmp_path / "rows.pt")
    with pytest.raises(DataError, match=r"rows\.pt: must hold a mapping of names to lists"):
        list(read_rows(tmp_path / "rows.pt"))


@pytest.mark.parametrize(
    ("template", "error", "message"),
    [
        ("{one:03d}.png", DataError, "'one' of row 7 is 'alone', not a whole number"),
        ("{id.__class__}", DataError, "has no column 'id.__class__'"),
        ("{id!r}", UsageError, "only digits and 'd' may stand"),
        ("{id:>999999}", UsageError, "only digits and 'd' may stand"),
        ("{id", UsageError, "is not a template"),
    ],
)
def test_a_template_is_of_columns_and_nothing_else(template, error, message):
    with pytest.raises(error, match=message):
        ROW.value(template)


def test_templates_and_tags_reach_inner_cells():
    assert ROW.value("{texts.POS.0}_{id:03d}") == "a_003"
    row = Row("0", {"image0": "kubric/12/a.png", "attributes": ["white", "brown"], "n": None}, 0)
    assert row.tags(["attributes", "n"]) == {"attributes": "white, brown", "n": ""}
    parts = {
        "pair": "{attributes.0}_{attributes.1}",
        "subset": PathPart(column="image0", part=0),
        "count": PathPart(column="image0", part=1, names={"12": "a dozen", "13": "more"}),
        "both": PathPart(column="{attributes.0} {attributes.1}", names={"red*": "no", "*brown": "yes", "*": "no"}),
        "same": PathPart(column="image0", names={"clevr*": "no"}),
        "literal": PathPart(column="odd", names={"a[1]": "yes", "*": "no"}),
    }
    row = replace(row, cells={**row.cells, "odd": "a[1]"})
    expected = {"pair": "white_brown", "subset": "kubric", "count": "a dozen", "both": "yes", "literal": "yes"}
    assert row.tags(parts) == {**expected, "same": "kubric/12/a.png"}
    with pytest.raises(DataError, match="has no part 3"):
        row.tags({"t": PathPart(column="image0", part=3)})


ROWS = [{"n": n, "kind": "ab"[n % 2], "text": None if n == 4 else f"t{n}"} for n in range(6)]


@pytest.mark.parametrize(
    ("where", "first", "kept"),
    [
        ({}, None, [0, 1, 2, 3, 4, 5]),
        ({"kind": "a"}, None, [0, 2, 4]),
        ({"n": [1, 5, 9]}, None, [1, 5]),
        ({"text": {"starts_with": "t"}}, 3, [0, 1, 2]),
        ({"text": {"starts_with": "t3"}}, None, [3]),
        ({"n": {"at_least": 2, "any_of": [1, 2, 4]}, "kind": "a"}, None, [2, 4]),
        ({"text": {"differs_from": "kind"}}, None, [0, 1, 2, 3, 4, 5]),
        ({"n": {"at_least": 1}}, 2, [1, 2]),
        ({}, 3, [0, 1, 2]),
    ],
)
def test_rows_are_kept_by_conditions_and_then_the_first(where, first, kept):
    rows = [Row(str(n), cells, n) for n, cells in enumerate(ROWS)]
    columns = GroupSpec.model_validate({"where": where, "first_rows": first})
    assert [row.cells["n"] for row in kept_rows(rows, dict(columns))] == kept


def test_numbers_of_csv_files_are_texts_and_truth_is_no_number():
    def holds(column: str, **stated: object) -> bool:
        return Condition.model_validate(stated).holds(Row("0", {"n": "3", "yes": True}, 0), column)

    assert holds("n", any_of=[3]) and holds("n", at_least=3) and not holds("n", at_least=4)
    assert holds("yes", any_of=[True]) and not holds("yes", any_of=[1])
    assert holds("n", differs_from="yes") and not holds("n", differs_from="n")
    with pytest.raises(DataError, match="'yes' of row 0 is True, not a number"):
        holds("yes", at_least=1)


# --- boxes ---------------------------------------------------------------------------------------------------


def gradient(width=8, height=6):
    """Every pixel tells its place."""
    y, x = np.mgrid[:height, :width]
    return Image.fromarray(np.stack([x, y, np.full_like(x, 9)], axis=2).astype(np.uint8))


def test_a_box_is_rounded_as_pillow_does():
    assert box_of(Row("0", {"x": "1.5", "y": 2.5, "w": 3.0, "h": 2}, 0), ["x", "y", "w", "h"], "g") == (2, 2, 4, 4)


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ((0, 0, 0, 5), "is empty"),
        ((0, 0, 5, -1), "is empty"),
        (("a", 0, 5, 5), "'x' of row 0 is 'a', not a number"),
        ((0, None, 5, 5), "'y' of row 0 is None, not a number"),
        ((0, 0, float("nan"), 5), "not a number of pixels"),
        ((0, 0, 1e9, 5), "not a number of pixels"),
        ((True, 0, 4, 5), "not a number"),
    ],
)
def test_a_box_that_is_none_is_told(box, message):
    with pytest.raises(DataError, match=message):
        box_of(Row("0", dict(zip("xywh", box, strict=True)), 0), list("xywh"), "g")


def test_the_part_in_the_box_is_what_is_read_and_outside_is_black():
    whole = ImageRef("a.png", gradient, read=lambda: b"file")
    part = cropped(whole, (2, 1, 5, 3))
    pixels = np.asarray(open_upright(part, "g"))
    assert pixels.shape == (2, 3, 3) and np.array_equal(pixels, np.asarray(gradient())[1:3, 2:5])
    assert part.name == "a.png[2,1,3,2]"
    values = np.asarray(open_upright(cropped(whole, (-2, 4, 3, 8)), "g"))
    assert values.shape == (4, 5, 3)
    assert not values[:, :2].any() and not values[2:].any() and np.array_equal(values[0, 2:, 0], [0, 1, 2])


def test_parts_of_an_image_have_digests_of_their_own():
    whole = ImageRef("a.png", gradient, read=lambda: b"file")
    parts = (whole, cropped(whole, (0, 0, 2, 2)), cropped(whole, (0, 0, 2, 3)))
    data = Inputs([Group("g", parts, ("x",))])
    assert data.digest() and len(set(data.digests.values())) == 3 and len(set(data.contents.values())) == 1


def test_a_box_is_of_the_image_as_it_is_turned():
    image = gradient()
    exif = image.getexif()
    exif[0x0112] = 6  # turn by 90 degrees
    image.info["exif"] = exif.tobytes()
    turned, stored = (cropped(ImageRef("a", lambda: image, exif=how), (0, 0, 2, 2)) for how in ("apply", "ignore"))
    assert np.asarray(open_upright(stored, "g"))[0, 0].tolist() == [0, 0, 9]
    assert np.asarray(open_upright(turned, "g"))[0, 0].tolist() == [0, 5, 9], "the lower left corner goes up"


# --- files ---------------------------------------------------------------------------------------------------


def task_of(folder, source, group, **more):
    return find(task_file(folder, source, group, **more))


@pytest.fixture
def data(tmp_path):
    """Two folders of images and two files of rows, in the formats that several releases have."""
    for folder, names in (("one", "ab"), ("two", "bc")):
        (tmp_path / "data" / folder).mkdir(parents=True)
        for name in names:
            gradient(8 if folder == "one" else 10).save(tmp_path / "data" / folder / f"{name}.png")
    first = [[f"vg/{name}.png", {"POS": [f"good {name}"], "NEG": [f"bad {name}"]}] for name in "abc"]
    second = [["c.png", {"POS": ["fine"], "NEG": ["fine"]}], ["a.png", {"POS": ["x"], "NEG": ["y"]}]]
    write(tmp_path / "data" / "first.json", first)
    write(tmp_path / "data" / "second.json", second)
    return tmp_path / "data"


FILES = {
    "kind": "annotations",
    "files": {"vg_color": "first.json", "hake": {"file": "second.json", "cells": {"source": "hake"}}},
    "images": ["one", "two"],
    "strip": "vg/",
    "fields": ["image", "texts"],
}
PAIR = {"shape": [1, 2], "images": ["image"], "captions": ["texts.POS.0", "texts.NEG.0"]}


def test_several_files_make_one_task_and_images_lie_in_several_folders(tmp_path, data):
    loaded = load(task_of(tmp_path, FILES, {**PAIR, "first_rows": 2}), data)
    assert [group.group_id for group in loaded.groups] == ["vg_color/0", "vg_color/1", "hake/0", "hake/1"]
    assert [group.images[0].open().width for group in loaded.groups] == [8, 8, 10, 8], "the first folder that has it"
    assert set(loaded.source["files"]) == {"first.json", "second.json"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"kind": "annotations"}, "needs either 'file' or 'files'"),
        ({"kind": "annotations", "file": "a.json", "files": {"x": "b.json"}}, "needs either 'file' or 'files'"),
        ({"kind": "annotations", "file": "a.json", "images": []}, "should name a folder"),
        ({"kind": "annotations", "files": {"a": "a.json"}, "join": {"b": "b.json"}}, "'join' requires 'file'"),
    ],
)
def test_wrong_options_are_told(tmp_path, data, source, message):
    with pytest.raises(UsageError, match=message):
        load(task_of(tmp_path, source, PAIR), data)


@pytest.mark.parametrize("text", ["nothing", "3", "[1", "{'a': 1}", "[" * 5000, "__import__('os')", "-" * 9000 + "1"])
def test_a_text_that_is_no_list_is_told(text):
    with pytest.raises(DataError, match=r"'hard' of row 0 is .*, which is not a list"):
        listed(Row("0", {"hard": text}, 0), "hard")


def array_image(tmp_path, data, array, **source):
    """The image of a task whose only image is an array in a file."""
    np.save(data / "one" / "frame.npy", array)
    write(data / "rows.json", [{"image": "frame.npy", "good": "a", "bad": "b"}])
    source = {"kind": "annotations", "file": "rows.json", "images": "one", **source}
    task = task_of(tmp_path, source, {"shape": [1, 2], "images": ["image"], "captions": ["good", "bad"]})
    return open_upright(load(task, data).groups[0].images[0], "0")


@pytest.mark.parametrize(("order", "first"), [("rgb", [0, 0, 9]), ("bgr", [9, 0, 0])])
def test_images_may_be_arrays(tmp_path, data, order, first):
    opened = array_image(tmp_path, data, np.asarray(gradient()), npy=order)
    assert opened.size == (8, 6) and np.asarray(opened)[0, 0].tolist() == first


@pytest.mark.parametrize(("shape", "kind"), [((4, 4), np.uint8), ((4, 4, 3), np.float32), ((4, 4, 4), np.uint8)])
def test_an_array_that_is_no_image_is_told(tmp_path, data, shape, kind):
    with pytest.raises(DataError, match=r"expected uint8 \[height, width, 3\]"):
        array_image(tmp_path, data, np.zeros(shape, kind))


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        ("--model tiny-clip --tasks vsr", "asks of one image and one statement whether it is true"),
        *((words, "arXiv:2205.00363") for words in ("show VSR", "download vsr-random")),
        ("show half-truths", "arXiv:2602.23906"),
        ("show Auto-Comp", "arXiv:2602.02043"),
        ("show negbench_msr_vtt", "MediaFire"),
    ],
)
def test_a_dataset_that_is_not_here_says_why(words, fact, capsys):
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert fact in said and said.count("\n") == 1
