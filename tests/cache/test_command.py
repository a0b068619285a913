"""``ttmbench cache``."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import torch
from support.small_models import QUICK, Counting
from support.small_models import run as evaluate

from ttmbench._util.file_io import save_sealed
from ttmbench.cli import main


def cache(capsys, store: Path, *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["cache", *words, "--use_cache", str(store)])
    said = capsys.readouterr()
    return code, said.out, said.err


def listed(capsys, store: Path) -> dict[str, dict]:
    return {entry["task"]: entry for entry in json.loads(cache(capsys, store, "ls", "--json")[1])}


@pytest.fixture
def filled(tmp_path) -> Path:
    """A cache with scores of three tasks."""
    evaluate(
        Counting(tmp_path / "log"),
        "shapes_color,shapes_place,shapes_replace",
        **{**QUICK, "use_cache": str(tmp_path / "store"), "model_name": "counting"},
    )
    return tmp_path / "store"


def test_ls_lists_scores(filled, capsys, tmp_path):
    found = listed(capsys, filled)
    assert list(found) == ["shapes_color", "shapes_place", "shapes_replace"]
    assert {entry["model"] for entry in found.values()} == {"counting"}
    assert sum(entry["bytes"] for entry in found.values()) == sum(p.stat().st_size for p in filled.rglob("*.safet*"))
    assert "shapes_place" in cache(capsys, filled, "ls")[1]
    assert listed(capsys, tmp_path / "nowhere") == {} and not (tmp_path / "nowhere").exists()


def test_ls_lists_blocks_and_damaged_files(filled, capsys):
    first, second, _ = sorted(filled.rglob("scores.safetensors"))
    save_sealed(first.with_name("block-000000.safetensors"), {"values": torch.zeros(1)}, {"task": "half"})
    first.unlink()
    second.write_bytes(b"damaged")
    found = listed(capsys, filled)
    assert found["half"]["blocks"] == 1 and found[""]["model"] == ""
    out = cache(capsys, filled, "ls")[1]
    assert "unfinished: 1 blocks" in out and "damaged" in out


def test_the_list_begins_with_the_folder(tmp_path, capsys, monkeypatch):
    assert cache(capsys, tmp_path, "ls")[1].startswith(f"{tmp_path}: ")
    monkeypatch.setenv("TTMBENCH_CACHE", "off")
    assert main(["cache", "ls"]) == 2


def test_prune_removes_what_meets_all_conditions(filled, capsys):
    files = sorted(filled.rglob("*.safetensors"))
    assert cache(capsys, filled, "prune")[0] == 2 and cache(capsys, filled, "prune", "--dry_run")[0] == 2
    assert cache(capsys, filled, "ls", "--task", "x")[0] == 2
    cache(capsys, filled, "prune", "--task", "shapes_*", "--dry_run")
    cache(capsys, filled, "prune", "--task", "shapes_*", "--model", "siglip*")
    cache(capsys, filled, "prune", "--task", "")
    assert sorted(filled.rglob("*.safetensors")) == files
    cache(capsys, filled, "prune", "--task", "*_place", "--model", "count*")
    assert set(listed(capsys, filled)) == {"shapes_color", "shapes_replace"}
    os.utime(Path(listed(capsys, filled)["shapes_color"]["files"][0]), (time.time() - 40 * 24 * 3600,) * 2)
    cache(capsys, filled, "prune", "--older_than", "30")
    assert set(listed(capsys, filled)) == {"shapes_replace"}
    assert cache(capsys, filled, "prune", "--older_than", "0")[0] == 0 and not list((filled / "scores").iterdir())


def test_only_the_files_of_the_cache_are_touched(filled, capsys, tmp_path):
    elsewhere = tmp_path / "other" / ("2" * 64) / "scores.safetensors"
    elsewhere.parent.mkdir(parents=True)
    entry = next(filled.rglob("scores.safetensors")).parent
    mine = [elsewhere, filled / "scores" / "notes.txt", filled / "model.safetensors", entry / "notes.txt"]
    for path in mine:
        path.write_text("precious")
    (filled / "scores" / ("1" * 32)).symlink_to(tmp_path / "other")
    (entry / "block-000000.safetensors").symlink_to(elsewhere)
    half = entry / ".scores.safetensors.abc1.tmp"
    half.write_bytes(b"half")
    assert cache(capsys, filled, "prune", "--all")[0] == 0
    assert all(path.read_text() == "precious" for path in mine) and not half.exists()
    (filled / "scores").rename(tmp_path / "moved")
    (filled / "scores").symlink_to(tmp_path / "moved")
    assert listed(capsys, filled) == {}


def test_text_of_a_header_cannot_act_on_the_terminal(tmp_path, capsys):
    path = tmp_path / "scores" / ("a" * 32) / ("b" * 64) / "scores.safetensors"
    path.parent.mkdir(parents=True)
    save_sealed(path, {"groups": torch.zeros(1)}, {"task": "\x1b[31m[bold]x", "model_name": "[link=y]z"})
    out = cache(capsys, tmp_path, "ls")[1]
    assert "\x1b" not in out and "[bold]x" in out and "[link=y]z" in out
