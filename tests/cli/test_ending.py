"""The command's process ends without freeing what it holds, and leaves nothing undone."""

from __future__ import annotations

import gzip
import io
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest

from ttmbench import cli
from ttmbench._util.console import console, echo, put
from ttmbench.cli.interrupts import terminated_like_interrupted

PROGRAM = """
import atexit, sys, threading, time
{first}
from ttmbench import cli

class Freed:
    def __del__(self):
        print("freed", flush=True)

def late():
    time.sleep(0.2)
    print("thread")

def main():
    global kept, file
    kept, file = Freed(), open("left-open.txt", "w")
    file.write("written")
    threading.Thread(target=late).start()
    atexit.register(print, "handler")
    {last}

cli.main = main
sys.exit(cli.command())
"""


def ended(folder: Path, last: str, first: str = "", **options: object) -> subprocess.CompletedProcess[str]:
    """What a process of its own gave, whose command does ``last``."""
    program = PROGRAM.format(first=first, last=last)
    # A process that coverage traces has a handler that was there before the command's.
    others = ("PYTHONUNBUFFERED", "COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START")
    buffered = {name: value for name, value in os.environ.items() if name not in others}
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": buffered, **options}
    return subprocess.run([sys.executable, "-W", "ignore", "-c", program], cwd=folder, text=True, check=False, **given)


def test_threads_handlers_and_files_are_finished_and_nothing_is_freed(tmp_path):
    done = ended(tmp_path, "return 3")
    assert (done.stdout, done.stderr, done.returncode) == ("thread\nhandler\n", "", 3)
    assert (tmp_path / "left-open.txt").read_text() == "written"


@pytest.mark.parametrize(
    ("first", "last", "code"),
    [("atexit.register(print, 'first')", "return 3", 3), ("", "raise SystemExit(5)", 5)],
)
def test_python_ends_as_ever_beside_handlers_that_were_there_and_after_an_exit(tmp_path, first, last, code):
    done = ended(tmp_path, last, first)
    assert done.stdout.splitlines() == ["thread", "handler", *(["first"] if first else []), "freed"]
    assert done.returncode == code


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_output_that_cannot_be_written_is_told(tmp_path):
    with Path("/dev/full").open("w") as full:
        done = ended(tmp_path, "return 0", stdout=full)
    assert "No space left on device" in done.stderr and done.returncode == 120


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_output_longer_than_what_python_keeps_is_missed_too(tmp_path):
    with Path("/dev/full").open("w") as full:
        done = ended(
            tmp_path, "sys.stdout.write('x' * 8000); atexit.register(print, 'y' * 9000); return 0", stdout=full
        )
    assert "No space left on device" in done.stderr and done.returncode == 120


def test_files_whose_end_is_written_when_they_are_closed_are_closed(tmp_path):
    done = ended(tmp_path, "kept = gzip.open('left-open.gz', 'wb'); kept.write(b'written'); return 3", "import gzip")
    assert gzip.decompress((tmp_path / "left-open.gz").read_bytes()) == b"written" and done.returncode == 3


def test_an_interrupt_while_the_end_is_near_is_no_traceback(tmp_path):
    first = (
        "import signal, io\nclass Slow(io.TextIOWrapper):\n    def writable(self): signal.raise_signal(signal.SIGINT)"
    )
    done = ended(tmp_path, "kept = Slow(open('slow', 'wb')); return 0", first)
    assert (done.stderr, done.returncode) == ("", 130)


def test_files_of_a_frozen_heap_are_written(tmp_path):
    done = ended(tmp_path, "gc.freeze(); return 3", "import gc")
    assert (tmp_path / "left-open.txt").read_text() == "written" and "freed" not in done.stdout


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
            console().print("y" * 10_000)
            put("z" * 10_000)

    @pytest.mark.parametrize("words", [["ls", "metrics"], ["ls", "tasks"], ["--help"], ["schema", "results"]])
    def test_a_full_disk_is_told_in_one_line(self, full, words, monkeypatch, capsys):
        monkeypatch.setattr(sys, "stdout", full)
        assert cli.main(words) == 1
        assert capsys.readouterr().err == "ttmbench: the output cannot be written: No space left on device\n"

    def test_a_pager_that_stops_reading_is_left_by_an_interrupt(self, monkeypatch, capsys):
        class Pager(io.StringIO):
            def flush(self):
                raise KeyboardInterrupt

        monkeypatch.setattr(sys, "stdout", Pager())
        assert cli.main(["ls", "metrics"]) == 130 and capsys.readouterr().err == ""

    @pytest.mark.parametrize("words", [["ls", "nothing"], ["show", "nothing"]])
    def test_a_note_that_cannot_be_written_changes_no_code(self, full, broken, words, monkeypatch):
        for stream in (full, broken):
            monkeypatch.setattr(sys, "stderr", stream)
            assert cli.main(words) == 2
            stream.flush()

    def test_streams_may_be_closed(self, monkeypatch):
        for name in ("stdin", "stdout", "stderr"):
            monkeypatch.setattr(sys, name, None)
        assert cli.main(["ls", "metrics"]) == 0 and cli.main(["show", "nothing"]) == 2
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            stream.close()


@pytest.mark.parametrize("words", [("-m", "ttmbench"), ("-m", "ttmbench.cli")])
def test_every_way_to_the_command_gives_its_code(words):
    done = subprocess.run([sys.executable, *words, "ls", "none"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "none" in done.stderr


def test_the_installed_program_is_the_command():
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert resolve_name(project["project"]["scripts"]["ttmbench"]) is cli.command


def test_an_interrupt_that_a_finalizer_swallows_comes_again():
    class Interrupted:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    before = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), terminated_like_interrupted():
        Interrupted()
        time.sleep(5)
    assert sys.unraisablehook is before
