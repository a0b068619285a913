"""A local folder in place of a dataset of the Hub: known by its form, relative to the task file, never replaced."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest
from support.task_data import encoded, load

from ttmbench.cli import main
from ttmbench.errors import OutOfReachError, UsageError


def tables(folder: Path, caption: str) -> Path:
    """A dataset's files, as the Hub has them."""
    (folder / "data").mkdir(parents=True)
    images = [{"bytes": encoded((index * 40 + side,) * 3), "path": None} for index in range(3) for side in (0, 20)]
    texts = [f"{caption} {index}" for index in range(6)]
    columns = {
        "id": ["0", "1", "2"],
        "image_0": images[::2],
        "image_1": images[1::2],
        "caption_0": texts[::2],
        "caption_1": texts[1::2],
    }
    kinds = {name: datasets.Image() if name.startswith("image") else datasets.Value("string") for name in columns}
    table = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))
    table.to_parquet(str(folder / "data" / "test-00000-of-00001.parquet"))
    return folder


def task(folder: Path, path: str, kind: str = "huggingface", more: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "mine.yaml"
    file.write_text(
        f"task: mine\nversion: 1\nsource: {{kind: {kind}, path: '{path}'{more}}}\n"
        "group: {shape: [2, 2], id: id, images: [image_0, image_1], captions: [caption_0, caption_1]}\n"
        "metrics: [group_match]\n"
    )
    return file


def first(loaded) -> str:
    return loaded.groups[0].captions[0]


@pytest.mark.parametrize("path", ["./own", "../tasks/own", "absolute"])
def test_a_path_starts_from_the_task_file_and_not_from_the_working_directory(tmp_path, monkeypatch, path):
    folder = tables(tmp_path / "tasks" / "own", "right")
    tables(tmp_path / "elsewhere" / "own", "wrong")
    tables(tmp_path / "elsewhere" / "tasks" / "own", "wrong")
    (tmp_path / "elsewhere" / "here").mkdir()
    file = task(tmp_path / "tasks", str(folder) if path == "absolute" else path)
    monkeypatch.chdir(tmp_path / "elsewhere" / "here" if path.startswith("..") else tmp_path / "elsewhere")
    loaded = load(file, offline=True)
    assert first(loaded) == "right 0" and loaded.source["folder"] == str(folder)
    assert loaded.source["revision"] is None


def test_a_missing_folder_is_an_error_that_names_it_and_nothing_takes_its_place(tmp_path, monkeypatch):
    """The library would find a folder in the working directory, or a dataset of this name in its cache."""
    asked: list[str] = []
    monkeypatch.setattr("ttmbench.data.hub_tables.snapshot", lambda path, *_: asked.append(path))
    monkeypatch.setattr("ttmbench.data.hub_tables._load", lambda options, path, *_, **__: asked.append(path))
    tables(tmp_path / "elsewhere" / "own", "wrong")
    monkeypatch.chdir(tmp_path / "elsewhere")
    file = task(tmp_path / "tasks", "./own")
    for offline in (True, False):
        with pytest.raises(OutOfReachError) as found:
            load(file, offline=offline)
        assert f"the folder {tmp_path / 'tasks' / 'own'} does not exist" in str(found.value)
        assert "ttmbench download" not in str(found.value)
    assert not asked


@pytest.mark.parametrize(("kind", "more"), [("hub_files", ", file: rows.jsonl"), ("webdataset", "")])
def test_the_other_sources_of_the_hub_have_the_same_rule(tmp_path, monkeypatch, kind, more):
    (tmp_path / "elsewhere" / "own").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(OutOfReachError, match=r"the folder .*tasks.own does not exist"):
        load(task(tmp_path / "tasks", "./own", kind, more), offline=True)


def test_the_exit_code_of_a_missing_folder_is_that_of_data_out_of_reach(tmp_path, capsys):
    file = task(tmp_path / "tasks", "./own")
    assert main(["run", "--model", "tiny-clip", "--tasks", str(file), "--offline"]) == 4
    assert f"the folder {tmp_path / 'tasks' / 'own'} does not exist" in capsys.readouterr().err


def test_a_name_without_a_dot_or_slash_in_front_is_an_id_and_a_folder_of_that_name_is_no_guess(tmp_path):
    folder = tables(tmp_path / "tasks" / "own", "mine")
    with pytest.raises(
        UsageError, match=r"'own' is the id of a dataset on the Hub .*; write './own' for the folder"
    ) as e:
        load(task(tmp_path / "tasks", "own"), offline=True)
    assert str(folder) in str(e.value)


def test_a_folder_of_the_working_directory_is_not_read_in_place_of_a_dataset(tmp_path, monkeypatch):
    tables(tmp_path / "owner" / "name", "wrong")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutOfReachError, match="the working directory has a folder of that name"):
        load(task(tmp_path / "tasks", "owner/name"), offline=True)


def test_a_path_of_the_command_line_starts_from_the_working_directory(tmp_path, monkeypatch, capsys):
    tables(tmp_path / "here" / "own", "right")
    tables(tmp_path / "tasks" / "own", "wrong")
    file = task(tmp_path / "tasks", "owner/none")
    monkeypatch.chdir(tmp_path / "here")
    command = ["run", *f"--model tiny-clip --tasks {file} --offline --bootstrap_iters 0 --device cpu".split()]
    assert main([*command, "--task_args", "path=./own", "--output_path", "x.json", "--log_samples"]) == 0
    document = json.loads((tmp_path / "here" / "x.json").read_text(encoding="utf-8"))
    assert document["datasets"]["mine"]["source"]["folder"] == str(tmp_path / "here" / "own")
    assert document["configs"]["mine"]["source"]["path"] == str(tmp_path / "here" / "own")
    capsys.readouterr()
    assert main([*command, "--task_args", "path=own"]) == 2
    assert "write './own' for the folder" in capsys.readouterr().err
