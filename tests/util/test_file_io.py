"""Files are replaced in one step and read strictly; digests of tensors are those that were written before."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from ttmbench._util import file_io
from ttmbench._util.file_io import tensors_digest, write_atomically
from ttmbench.cli import main
from ttmbench.errors import DataError, UsageError


def test_a_file_is_replaced_or_left_as_it_was(tmp_path):
    path = tmp_path / "x.json"
    (tmp_path / "plain").touch()
    for to_disk in (True, False):
        write_atomically(path, lambda place: place.write_text("new"), to_disk=to_disk)
        assert len(list(tmp_path.iterdir())) == 2 and path.read_text() == "new"
        assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode, "others may read it"

    def half(place: Path) -> None:
        assert place.parent == tmp_path and place.name.startswith(".x.json.") and place.suffix == ".tmp"
        place.write_text("ha")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for to_disk in (True, False):
        with pytest.raises(UsageError, match=r"x\.json cannot be written: No space left on device"):
            write_atomically(path, half, to_disk)
    assert len(list(tmp_path.iterdir())) == 2 and path.read_text() == "new"


def test_the_digest_of_tensors_stays_what_it_was():
    """Fingerprints in published results hold it, and kept scores and checkpoints are found by it."""
    state = {
        "b": torch.arange(6, dtype=torch.float32).reshape(2, 3).T,  # not contiguous
        "a": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "half": torch.ones(2, dtype=torch.bfloat16, requires_grad=True),
        "extra": {"no": "tensor"},
    }
    assert tensors_digest(state) == "ef879169cecf3bae5f3912a05348b4a4c134090d00e0aaaec4fd00e21fe9781e"


@pytest.mark.parametrize("to_disk", [True, False])
def test_the_whole_content_is_on_the_disk_before_the_name_is(tmp_path, monkeypatch, to_disk):
    path, synced = tmp_path / "x", []
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append((os.fstat(descriptor), path.read_text())))
    write_atomically(path, lambda place: place.write_text("the new content"), to_disk=to_disk)
    assert path.read_text() == "the new content"
    if to_disk:
        ((state, before),) = synced
        assert (state.st_size, state.st_ino, before) == (15, path.stat().st_ino, "old")
    else:
        assert not synced


def test_a_line_beyond_the_limit_is_refused_before_it_is_parsed(folder_task, monkeypatch, capsys):
    monkeypatch.setenv("TTMBENCH_LIMITS", "line_bytes=1000")
    parsed = []
    parse = file_io.parse_json
    monkeypatch.setattr(file_io, "parse_json", lambda line, **more: parsed.append(len(line)) or parse(line, **more))
    folder = folder_task()
    with (folder / "groups.jsonl").open("a") as file:
        file.write('{"id": "' + "x" * 10_000 + '"}\n')
    assert main(["validate", str(folder / "mine.yaml")]) == 4
    says = "groups.jsonl: line 7 is longer than 1000 bytes; TTMBENCH_LIMITS=line_bytes=N raises the limit"
    assert says in capsys.readouterr().out and max(parsed) < 1000


def test_lines_end_at_line_feeds_alone(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes('\ufeff{"a": "\u2028é"}\r\n\n\ufeff{"a": 2}'.encode())
    assert list(file_io.read_json_lines(path)) == [(1, {"a": "\u2028é"}), (3, {"a": 2})]


def test_what_is_wrong_names_the_line(tmp_path):
    path = tmp_path / "x.jsonl"
    for content, says in (
        (b'{"a": 1}\n[1]\n', "line 2 is not a JSON object"),
        (b'{"a": 1}\n{"a": \n', "line 2 is not JSON"),
        (b'{"a": 1}\n{"a": "\xff"}\n', "is not UTF-8 text"),
        (b'{"a": "\xff"}\n', "is not UTF-8 text"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=says):
            list(file_io.read_json_lines(path))
    with pytest.raises(DataError, match="Is a directory"):
        list(file_io.read_json_lines(tmp_path))
