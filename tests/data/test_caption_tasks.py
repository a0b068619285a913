"""VALSE, hard positives and SugarCrepe++: small copies in the form of their releases, and the real annotations."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.task_data import changed, encoded, find, load, write

from ttmbench.cli import main
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import DataError
from ttmbench.scoring.inputs import open_upright

ANNOTATIONS = Path(__file__).resolve().parents[3] / "shared" / "annotations"
COLORS = ["red", "green", "blue", "white"]
VALSE = {  # instrument -> all rows, confirmed rows, folder of images, name of the n-th image
    "existence": (534, 505, "visual7w/images", "v7w_{}.jpg"),
    "plurals": (1000, 851, "coco/val2017", "{:012d}.jpg"),
    "counting-hard": (1000, 868, "visual7w/images", "v7w_{}.jpg"),
    "counting-small-quant": (1000, 900, "visual7w/images", "v7w_{}.jpg"),
    "counting-adversarial": (756, 691, "visual7w/images", "v7w_{}.jpg"),
    "relations": (614, 535, "coco/val2017", "{:012d}.jpg"),
    "action-replacement": (779, 648, "swig", "running_{}.jpg"),
    "actant-swap": (1042, 949, "swig", "running_{}.jpg"),
    "coreference-standard": (916, 708, "coco/train2014", "COCO_train2014_{:012d}.jpg"),
    "coreference-hard": (141, 104, "visdial/VisualDialog_val2018", "VisualDialog_val2018_{:012d}.jpg"),
    "foil-it": (1000, 943, "coco/val2014", "COCO_val2014_{:012d}.jpg"),
}
SUGARCREPE_PP = {"replace_att": 788, "replace_obj": 1652, "replace_rel": 1406, "swap_att": 666, "swap_obj": 245}
REPLACE = {"attribute": "vl_checklist_attributes", "relation": "vl_checklist_relations"}


def save(path: Path, color: str) -> None:
    write(path, encoded(color, (30, 24), "JPEG"))


@pytest.fixture
def valse(tmp_path) -> Path:
    """Four rows an instrument, as they are released; the third was not confirmed by its annotators."""
    for instrument, (_, _, folder, image) in VALSE.items():
        rows = {}
        for number, color in enumerate(COLORS):
            save(tmp_path / folder / image.format(number), color)
            votes = 1 if number == 2 else 2 + number % 2
            about = {"dataset": "SWiG", "original_split": "test", "dataset_idx": f"{number}"}
            about |= {"linguistic_phenomena": "actions", "classes": color, "classes_foil": "grey"}
            texts = {"caption": f"A {color} square.", "foil": "A grey square."}
            mturk = {"foil": 0, "caption": votes, "other": 3 - votes}
            key = f"{instrument.split('-')[0]}_test_{number}"
            rows[key] = {**about, **texts, "image_file": image.format(number), "mturk": mturk}
        write(tmp_path / "valse" / f"{instrument}.json", rows)
    return tmp_path


@pytest.fixture
def triples(tmp_path) -> Path:
    """Hard positives in two folders of files, of which rows belong together; and SugarCrepe++."""
    box = {"bbox_x": 2, "bbox_y": 3, "bbox_w": 10, "bbox_h": 12}
    replaced, swapped, triple = [], [], []
    for number, color in enumerate(COLORS):
        photo = f"VG_100K{'_2' if number % 2 else ''}/{number}.jpg"
        for path in (f"visual_genome/{photo}", f"aro/images/{number}.jpg", f"coco/val2017/{number:012d}.jpg"):
            save(tmp_path / path, color)
        texts = {"true_caption": f"{color} square", "false_caption": "green square"}  # the caption of the second image
        replaced.append({"image_id": str(number), "image_path": f"data/{photo}", **texts})
        texts = {
            "true_caption": f"the {color} square and the big circle",
            "false_caption": f"the big square and the {color} circle",
        }
        swapped.append({"image_path": f"{number}.jpg", "attributes": [color, "big"], **box, **texts})
        texts = {"caption": f"a {color} square", "caption2": f"a square which is {color}"}
        row = {"id": number, "filename": f"{number:012d}.jpg", "negative_caption": "a yellow square"}
        triple.append({**row, **texts})
    for name, rows, words in (
        *((name, replaced, "square that is {}") for name in REPLACE.values()),
        ("visual_genome_attribution", swapped, "the big circle and the {} square"),
    ):
        write(tmp_path / "hard_positives" / "data" / f"{name}.json", rows)
        positive = [{**row, "true_caption": words.format(c)} for row, c in zip(rows, COLORS, strict=True)]
        write(tmp_path / "hard_positives" / "swapped_data" / f"{name}.json", positive)
    for subset in SUGARCREPE_PP:
        write(tmp_path / "sugarcrepe_pp" / f"{subset}.json", triple)
    return tmp_path


def test_only_confirmed_rows_of_every_instrument_are_read(valse):
    for instrument, (_, _, _, image) in VALSE.items():
        loaded = load(changed(f"valse_{instrument}", n_groups=None), valse)
        assert [group.images[0].name for group in loaded.groups] == [image.format(at) for at in (0, 1, 3)]
        assert loaded.groups[0].captions == ("A red square.", "A grey square.")
        assert loaded.groups[0].tags["instrument"] == instrument
    every = load(changed("valse", n_groups=None), valse).groups
    assert len(every) == 33 and every[0].group_id == "actant-swap/actant_test_0"
    assert {(group.tags["instrument"], group.tags["piece"]) for group in every} == {
        (group.tags["instrument"], group.tags["piece"])
        for name in VALSE
        for group in load(changed(f"valse_{name}", n_groups=None), valse).groups
    }


def test_a_row_and_the_one_beside_it_make_a_triple(triples):
    for kind in REPLACE:
        first = load(changed(f"hard_positives_replace_{kind}", n_groups=None), triples).groups[0]
        assert first.captions == ("red square", "square that is red", "green square")
        assert first.images[0].name == "VG_100K/0.jpg"
    kept = load(changed("hard_positives_replace_relation_clean", n_groups=None), triples).groups
    assert [group.group_id for group in kept] == ["0", "2", "3"], "ids stay those of the whole data"
    assert len(load(changed("hard_positives_replace_attribute_clean", n_groups=None), triples).groups) == 4
    task = changed("hard_positives_swap", n_groups=None)  # a small copy has none of the 117 pairs that its mean is over
    swap = load(TaskFile(task.spec.model_copy(update={"means": {}}), task.folder), triples).groups[0]
    assert swap.captions[1] == "the big circle and the red square" and swap.tags == {"attributes": "red_big"}
    assert open_upright(swap.images[0], "0").size == (10, 12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [rows[1], rows[0], *rows[2:]], "'image_path' of row 0 is 'data/VG_100K_2/1.jpg', and 'data/VG_1"),
        (lambda rows: rows[:-1], "has no row 3, and 'positive' must have one"),
        (lambda rows: [*rows, rows[0]], "has more rows than the file that 'positive'"),
        (lambda rows: [{**rows[0], "false_caption": "x"}, *rows[1:]], "'false_caption' of row 0"),
    ],
    ids=["order", "fewer", "more", "other negative"],
)
def test_files_that_do_not_stand_beside_each_other(triples, change, message):
    path = triples / "hard_positives" / "swapped_data" / "vl_checklist_attributes.json"
    write(path, change(json.loads(path.read_text(encoding="utf-8"))))
    with pytest.raises(DataError, match=message):
        load(changed("hard_positives_replace_attribute", n_groups=None), triples)


def test_the_public_command_measures_triples_on_a_small_copy(triples, tmp_path):
    out = tmp_path / "x.json"
    asked = ["--tasks", "hard_positives_*,sugarcrepe_pp_*", "--limit", "3", "--data_dir", str(triples)]
    assert main(["--model", "tiny-clip", *asked, "--use_cache", "off", "-o", str(out)]) == 0
    document = json.loads(out.read_text(encoding="utf-8"))
    chance = document["chance"]["hard_positives_replace_attribute"]
    assert chance["original_accuracy"] == 0.5
    assert chance["augmented_accuracy"] == chance["brittleness"] == pytest.approx(1 / 3)
    assert document["datasets"]["hard_positives_swap"]["true_captions"] == 2
    assert document["higher_is_better"]["hard_positives_swap"]["brittleness"] is False
    replace, parts = document["groups"]["hard_positives_replace"], [f"hard_positives_replace_{one}" for one in REPLACE]
    assert document["group_subtasks"]["hard_positives_replace"] == parts
    for key in ("brittleness,none", "augmented_accuracy,none"):
        assert replace[key] == pytest.approx(sum(document["results"][part][key] for part in parts) / 2)
    for subset in SUGARCREPE_PP:
        results = document["results"][f"sugarcrepe_pp_{subset}"]
        assert results["text_only_score,none"] is not None and results["text_score,none"] is not None


@pytest.mark.slow
@pytest.mark.skipif(not (ANNOTATIONS / "valse").exists(), reason="the real annotations are not at hand")
def test_real_valse(tmp_path):
    (tmp_path / "valse").symlink_to(ANNOTATIONS / "valse")
    for instrument, (_, confirmed, folder, _) in VALSE.items():
        rows = json.loads((tmp_path / "valse" / f"{instrument}.json").read_text(encoding="utf-8"))
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for image in {row["image_file"] for row in rows.values()}:
            os.close(os.open(tmp_path / folder / image, os.O_CREAT))  # 7,000 of them
        groups = load(changed(f"valse_{instrument}", n_groups=confirmed), tmp_path).groups
        votes = [rows[group.group_id]["mturk"]["caption"] for group in groups]
        assert len(groups) == confirmed and min(votes) == 2, instrument
        assert all(one.captions == (rows[one.group_id]["caption"], rows[one.group_id]["foil"]) for one in groups)
    task = find("valse")
    every = load(task, tmp_path).groups
    assert len(every) == 7702 and len({group.group_id for group in every}) == 7702
    for name, cells in (("over_11_instruments", 11), ("over_7_pieces", 11)):
        mean = task.spec.means[name]
        assert mean.problem(every) is None and len(mean.members(every)) == cells
    assert len({cell[0] for cell in task.spec.means["over_7_pieces"].members(every)}) == 7


@pytest.mark.skipif(not (ANNOTATIONS / "sugarcrepe_pp").exists(), reason="the real annotations are not at hand")
def test_real_sugarcrepe_pp(tmp_path):
    (tmp_path / "sugarcrepe_pp").symlink_to(ANNOTATIONS / "sugarcrepe_pp")
    (tmp_path / "coco" / "val2017").mkdir(parents=True)
    defects = {}
    for subset, count in SUGARCREPE_PP.items():
        rows = json.loads((tmp_path / "sugarcrepe_pp" / f"{subset}.json").read_text(encoding="utf-8"))
        for image in {row["filename"] for row in rows}:
            (tmp_path / "coco" / "val2017" / image).touch()
        groups = load(find(f"sugarcrepe_pp_{subset}"), tmp_path).groups
        assert [group.group_id for group in groups] == [str(number) for number in range(count)]
        assert groups[5].captions == tuple(rows[5][key] for key in ("caption", "caption2", "negative_caption"))
        defects[subset] = [group.group_id for group in groups if len(set(group.captions)) < 3]
        known = changed(f"sugarcrepe_pp_{subset}", n_groups=None).spec.group.known_defects
        assert ("equal_captions" in known) == bool(defects[subset])
    assert {subset: ids for subset, ids in defects.items() if ids} == {"replace_att": ["14"], "swap_obj": ["2", "8"]}
