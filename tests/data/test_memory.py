"""Tasks in memory: what they are made of, what is refused, and that they run as tasks of files do."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

import ttmbench
from ttmbench import DataError, Task, UsageError

COLORS = {"red": (220, 20, 20), "green": (20, 220, 20), "blue": (20, 20, 220), "grey": (90, 90, 90)}
METRICS = ["text_score", "image_score", "group_score", "group_match", "individual_match"]


class MeanColor:
    """Knows the colour that a caption names."""

    def __init__(self, sharpness=1.0):
        self.sharpness = sharpness

    def fingerprint(self):
        return {"kind": "mean colour", "sharpness": self.sharpness}

    def score_pairs(self, images, captions):
        means = [np.asarray(image, dtype=np.float32).mean(axis=(0, 1)) for image in images]
        named = [np.array(COLORS[caption.split()[1]], dtype=np.float32) for caption in captions]
        return np.array([-self.sharpness * np.abs(a - b).mean() for a, b in zip(means, named, strict=True)], np.float32)


def wall(color, size=8):
    return np.full((size, size, 3), COLORS[color], dtype=np.uint8)


def walls(names=(("red", "green"), ("green", "blue"), ("blue", "grey"))):
    images = [[wall(name, 8 + index) for name in pair] for index, pair in enumerate(names)]
    return images, [[f"a {name} wall" for name in pair] for pair in names]


def run(task, **settings):
    return ttmbench.simple_evaluate(MeanColor(), task, bootstrap_iters=0, **settings)


def test_arrays_and_images_are_the_same_data(tmp_path):
    images, captions = walls()
    pillow = [[Image.fromarray(one) for one in row] for row in images]
    paths = [[tmp_path / f"{at}_{side}.png" for side in (0, 1)] for at in range(3)]
    for row, files in zip(pillow, paths, strict=True):
        for image, file in zip(row, files, strict=True):
            image.save(file)
    texts = [[str(file) for file in row] for row in paths]
    results = [run(Task.from_groups(given, captions, name="walls")) for given in (images, pillow, paths, texts)]
    digests = [result["task_hashes"]["walls"] for result in results]
    assert digests[0] == digests[1] != digests[2] == digests[3], "pixels in memory, and encoded bytes of files"
    for result in results:
        assert result.results["walls"]["group_score,none"] == 1.0
        assert result["datasets"]["walls"]["source"] == {"kind": "memory"}
        assert result["configs"]["walls"]["metrics"] == METRICS
    other = run(Task.from_groups(images[::-1], captions, name="walls"))
    assert other["task_hashes"] != result["task_hashes"] and other.results["walls"]["group_score,none"] < 1


def test_names_ids_tags_and_the_rest_reach_the_results(tmp_path):
    images, captions = walls()
    fields = {"ids": ["a", "b", 7], "tags": {"light": ["day", "night", "day"]}, "metrics": ["group_match"]}
    task = Task.from_groups(images, captions, name="walls", **fields, version=3, license="CC0-1.0")
    with pytest.raises(TypeError, match="unknown argument 'source'; known: metrics, matching"):
        Task.from_groups(images, captions, name="walls", source={})
    assert repr(task) == "Task('walls', 3 groups of 2x2)" and len(task) == 3
    result = run(task, log_samples=True, output_path=str(tmp_path))
    assert result["versions"] == {"walls": 3} and result["datasets"]["walls"]["license"] == "CC0-1.0"
    assert result["breakdowns"]["walls"]["light"]["day"]["group_match,none"] == 1.0
    (samples,) = tmp_path.rglob("samples_walls_*.jsonl")
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    assert [line["group_id"] for line in lines] == ["a", "b", "7"]
    assert lines[2]["images"] == ["7/0", "7/1"] and lines[0]["tags"] == {"light": "day"}


def test_one_object_is_one_image():
    first, second = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "green")
    captions = [["a red x", "a green x"], ["a green x", "a red x"]]
    task = Task.from_groups([[first, second], [second, first]], captions, name="x")
    assert [[image.name for image in group.images] for group in task.groups] == [["0/0", "0/1"], ["0/1", "0/0"]]


def test_one_image_and_several_captions_have_no_image_score():
    images, captions = walls((("red",), ("blue",)))
    captions = [[*row, "a grey wall"] for row in captions]
    task = Task.from_groups(images, captions, name="walls")
    assert str(task.spec.shape) == "1x2" and "image_score" not in task.spec.metrics
    assert run(task).results["walls"]["text_score,none"] == 1.0


def test_a_global_task_is_matched_over_all_images():
    images, captions = walls((("red", "green"), ("blue", "grey")))
    result = run(Task.from_groups(images, captions, name="walls", matching="global"))
    assert result.results["walls"]["global_assignment_accuracy,none"] == 1.0


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"captions": [["a red wall", "a green wall"]] * 2}, DataError, "3 groups of images and 2 of captions"),
        ({"ids": ["a", "b"]}, DataError, "3 of captions, and 2 ids"),
        ({"ids": ["a", "b", "a"]}, DataError, "group id a is given to several groups"),
        ({"tags": {"light": ["day"]}}, DataError, "tag 'light' should have one value for each of 3 groups"),
        ({"tags": [{"color": "red"}]}, DataError, "tags must be a mapping"),
        ({"images": [[wall("red")] * 2, [wall("red")], [wall("red")] * 2]}, DataError, "group '1' is 1x2"),
        ({"images": [[wall("red")]] * 3, "captions": [["a wall"]] * 3}, UsageError, "at least 2 images or 2 captions"),
        ({"captions": [["a red wall", " "]] * 3}, DataError, "group '0' has an empty caption"),
        ({"captions": ["a red wall"] * 3}, DataError, "captions of group 0 are a str; expected a list"),
        ({"captions": [["a red wall", 7]] * 3}, DataError, "group '0': 7 is int, not a text"),
        ({"images": [Image.new("RGB", (8, 8))] * 3}, DataError, "images of group 0 are a Image; expected a list"),
        ({"images": [["no.png", "no.png"]] * 3}, DataError, "image 'no.png' of group 0 is not a file"),
        ({"images": [[wall("red").astype(float)] * 2] * 3}, DataError, "array float64 [8, 8, 3]; expected uint8"),
        ({"images": [[wall("red")[:, :, 0]] * 2] * 3}, DataError, "array uint8 [8, 8]; expected uint8"),
        ({"images": [[None, None]] * 3}, DataError, "is a NoneType; expected an image of Pillow"),
        ({"images": [], "captions": []}, DataError, "there is no group"),
        ({"name": "no/name"}, UsageError, "'task'"),
        ({"metrics": []}, UsageError, "'metrics'"),
        ({"version": -1}, UsageError, "'version'"),
        ({"matching": "all"}, UsageError, "'matching'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(change, error, words):
    images, captions = walls()
    given = {"images": images, "captions": captions, "name": "walls", **change}
    with pytest.raises(error) as raised:
        Task.from_groups(**given)
    assert words in str(raised.value) and f"task '{given['name']}'" in str(raised.value)


def test_wrong_names_are_told_before_the_model_is_asked():
    class NeverAsked(MeanColor):
        def score_pairs(self, images, captions):
            raise AssertionError("the model was asked")

    images, captions = walls()

    def tell(tasks, **settings):
        with pytest.raises(UsageError) as raised:
            ttmbench.simple_evaluate(NeverAsked(), tasks, **settings)
        return str(raised.value)

    wrong = Task.from_groups(images, captions, name="walls", metrics=["group_mach"])
    assert "task walls: unknown metric 'group_mach'; did you mean 'group_match'" in tell(wrong)
    taken = Task.from_groups(images, captions, name="shapes_color")
    assert "two tasks are named 'shapes_color'" in tell([taken])
    one, two = (Task.from_groups(images, captions, name="walls") for _ in "ab")
    assert "two tasks are named 'walls'" in tell([one, two])
    assert "task 'walls' is in memory, so task_args do not apply" in tell(one, task_args={"seed": 3})


def test_the_store_and_resume_know_the_data_by_what_they_show(tmp_path, capsys):
    images, captions = walls()
    settings = {"output_path": str(tmp_path / "out"), "use_cache": str(tmp_path / "kept")}
    first = run(Task.from_groups(images, captions, name="walls"), **settings)
    again = run(Task.from_groups([[one.copy() for one in row] for row in images], captions, name="walls"), **settings)
    assert again.path == first.path and "every task is done" in capsys.readouterr().err
    assert again.scores == {} and again.results == first.results
    changed = run(Task.from_groups(images[::-1], captions, name="walls"), **settings)
    assert "the data of task walls are not those" in capsys.readouterr().err
    assert changed.results != first.results
    kept = run(Task.from_groups(images, captions, name="walls"), use_cache=settings["use_cache"])
    assert "key" in kept["datasets"]["walls"]["from_store"]


def rows(images, captions):
    return [
        {"key": f"g{at}", "left": row[0], "right": row[1], "texts": texts, "both": list(row), "kind": "wall"}
        for at, (row, texts) in enumerate(zip(images, captions, strict=True))
    ]


def test_a_sequence_of_mappings_is_a_dataset():
    images, captions = walls()
    settings = {"captions": "texts", "id": "key", "tags": ["kind"], "name": "walls"}
    for columns in (["left", "right"], "both"):
        task = Task.from_dataset(rows(images, captions), images=columns, **settings)
        assert [group.group_id for group in task.groups] == ["g0", "g1", "g2"]
        assert task.groups[0].tags == {"kind": "wall"} and run(task).results["walls"]["group_score,none"] == 1.0


def test_a_dataset_of_the_library_decodes_when_it_is_asked(tmp_path):
    import datasets

    images, captions = walls()
    raw = rows([[Image.fromarray(one) for one in row] for row in images], captions)
    dataset = datasets.Dataset.from_list(raw)
    assert isinstance(dataset.features["left"], datasets.Image)
    settings = {"captions": "texts", "id": "key", "name": "walls"}
    expected = run(Task.from_groups(images, captions, name="walls"))["task_hashes"]
    for columns in (["left", "right"], "both"):
        result = run(Task.from_dataset(dataset, images=columns, **settings))
        assert result["task_hashes"] == expected and result.results["walls"]["group_score,none"] == 1.0
    plain = Task.from_dataset(dataset, images=["left", "right"], captions="texts", name="walls")
    assert [group.group_id for group in plain.groups] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"images": ["left", "wrong"]}, "no column 'wrong'; it has key, left, right"),
        ({"images": "wrong"}, "no column 'wrong'"),
        ({"captions": "nothing"}, "no column 'nothing'"),
        ({"id": "nothing"}, "no column 'nothing'"),
        ({"tags": ["nothing"]}, "no column 'nothing'"),
    ],
)
def test_columns_that_a_dataset_does_not_have_are_named(change, words):
    given = {"images": ["left", "right"], "captions": "texts", "name": "walls", **change}
    with pytest.raises(DataError, match=words):
        Task.from_dataset(rows(*walls()), **given)
    images, captions = walls()
    decoded = rows([[Image.fromarray(one) for one in row] for row in images], captions)
    with pytest.raises(DataError, match=words):
        Task.from_dataset(pytest.importorskip("datasets").Dataset.from_list(decoded), **given)


def test_rows_that_are_not_like_the_first_are_named():
    table = rows(*walls())
    table[1]["texts"] = ["a red wall"]
    with pytest.raises(DataError, match="group 'g1' is 2x1"):
        Task.from_dataset(table, images=["left", "right"], captions="texts", id="key", name="walls")
    with pytest.raises(DataError, match="has no row"):
        Task.from_dataset([], images="a", captions="b", name="walls")
