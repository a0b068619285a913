"""How a command ends: its exit code, output that cannot be written, interrupts."""

from __future__ import annotations

import io
import os
import sys
import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest

from ttmbench import cli
from ttmbench._util.console import echo, print_line, put


class TestStreams:
    """Output that nobody reads, that cannot be written, or that was closed; in this process, by streams of its own."""

    @pytest.fixture
    def broken(self):
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "w", encoding="utf-8") as stream:
            yield stream

    @pytest.fixture
    def full(self):
        if not Path("/dev/full").exists():
            pytest.skip("a device of Linux")
        with Path("/dev/full").open("w", encoding="utf-8") as stream:
            yield stream

    @pytest.mark.parametrize("words", [["ls", "metrics"], ["ls", "tasks", "--json"], ["--help"]])
    def test_who_reads_no_more_changes_no_code(self, broken, words, monkeypatch, capsys):
        monkeypatch.setattr(sys, "stdout", broken)
        assert cli.main(words) == 0 and capsys.readouterr().err == ""

    def test_what_follows_output_that_nobody_reads_is_done(self, broken, monkeypatch):
        monkeypatch.setattr(sys, "stdout", broken)
        for _ in range(3):
            echo("x" * 10_000)
            print_line("y" * 10_000)
            put("z" * 10_000)

    @pytest.mark.parametrize("words", [["ls", "metrics"], ["ls", "tasks"], ["--help"], ["show", "group_match"]])
    def test_a_full_disk_is_told_in_one_line(self, full, words, monkeypatch, capsys):
        monkeypatch.setattr(sys, "stdout", full)
        assert cli.main(words) == 1
        assert capsys.readouterr().err == "ttmbench: the output cannot be written: No space left on device\n"

    def test_a_pager_that_stops_reading_is_left_by_an_interrupt(self, monkeypatch, capsys):
        class Pager(io.StringIO):
            def flush(self):
                raise KeyboardInterrupt

        monkeypatch.setattr(sys, "stdout", Pager())
        assert cli.main(["ls", "metrics"]) == 130 and "Traceback" not in capsys.readouterr().err

    @pytest.mark.parametrize("words", [["ls", "nothing"], ["show", "nothing"]])
    def test_a_note_that_cannot_be_written_changes_no_code(self, full, broken, words, monkeypatch):
        for stream in (full, broken):
            monkeypatch.setattr(sys, "stderr", stream)
            assert cli.main(words) == 2
            stream.flush()


def test_the_installed_program_is_the_command():
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert resolve_name(project["project"]["scripts"]["ttmbench"]) is cli.command
