"""The command's process ends without freeing what it holds, and leaves nothing undone."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest

from ttmbench import cli

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


@pytest.mark.parametrize("words", [("-m", "ttmbench"), ("-m", "ttmbench.cli")])
def test_every_way_to_the_command_gives_its_code(words):
    done = subprocess.run([sys.executable, *words, "ls", "none"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "none" in done.stderr


def test_the_installed_program_is_the_command():
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert resolve_name(project["project"]["scripts"]["ttmbench"]) is cli.command
