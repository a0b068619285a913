"""A forked process behaves as one that was started cold: what it is given, what it says, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from support import processes

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
BOTH = pytest.mark.parametrize("cold", [pytest.param(False, marks=LINUX), True], ids=["forked", "cold"])
TEXT = {"capture_output": True, "text": True}


@BOTH
def test_it_has_its_own_arguments_environment_folder_and_streams(cold, tmp_path):
    code = (
        "import os, sys, tempfile\n"
        "print(sys.argv, os.environ['COLUMNS'], os.getcwd(), sys.stdin.read(), __name__, sys.path[0] == '')\n"
        "print(tempfile.gettempdir(), sys.modules['__main__'].code_of_this, file=sys.stderr)\n"
    )
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "COLUMNS": "33", "TMPDIR": str(tmp_path / "tmp")}
    words = ["-c", "code_of_this = 1\n" + code, "--a", "b c"]
    done = processes.run(words, env=environment, cwd=tmp_path, input="given", cold=cold, **TEXT)
    assert done.stdout == f"['-c', '--a', 'b c'] 33 {tmp_path} given __main__ True\n"
    assert done.stderr == f"{tmp_path / 'tmp'} 1\n" and done.returncode == 0
    without = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    code = "import os; print('COLUMNS' in os.environ)"
    assert processes.run(["-c", code], env=without, cold=cold, **TEXT).stdout == "False\n"


@BOTH
@pytest.mark.parametrize(
    ("code", "ends", "says"),
    [
        ("", 0, ""),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('why')", 1, "why\n"),
        ("import atexit, sys; atexit.register(print, 'last', file=sys.stderr)", 0, "last\n"),
        ("import os; os._exit(9)", 9, ""),
        ("import os; os.abort()", -signal.SIGABRT, ""),
    ],
)
def test_it_ends_with_its_code(cold, code, ends, says):
    done = processes.run(["-c", code], cold=cold, **TEXT)
    assert (done.returncode, done.stdout, done.stderr) == (ends, "", says)


@BOTH
@pytest.mark.parametrize(
    ("sent", "ends"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_signals_reach_it_and_it_alone(cold, sent, ends):
    code = (
        "import sys, time\ntry:\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    sys.exit(130)\n"
    )
    process, other = (processes.start(["-c", code], cold=cold, text=True, stdout=subprocess.PIPE) for _ in range(2))
    with process, other:
        assert process.stdout.readline() == other.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.01)
        process.send_signal(sent)
        assert process.wait(timeout=60) == ends and process.poll() == ends
        assert other.poll() is None
        other.kill()
        assert other.wait(timeout=60) == -signal.SIGKILL
        process.kill()  # nothing happens to what has ended


@LINUX
def test_threads_of_torch_work_after_the_fork():
    code = (
        "import os, threading, torch\nassert len(os.listdir('/proc/self/task')) == 1\ntorch.set_num_threads(2)\n"
        "one = torch.ones(700, 700, requires_grad=True)\n(one @ one).sum().backward()\n"
        "print(torch.get_num_threads(), float(one.grad[0, 0]), len(os.listdir('/proc/self/task')) > 1)"
    )
    assert processes.run(["-c", code], **TEXT).stdout == "2 1400.0 True\n"


@LINUX
def test_a_server_with_threads_forks_nothing(tmp_path, monkeypatch, capfd):
    (tmp_path / "with_a_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    monkeypatch.setitem(processes.BEFORE, "PYTHONPATH", str(tmp_path))
    server = processes.Server(["with_a_thread"])
    assert server.process.wait(timeout=60) == 1
    assert "2 threads after the imports" in capfd.readouterr().err
    server.close()
