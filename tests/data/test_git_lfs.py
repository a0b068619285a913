"""Files that Git LFS did not fetch, and a table's blanks, are named by the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ttmbench.cli import main

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"


def says_pointer(capsys, file: str, *arguments: str) -> None:
    assert main([*arguments, *(() if arguments[0] == "score" else ("--limit", "4", "--device", "cpu"))]) == 4
    error = capsys.readouterr().err
    assert file in error and "Git LFS pointer" in error and "git lfs pull" in error


@pytest.mark.parametrize("file", "model.safetensors tokenizer.json config.json weights.pt s.npz s.jsonl".split())
def test_a_pointer_as_weights_or_scores_is_called_that(tmp_path, tiny_hf_clip, capsys, file):
    shutil.copytree(tiny_hf_clip, tmp_path / "model")
    at = tmp_path / "model" / file
    at.write_bytes(POINTER)
    words = ["--model", "hf", "--model_args", f"pretrained={at.parent}", "--tasks", "shapes_color"]
    if file == "weights.pt":
        words = ["--model", "open_clip", "--model_args", f"model=ViT-S-32,pretrained={at}", "--tasks", "shapes_color"]
    says_pointer(capsys, file, *(["score", str(at), "--task", "shapes_color"] if file.startswith("s.") else words))


@pytest.mark.parametrize("file", ["rows.jsonl", "rows.json", "rows.csv", "test-00000-of-00001.parquet"])
def test_a_pointer_as_data_is_called_that(folder_task, capsys, file):
    is_table = file.endswith(".parquet")
    data = folder_task() / "data"
    source = {"kind": "huggingface", "data_files": ["test-*.parquet"], "path": str(data)}
    source = source if is_table else {"kind": "folder", "path": f"data/{file}", "images": "images"}
    folder = folder_task("other", source=source)
    file_at = (data.parent if is_table else folder) / "data" / file
    file_at.parent.mkdir(parents=True, exist_ok=True)
    file_at.write_bytes(POINTER)
    says_pointer(capsys, file, "--model", "tiny-clip", "--tasks", str(folder / "other.yaml"))


@pytest.mark.parametrize("file", ["0_0.png", "0_0.npy", "0_0.mp4"])
def test_a_pointer_as_image_or_video_is_called_that(folder_task, capsys, file):
    video = {"video": {"frames": 1}} if file.endswith("mp4") else {}
    folder = folder_task(source={"kind": "folder", "path": "groups.jsonl", "images": "images", **video})
    rows = folder / "groups.jsonl"
    rows.write_text(rows.read_text().replace(".png", Path(file).suffix))
    for image in (folder / "images").iterdir():
        image.with_suffix(Path(file).suffix).write_bytes(POINTER)
    says_pointer(capsys, file, "--model", "tiny-clip", "--tasks", str(folder / "mine.yaml"))


def test_blanks_in_a_header_are_shown(folder_task, capsys):
    folder = folder_task(n=1, source={"kind": "folder", "path": "groups.csv", "images": "images"})
    (folder / "groups.csv").write_text("id,image_0,image_1,caption_0, caption_1\na,0_0.png,0_1.png,x,y\n")
    assert main(["--model", "tiny-clip", "--tasks", str(folder / "mine.yaml"), "--device", "cpu"]) == 4
    assert "' caption_1'" in capsys.readouterr().err
