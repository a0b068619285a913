"""Task files of kind retrieval and classification, and copies of the real releases: names, nesting, columns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.task_data import changed as changed_task
from support.task_data import encoded, find, load
from support.task_data import write as written

from ttmbench.cli import main
from ttmbench.data.classes import labels_of, load_classes
from ttmbench.data.task_file import find_task
from ttmbench.errors import DataError, UsageError
from ttmbench.plugins.registry import build_registry

RETRIEVAL = {
    "task": "mine",
    "version": 1,
    "kind": "retrieval",
    "source": {"kind": "folder", "path": "rows.jsonl", "images": "."},
    "group": {"n_groups": 3, "n_captions": 6, "images": ["image"], "captions": "caption"},
    "metrics": ["i2t_recall_at_1"],
}
CLASSES = {
    "task": "mine",
    "version": 1,
    "kind": "classification",
    "source": {"kind": "folder", "path": "rows.jsonl", "images": "."},
    "group": {"n_groups": 3, "images": ["image"], "label": "label"},
    "classes": {"names": ["cat", "dog"]},
    "metrics": ["accuracy_top1"],
}


def write(folder: Path, spec: dict, rows: list[dict] = ()) -> Path:
    for row in rows:
        written(folder / row["image"], encoded(size=(6, 4)))
    written(folder / "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return written(folder / "mine.yaml", spec)  # JSON is YAML


PAIRS = {
    "task": "mine",
    "version": 1,
    "source": {"kind": "rendered", "scene": "color"},
    "group": {"shape": [2, 2], "n_groups": 3},
    "metrics": ["group_match"],
}


def changed(spec: dict, path: str, value: object) -> dict:
    """The same task with another value at a path, or without it."""
    found = inner = json.loads(json.dumps(spec))
    *outer, last = path.split(".")
    for key in outer:
        inner = inner.setdefault(key, {})
    inner[last] = value
    if value is None:
        del inner[last]
    return found


@pytest.mark.parametrize(
    ("spec", "path", "value", "message"),
    [
        (PAIRS, "licence", "MIT", "unknown key 'licence'; did you mean 'license'?"),
        (PAIRS, "group.n_group", 3, "unknown key 'group.n_group'; did you mean 'n_groups'?"),
        (PAIRS, "version", None, "key 'version' is missing"),
        (PAIRS, "version", "one", "'version'"),
        (PAIRS, "group.shape", [1, 1], "1x1"),
        (PAIRS, "metrics", [], "'metrics'"),
        (PAIRS, "source.kind", None, "'kind'"),
        (PAIRS, "ttm.defaults.epoch", 3, "ttm.defaults: unknown key 'epoch'"),
        (PAIRS, "ttm.defaults.lr", -1, "ttm.defaults"),
        (PAIRS, "group.wrong_sizes", {"four": "no"}, "'group.wrong_sizes"),
        (PAIRS, "group.where", {"n": {"at_lest": 2}}, "unknown key 'group.where.n.at_lest'; did you mean 'at_least'?"),
        (PAIRS, "group.where", {"n": {}}, "a condition states one of: any_of, at_least, differs"),
        (PAIRS, "group.where", {"n": []}, "group.where.n.any_of"),
        (PAIRS, "group.first_rows", 0, "'group.first_rows': must be greater than or equal to 1"),
        (PAIRS, "group.crop", ["x", "y", "w"], "'group.crop': list should have at least 4 items"),
        (PAIRS, "group.known_defects", ["equal_texts"], "'group.known_defects.0': must be 'equal_captions'"),
        (PAIRS, "means.m", {"by": ["t"], "lest": 2}, "unknown key 'means.m.lest'; did you mean 'at_least'?"),
        (PAIRS, "means.m.by", [], "'means.m.by': list should have at least 1 item"),
        (PAIRS, "evidence.groups", "seen", "'evidence.groups': must be 'file', 'scores', 'stated'"),
        (PAIRS, "metrics", ["group_mach"], "did you mean 'group_match'"),
        (PAIRS, "source", {"kind": "renderd"}, "did you mean 'rendered'"),
        (PAIRS, "source", {"kind": "first_of", "of": [{"kind": "huggingfac"}]}, "did you mean 'huggingface'"),
        (PAIRS, "ttm.defaults.schedule", "lineer", "did you mean 'linear'"),
        (RETRIEVAL, "kind", None, "group.shape: a task of kind groups needs it"),
        (RETRIEVAL, "kind", "ranking", "'kind': must be 'groups', 'retrieval' or 'classification'"),
        (RETRIEVAL, "group.shape", [1, 5], "group.shape: only a task of kind groups"),
        (RETRIEVAL, "group.n_captions", 2, "2 captions are too few for 3 images"),
        (RETRIEVAL, "group.label", "x", "only a task of kind classification has it"),
        (RETRIEVAL, "classes", {"names": ["a", "b"]}, "classes: only a task of kind classification"),
        (RETRIEVAL, "ttm", {"defaults": {"epochs": 3}}, "ttm: only a task of kind groups has it"),
        (RETRIEVAL, "matching", "global", "matching: global: only a task of kind groups"),
        (RETRIEVAL, "metrics", ["group_match"], "metric 'group_match' is not defined for tasks of kind retr"),
        (RETRIEVAL, "metrics", ["accuracy_top1"], "metric 'accuracy_top1' is not defined"),
        (CLASSES, "rerank_k", 5, "rerank_k: only a task of kind retrieval has it"),
        (CLASSES, "classes", None, "classes: a task of kind classification needs it"),
        (CLASSES, "classes.names", ["cat"], "at least two classes"),
        (CLASSES, "classes.names", "numpy:NAMES", "neither a list nor open_clip:NAME"),
        (CLASSES, "classes.names", "open_clip:IMAGENET_CLASSNAMES", "classes.count is needed"),
        (CLASSES, "classes.count", 3, "classes.count is 3, but 2 names are listed"),
        (CLASSES, "classes.templates", ["a photo"], "should have {} once"),
        (CLASSES, "classes.prompts", ["{}"], "unknown key 'classes.prompts'"),
    ],
)
def test_a_wrong_task_file_is_an_error_that_names_the_key(tmp_path, spec, path, value, message):
    file = write(tmp_path, changed(spec, path, value))
    with pytest.raises(UsageError) as error:
        find_task(build_registry(), str(file))
    assert message in str(error.value) and "mine" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"caption": ["a", "b"]}, {"caption": ["c"]}, {"caption": ["d", "e"]}], "has 6 captions, its data have 5"),
        ([{"caption": ["a", "b", "c"]}, {"caption": []}, {"caption": ["d", "e", "f"]}], "gives 0 captions"),
        ([{"caption": "a"}] * 3, "must hold a list of captions"),
        ([{"caption": ["a", "b", "c"]}] * 2, "has 2 groups, but task"),
    ],
)
def test_captions_of_an_image_may_be_any_number_that_adds_up(tmp_path, rows, message):
    file = write(tmp_path, RETRIEVAL, [{"image": f"{place}.png", **row} for place, row in enumerate(rows)])
    with pytest.raises(DataError) as error:
        load(file)
    assert message in str(error.value)


@pytest.mark.parametrize("label", [True, "", None, 1.5, ["cat"]])
def test_a_label_is_a_number_or_a_name(tmp_path, label):
    file = write(tmp_path, CLASSES, [{"image": "0.png", "label": label}])
    with pytest.raises(DataError, match="must be the number or the name of a class"):
        load(file)


def test_validate_counts_captions_and_what_can_only_tie(tmp_path, capsys):
    captions = [["a", "b", "c"], ["a"], ["d", "e"]]
    write(tmp_path, RETRIEVAL, [{"image": f"{place}.png", "caption": one} for place, one in enumerate(captions)])
    assert main(["validate", str(tmp_path / "mine.yaml")]) == 0
    shown = capsys.readouterr().out
    assert "ok, version 1, 3x6" in shown and "3 images with 6 captions" in shown
    assert "1 captions repeat an earlier one and can only tie" in shown and "2 images have the content" in shown
    assert main(["ls", "tasks", "--json", "--include_path", str(tmp_path)]) == 0
    row = next(one for one in json.loads(capsys.readouterr().out) if one["task"] == "mine")
    assert (row["kind"], row["shape"], row["groups"]) == ("retrieval", "3x6", 3)
    assert main(["show", "mine", "--json", "--include_path", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["i2t_recall_at_1"]["chance"] == pytest.approx(1 / 3)


def draw(path: Path, mode: str = "RGB") -> None:
    written(path, encoded(100 if mode == "L" else None, (9, 7), "JPEG", mode))


def test_coco_and_flickr_are_read_as_their_authors_lay_them_out(tmp_path):
    """``coco_karpathy_test.json``: a list of image and captions, of which some images have more than five; one grey."""
    rows = [
        {"image": f"val2014/COCO_val2014_{one:012d}.jpg", "caption": [f"{one} {n}" for n in range(5 + (one == 42))]}
        for one in (391895, 42, 184613)
    ]
    for place, row in enumerate(rows):
        draw(tmp_path / "coco" / row["image"], "L" if place == 1 else "RGB")
    written(tmp_path / "retrieval" / "coco_karpathy_test.json", rows)
    loaded = load(changed_task("coco_retrieval", n_groups=3, n_captions=16), tmp_path)
    assert [len(group.captions) for group in loaded.groups] == [5, 6, 5]
    assert loaded.groups[1].images[0].name == "val2014/COCO_val2014_000000000042.jpg"
    assert loaded.source["file"] == "retrieval/coco_karpathy_test.json" and loaded.source["exif"] == "ignore"
    with pytest.raises(DataError, match="has 3 groups, but task 'coco_retrieval'"):
        load("coco_retrieval", tmp_path)
    rows = [{"image": f"flickr30k-images/{one}.jpg", "caption": [f"{one} {n}" for n in range(5)]} for one in (10, 7)]
    for row in rows:
        draw(tmp_path / "flickr30k" / row["image"])
    written(tmp_path / "retrieval" / "flickr30k_test.json", rows)
    groups = load(changed_task("flickr30k_retrieval", n_groups=2, n_captions=10), tmp_path).groups
    assert [group.images[0].name for group in groups] == ["flickr30k-images/10.jpg", "flickr30k-images/7.jpg"]


@pytest.mark.parametrize(
    ("name", "table", "folder", "image"),
    [
        ("coco_retrieval", "test_5k_mscoco_2014.csv", "images_mscoco_2014_5k_test", "COCO_val2014_{:012d}.jpg"),
        ("flickr30k_retrieval", "test_1k_flickr.csv", "images_flickr_1k_test", "{}.jpg"),
    ],
)
def test_a_mirror_is_a_table_and_the_folder_of_an_archive(tmp_path, name, table, folder, image):
    """Captions are a JSON list in a cell."""
    names = [image.format(number) for number in (391895, 42, 7)]
    captions = [json.dumps([f"{name} {n}" for n in range(5)]).replace('"', '""') for name in names]
    rows = [f'"{cell}",test,{name}' for cell, name in zip(captions, names, strict=True)]
    written(tmp_path / "retrieval" / table, "\n".join(["raw,split,filename", *rows]))
    for number, file in enumerate(names):
        written(tmp_path / "retrieval" / folder / file, encoded((number % 256, 0, 0), (9, 7), "JPEG"))
    mirror = next(one for one in find(name).spec.source["of"] if f"retrieval/{table}" in one.get("get", {}))
    assert set(mirror["get"]) == {f"retrieval/{table}", f"retrieval/{folder}"}
    loaded = load(changed_task(name, n_groups=3, n_captions=15), tmp_path)
    assert [group.images[0].name for group in loaded.groups] == names and len(loaded.source["passed_over"]) == 1
    assert loaded.groups[1].captions == tuple(f"{names[1]} {n}" for n in range(5))


def lay_out_imagenet(folder: Path, classes: int = 1000) -> None:
    """Folders by WordNet id, whose order by name is that of the classes; images only in a few."""
    for number in range(classes):
        (folder / f"n{1440764 + 7 * number:08d}").mkdir(parents=True)
    for number, mode in ((0, "RGB"), (657, "CMYK"), (744, "L")):
        name = f"n{1440764 + 7 * number:08d}"
        draw(folder / name / f"ILSVRC2012_val_0000{number:04d}.JPEG", mode)


@pytest.mark.parametrize("place", ["imagenet/val", "ILSVRC2012/val"])
def test_imagenet_is_read_from_folders_by_class(tmp_path, place):
    lay_out_imagenet(tmp_path / place)
    task = changed_task("imagenet", n_groups=3)
    loaded = load(task, tmp_path)
    assert [group.captions for group in loaded.groups] == [("0",), ("657",), ("744",)]
    assert loaded.groups[1].group_id == "n01445363/ILSVRC2012_val_00000657"
    classes = load_classes(task.spec)
    labels = labels_of(task.spec, classes, loaded.groups).tolist()
    assert [classes.names[label] for label in labels][1:] == ["missile", "missile"]
    assert loaded.source["classes"] == 1000


def test_folders_of_classes_are_for_classification_and_one_for_each_class(tmp_path):
    lay_out_imagenet(tmp_path / "imagenet" / "val", 999)
    with pytest.raises(DataError, match="holds 999 folders; 1000 are needed"):
        load(changed_task("imagenet", n_groups=3), tmp_path)
    spec = changed(RETRIEVAL, "source", {"kind": "class_folders", "path": "x"})
    with pytest.raises(UsageError, match="for tasks of kind classification"):
        load(write(tmp_path, spec))


def test_class_names_and_prompts_are_those_of_the_installed_package(tmp_path):
    import open_clip

    classes = load_classes(find_task(build_registry(), "imagenet").spec)
    assert classes.names == list(open_clip.IMAGENET_CLASSNAMES) and len(set(classes.names)) == 998
    prompts = [template("cat") for template in open_clip.OPENAI_IMAGENET_TEMPLATES]
    assert [one.replace("{}", "cat") for one in classes.templates] == prompts
    assert "open_clip_torch" in classes.origin_of_names
    from ttmbench.evaluator.ranking_task import doubled_names

    assert doubled_names(classes.names) == {"missile": [657, 744], "sunglasses": [836, 837]}
    for name in ("NOTHING_HERE", "OPENAI_DATASET_MEAN"):
        strange = changed(CLASSES, "classes", {"names": f"open_clip:{name}", "count": 3})
        with pytest.raises(UsageError, match=r"the installed package has .*IMAGENET_CLASSNAMES"):
            load_classes(find(write(tmp_path, strange)).spec)
