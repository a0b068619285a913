"""The scripts of docs/examples run, print what they state, and are shown by a page."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading

import pytest
from support import processes
from support.checkout import PAGES, ROOT

EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.*"))
STATED = re.compile(r"^# prints: (.+)$", re.MULTILINE)
COMMAND = f"""#!{sys.executable} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect(os.path.join(os.path.dirname(__file__), "socket"))
    socket.send_fds(asked, [json.dumps([sys.argv[1:], os.getcwd()]).encode()], [0, 1, 2])
    sys.exit(int(asked.recv(9)))
"""


@pytest.fixture
def environment(tmp_path):
    """Variables of a shell whose `ttmbench` is forked (``processes.py``), where a cold start takes seconds."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ttmbench").write_text(COMMAND, encoding="utf-8")
    (folder / "ttmbench").chmod(0o755)
    variables = {**os.environ, "MPLBACKEND": "Agg", "TTMBENCH_CACHE": str(tmp_path / ".cache")}

    def answer():
        while True:
            client, _ = listening.accept()
            with client:
                content, streams, _, _ = socket.recv_fds(client, 100_000, 3)
                if not content:
                    return
                words, cwd = json.loads(content)
                how = dict(zip(("stdin", "stdout", "stderr"), streams, strict=True))
                done = processes.run(["-m", "ttmbench", *words], cwd=cwd, env=variables, **how)
                for stream in streams:
                    os.close(stream)
                client.sendall(str(done.returncode).encode())

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
        listening.listen()
        thread = threading.Thread(target=answer)
        thread.start()
        yield {**variables, "PATH": os.pathsep.join([str(folder), os.environ["PATH"]])}
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(folder / "socket"))
        thread.join()


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_an_example_prints_what_it_states(file, environment, tmp_path):
    text = file.read_text(encoding="utf-8")
    stated = STATED.findall(text)
    assert stated and len(text.splitlines()) <= 40
    how = {"cwd": tmp_path, "capture_output": True, "encoding": "utf-8"}
    if file.suffix == ".py":
        done = processes.run([file], env={**environment, "PATH": os.environ["PATH"]}, **how)
    else:
        done = subprocess.run(["bash", "-eu", file], env=environment, **how)
    assert done.returncode == 0, done.stderr[-4000:]
    for words in stated:
        assert words in done.stdout, (words, done.stdout[-4000:])


def test_every_example_is_shown_by_a_page():
    """Where a page has a link to one on a line of its own, the site shows the script below it."""
    links = re.compile(r"^\[.*\]\((?:\.\./)*(?:docs/)?examples/([\w.-]+)\)$", re.MULTILINE)
    shown = {name for page in PAGES for name in links.findall(page.read_text(encoding="utf-8"))}
    assert shown == {file.name for file in EXAMPLES}
