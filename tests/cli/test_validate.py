"""``ttmbench validate``: everything about a task's data that makes numbers wrong, found before a model is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from PIL import Image

from ttmbench.cli import main


def run(capsys, *words: object) -> tuple[int, str]:
    code = main(["validate", *map(str, words)])
    captured = capsys.readouterr()
    assert captured.err == "" or code == 2
    return code, captured.out + captured.err


def edit(folder: Path, row: int, **cells: object) -> None:
    """Changes a line of the task's groups."""
    file = folder / "groups.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    rows[row] |= cells
    file.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")


def test_a_good_task_tells_size_chance_source_and_its_first_group(folder_task, capsys):
    code, out = run(capsys, folder_task() / "mine.yaml")
    assert code == 0 and out.count("\n") == 1
    for word in (
        "ok, version 1, 2x2, chance in percent: text_score 25.00",
        "6 groups, all images decode; 12 images from folder groups.jsonl",
        "first: g0 (30x24, 30x24 px) a red circle 0 | a blue circle 0",
    ):
        assert word in out


def same_image(folder: Path) -> None:
    shutil.copy(folder / "images" / "2_0.png", folder / "images" / "2_1.png")


def same_image_turned(folder: Path) -> None:
    """Upright they are the same, though the files differ."""
    turned = Image.open(folder / "images" / "2_0.png").rotate(90, expand=True)
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(folder / "images" / "2_1.png", exif=exif)


def same_group(folder: Path) -> None:
    for side in (0, 1):
        shutil.copy(folder / "images" / f"0_{side}.png", folder / "images" / f"5_{side}.png")
    first = json.loads((folder / "groups.jsonl").read_text(encoding="utf-8").splitlines()[0])
    edit(folder, 5, caption_0=first["caption_0"], caption_1=first["caption_1"])


def several(folder: Path) -> None:
    for number in (1, 3, 4, 5):
        (folder / "images" / f"{number}_0.png").write_bytes(b"no image")
    edit(folder, 0, caption_1="a red circle 0")


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        (same_image, ["group g2 has the same image twice, so it can only tie"]),
        (same_image_turned, ["group g2 has the same image twice"]),
        (same_group, ["groups g0 and g5 are the same"]),
        (
            several,
            [
                "5 problems: group g0 has the same caption twice, so it can only tie;",
                *("image 1_0.png of group g1 cannot be read", "and 2 more (from folder groups.jsonl)"),
            ],
        ),
        ({"caption_1": " "}, ["caption 'caption_1' of group g1 is empty"]),
        ({"image_0": "nothing.png"}, ["image nothing.png of group g1 is not in "]),
        ({"id": "g0"}, ["group id g0 is given to several groups"]),
        ({"image_0": "../../x.png"}, ["leaves the folder"]),
        ("images/0_0.png", ["image 0_0.png of group g0"]),
    ],
)
def test_problems_name_the_group_and_the_first_are_listed(folder_task, capsys, change, messages):
    folder = folder_task()
    if isinstance(change, dict):
        edit(folder, 1, **change)
    elif isinstance(change, str):
        (folder / change).write_bytes(b"")
    else:
        change(folder)
    code, out = run(capsys, folder / "mine.yaml")
    assert code == 4 and all(message in out for message in messages), out


def test_an_image_in_several_groups_is_reported_and_is_not_an_error(folder_task, capsys):
    folder = folder_task()
    shutil.copy(folder / "images" / "0_0.png", folder / "images" / "5_1.png")
    code, out = run(capsys, folder / "mine.yaml")
    assert code == 0 and "1 images have the content of another one" in out


def test_the_first_groups_alone(folder_task, capsys):
    folder = folder_task()
    (folder / "images" / "4_0.png").write_bytes(b"no image")
    assert run(capsys, folder / "mine.yaml")[0] == 4
    code, out = run(capsys, folder / "mine.yaml", "--limit", "3")
    assert code == 0 and "3 groups, all images decode" in out


def test_which_place_was_used_and_which_was_not_there(tmp_path, capsys):
    data = tmp_path / "data"
    (data / "i").mkdir(parents=True)
    for name in ("a", "b"):
        Image.new("RGB", (8, 8), {"a": "red", "b": "blue"}[name]).save(data / "i" / f"{name}.png")
    rows = [{"image": f"{name}.png", "good": f"good {name}", "bad": "bad"} for name in ("a", "b")]
    (data / "second.json").write_text(json.dumps(rows), encoding="utf-8")
    places = [{"kind": "annotations", "file": f"{name}.json", "images": "i"} for name in ("first", "second")]
    spec = {
        "task": "mine",
        "version": 1,
        "source": {"kind": "first_of", "of": places},
        "group": {"shape": [1, 2], "n_groups": 2, "images": ["image"], "captions": ["good", "bad"]},
        "metrics": ["group_match"],
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    code, out = run(capsys, tmp_path / "mine.yaml", "--data_dir", data)
    assert code == 0 and "from annotations second.json (unavailable: annotations first.json)" in out
    (data / "second.json").unlink()
    code, out = run(capsys, tmp_path / "mine.yaml", "--data_dir", data)
    assert code == 4 and "not found in 2 places" in out and "`ttmbench download mine`" in out


def test_the_exit_code_is_that_of_the_worst(folder_task, capsys):
    folder = folder_task()
    (folder / "images" / "0_0.png").write_bytes(b"")
    code, out = run(capsys, "shapes_place", folder / "mine.yaml", "--limit", "5")
    assert code == 4 and out.startswith("shapes_place: ok") and "problems" not in out


def test_schema_only_finds_a_wrong_origin(tmp_path, capsys):
    source = {"kind": "annotations", "file": "x.json", "get": {"x.json": {"url": "http://a.org/x", "sha265": "0"}}}
    spec = {"task": "mine", "version": 1, "source": source, "group": {"shape": [1, 2], "captions": "a", "images": "b"}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(spec | {"metrics": ["group_match"]}), encoding="utf-8")
    code, out = run(capsys, tmp_path / "mine.yaml", "--schema_only")
    assert code == 2 and "unknown key 'get.x.json.sha265'" in out


def test_schema_only_reads_no_data(folder_task, capsys):
    folder = folder_task()
    shutil.rmtree(folder / "images")
    code, out = run(capsys, folder / "mine.yaml", "--schema_only")
    assert code == 0 and "data not read" in out


def test_a_folder_that_is_not_there_is_called_so(capsys):
    assert run(capsys, "shapes_color", "results/none")[0] == 2
    code, out = run(capsys, "results/none")
    assert code == 2 and out.startswith("ttmbench: results/none does not exist;")
