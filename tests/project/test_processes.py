"""A forked process behaves as one that was started cold: what it is given, what it says, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from support import processes

from ttmbench.cli import main

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
BOTH = pytest.mark.parametrize("cold", [pytest.param(False, marks=LINUX), True], ids=["forked", "cold"])
TEXT = {"capture_output": True, "text": True}
RUN = ["-m", "ttmbench", "--model", "tiny-clip", "--tasks", "shapes_color", "--limit", "6", "--bootstrap_iters", "0"]


def until(condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


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
def test_a_script_a_module_and_an_option_of_warnings(cold, tmp_path):
    (tmp_path / "beside.py").write_text("value = 5\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, beside\nif __name__ == '__main__':\n    print(sys.argv, __file__, beside.value)\n    sys.exit(3)\n"
    )
    done = processes.run([script, "x"], cold=cold, **TEXT)
    assert (done.returncode, done.stdout) == (3, f"['{script}', 'x'] {script} 5\n")
    assert processes.run(["-m", "beside"], cwd=tmp_path, cold=cold, **TEXT).returncode == 0
    code = "import warnings; warnings.warn('old', DeprecationWarning)"
    done = processes.run(["-W", "error::DeprecationWarning:__main__", "-c", code], cold=cold, **TEXT)
    assert done.returncode == 1 and done.stderr.endswith("DeprecationWarning: old\n")


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
def test_what_is_raised_is_a_traceback_and_checked(cold):
    with pytest.raises(subprocess.CalledProcessError) as failed:
        processes.run(["-c", "raise ValueError('mine')"], check=True, cold=cold, **TEXT)
    assert failed.value.returncode == 1 and "Traceback" in failed.value.stderr
    assert "ValueError: mine" in failed.value.stderr


@BOTH
@pytest.mark.parametrize(
    ("sent", "ends"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_signals_reach_it_and_it_alone(cold, sent, ends, tmp_path):
    ready = tmp_path / "ready"
    code = (
        f"import sys, time, pathlib\ntry:\n    pathlib.Path({str(ready)!r}).touch()\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    sys.exit(130)\n"
    )
    process = processes.start(["-c", code], cold=cold)
    other = processes.start(["-c", "import time; time.sleep(60)"], cold=cold)
    until(ready.exists)
    assert process.poll() is None
    process.send_signal(sent)
    assert process.wait(timeout=60) == ends and process.poll() == ends
    assert other.poll() is None
    other.kill()
    assert other.wait(timeout=60) == -signal.SIGKILL
    process.kill()  # nothing happens to what has ended


@BOTH
def test_a_time_limit(cold, tmp_path):
    program = f"import pathlib, time; time.sleep(60); pathlib.Path({str(tmp_path / 'ended')!r}).touch()"
    with pytest.raises(subprocess.TimeoutExpired):
        processes.run(["-c", program], timeout=0.5, cold=cold, **TEXT)
    assert not (tmp_path / "ended").exists(), "it was ended, and did not end by itself"


@BOTH
def test_much_is_written_and_read_and_both_outputs_may_be_one(cold):
    code = "import sys; text = sys.stdin.read(); print(text); print(text, file=sys.stderr)"
    done = processes.run(["-c", code], input="x" * 300_000, cold=cold, **TEXT)
    assert len(done.stdout) == len(done.stderr) == 300_001
    process = processes.start(["-c", code], stdin=subprocess.DEVNULL, stdout=-1, stderr=subprocess.STDOUT, cold=cold)
    assert process.communicate(timeout=60) == (b"\n\n", None)


@BOTH
def test_it_draws_its_own_random_numbers(cold):
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    one, other = (processes.run(["-c", code], cold=cold, **TEXT).stdout.split() for _ in range(2))
    assert one[0] != other[0] and one[1] != other[1]


@BOTH
def test_the_command_runs_in_it(cold):
    done = processes.run(["-m", "ttmbench", "validate", "shapes_color", "--limit", "4"], cold=cold, **TEXT)
    assert done.returncode == 0 and "all images decode" in done.stdout and not done.stderr
    wrong = processes.run(["-m", "ttmbench", "show", "no-such"], cold=cold, **TEXT)
    assert wrong.returncode == 2 and "no-such" in wrong.stderr


@LINUX
def test_a_run_in_it():
    """A cold one is in ``cli/test_startup.py``."""
    done = processes.run(RUN, **TEXT)
    assert done.returncode == 0 and "shapes_color" in done.stdout and "Traceback" not in done.stderr


@LINUX
def test_threads_of_torch_work_after_the_fork():
    code = (
        "import os, threading, torch\nassert len(os.listdir('/proc/self/task')) == 1\ntorch.set_num_threads(2)\n"
        "one = torch.ones(700, 700, requires_grad=True)\n(one @ one).sum().backward()\n"
        "print(torch.get_num_threads(), float(one.grad[0, 0]), len(os.listdir('/proc/self/task')) > 1)"
    )
    assert processes.run(["-c", code], **TEXT).stdout == "2 1400.0 True\n"


@LINUX
def test_what_a_child_does_stays_in_it():
    code = "import sys, ttmbench; print(hasattr(ttmbench, 'mine'), 'torch' in sys.modules); ttmbench.mine = 1"
    assert [processes.run(["-c", code], **TEXT).stdout for _ in range(2)] == ["False True\n"] * 2


@LINUX
@pytest.mark.parametrize(
    ("changed", "everything"),
    [
        ({"COLUMNS": "50", "TTMBENCH_CACHE": "/x", "HF_TOKEN": "x", "no_proxy": "x"}, [True, True]),
        ({"HF_HOME": "/x", "HF_ENDPOINT": "http://127.0.0.1:9"}, [False, True]),
        ({"PYTHONPATH": "/x"}, [False, False]),
        ({"PYTHONHASHSEED": "1"}, None),
        ({"OMP_NUM_THREADS": "3"}, None),
        ({"HOME": "/x", "HF_HOME": "/x"}, None),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_variables_that_are_read_at_the_start_have_a_start(changed, everything):
    """Or a server of their own, from the second time on."""
    environment = {**processes.BEFORE, **changed}
    code = (
        f"import os, sys; print([os.environ[name] for name in {list(changed)}], 'torch' in sys.modules,"
        "'ttmbench.evaluator.run' in sys.modules, '/x' in sys.path)\n"
        "from huggingface_hub import constants; print(constants.HF_HOME, constants.ENDPOINT, file=sys.stderr)"
    )
    cold = processes.run(["-c", code], env=environment, cold=True, **TEXT)
    for known in [False, False] if everything is None else everything:
        done = processes.run(["-c", code], env=environment, **TEXT)
        forked = everything is not None
        assert done.stdout == f"{list(changed.values())} {forked} {known} {'PYTHONPATH' in changed}\n"
        assert done.stderr == cold.stderr and ("/x 127" in cold.stderr.replace("http://", "")) == (
            "HF_ENDPOINT" in changed
        )
    if everything is None:
        assert processes.server_for(environment) is None


@LINUX
def test_a_command_in_this_process_leaves_the_servers_in_use(capsys):
    assert main(["ls", "metrics"]) == 0
    assert processes.server_for(os.environ) is processes.server_for(processes.BEFORE) is not None


@LINUX
def test_a_server_that_dies_is_told():
    server = processes.Server(["json"])
    request = {"words": ["-c", "import time; time.sleep(60)"], "environment": {}, "path": [], "folder": "/"}
    told = server.fork(request, [0, 1, 2])
    process = processes.Forked(told, [], [None, None, None])
    server.process.kill()
    server.process.wait()
    with pytest.raises(RuntimeError, match="the server that forks has died"):
        process.wait(timeout=60)
    os.kill(process.pid, signal.SIGKILL)
    os.close(told)
    server.close()


@LINUX
def test_a_server_ends_with_whoever_asks():
    server = processes.Server(["json"])
    server.close()
    assert server.process.wait(timeout=60) == 0


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
