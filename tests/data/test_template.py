"""``ttmbench new task``: what it writes validates and runs at once, and nothing is overwritten."""

from __future__ import annotations

import shlex
import shutil

import pytest
from support.task_data import run

from ttmbench.data.catalog import find_task
from ttmbench.data.loader import load_task_data
from ttmbench.plugins.registry import build_registry


@pytest.mark.parametrize(("name", "where"), [("my_colors", None), ("123", "deep/a folder"), ("true", None)])
def test_the_commands_that_it_prints_work(tmp_path, monkeypatch, capsys, name, where):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "new", "task", name, *(["--output_path", where] if where else []))
    assert code == 0 and err == ""
    folder = tmp_path / (where or name)
    assert sorted(path.name for path in folder.iterdir()) == sorted([f"{name}.yaml", "groups.jsonl", "images"])
    assert len(list((folder / "images").iterdir())) == 6
    commands = [line.strip() for line in out.splitlines() if line.startswith("  ttmbench ")]
    assert len(commands) == 3
    for command in commands:
        extra = ["--ttm_args", "iterations=1,epochs=1"] if "--ttm" in command else []
        extra += ["--device", "cpu", "--bootstrap_iters", "10"] if "--model" in command else []
        code, out, err = run(capsys, *shlex.split(command)[1:], *extra)
        assert code == 0, (command, out, err)
    registry = build_registry([folder])
    groups = load_task_data(registry, find_task(registry, name)).groups
    assert [group.group_id for group in groups] == ["g1", "g2", "g3"]
    assert all(len(set(group.captions)) == 2 for group in groups)


def test_the_task_file_explains_its_keys(tmp_path, capsys):
    run(capsys, "new", "task", "mine", "-o", tmp_path / "mine")
    lines = (tmp_path / "mine" / "mine.yaml").read_text(encoding="utf-8").splitlines()
    assert sum("# " in line for line in lines) >= 12 and all(len(line) <= 120 for line in lines)


def test_nothing_is_overwritten(tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "empty").mkdir()
    assert run(capsys, "new", "task", "mine", "-o", tmp_path / "empty")[0] == 0
    shutil.rmtree(tmp_path / "empty")
    (tmp_path / "mine" / "notes.txt").write_text("mine", encoding="utf-8")
    code, out, err = run(capsys, "new", "task", "mine", "-o", tmp_path / "mine")
    assert code == 2 and out == "" and "already exists and is not empty" in err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("name", ["../evil", "a b", "", ".hidden", "-x", "a/b", "x.yaml"])
def test_what_is_no_name_is_refused(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "new", "task", "--output_path", "x", "--", name)
    assert code == 2 and out == "" and err.startswith("ttmbench") and list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_and_another_thing_than_a_task(tmp_path, capsys):
    (tmp_path / "file").write_text("", encoding="utf-8")
    code, _, err = run(capsys, "new", "task", "mine", "-o", tmp_path / "file")
    assert code == 2 and "is a file" in err
    code, _, err = run(capsys, "new", "task", "mine", "-o", tmp_path / "file" / "deeper")
    assert code == 2 and "cannot be written" in err
    code, _, err = run(capsys, "new", "planet", "mine")
    assert code == 2 and "planet" in err
