"""Pauses that processes share: what one was told to wait, all wait; nothing that is wrong with a file stops anybody."""

from __future__ import annotations

import time

import pytest

from ttmbench._util.rate_limit import LONGEST, FolderPauses, shared_pauses, sharing_pauses


def test_a_pause_is_seen_by_another_process_and_ends(tmp_path, monkeypatch):
    FolderPauses(tmp_path / "new").hold("api.example m", 20.0)
    other = FolderPauses(tmp_path / "new")
    # An end is written to the millisecond.
    assert 19 < other.left("api.example m") <= 20.001 and other.left("api.example another") == 0
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 21)
    assert other.left("api.example m") == 0


def test_the_longer_of_two_pauses_stays(tmp_path):
    pauses = FolderPauses(tmp_path)
    pauses.hold("m", 50.0)
    pauses.hold("m", 5.0)
    assert pauses.left("m") > 45
    pauses.hold("m", 500.0)
    assert pauses.left("m") > 495


@pytest.mark.parametrize("content", [b"", b"soon", b"\xff", b"nan", b"inf", b"%(far)f"])
def test_a_file_that_is_wrong_is_no_pause(tmp_path, content):
    pauses = FolderPauses(tmp_path)
    pauses.hold("m", 5.0)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content.replace(b"%(far)f", b"%f" % (time.time() + 10 * LONGEST)))
    assert pauses.left("m") == 0


def test_a_folder_that_cannot_be_written_to_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    pauses = FolderPauses(tmp_path / "file" / "pauses")
    pauses.hold("m", 5.0)
    assert pauses.left("m") == 0


def test_pauses_are_shared_inside_alone(tmp_path):
    pauses = FolderPauses(tmp_path)
    assert shared_pauses() is None
    with sharing_pauses(pauses):
        assert shared_pauses() is pauses
    assert shared_pauses() is None
