"""Workers that hang: seen by their silence, ended, and what they were at is done by others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from support.sweeps import SMALL, Told, cells_of

from ttmbench._util.console import progress_iter, step_done, steps_told
from ttmbench.errors import TtmbenchError
from ttmbench.evaluator import executor as module
from ttmbench.evaluator.executor import REPORTED_AFTER, START, Throttle, Watch
from ttmbench.evaluator.local_executor import LocalExecutor, worker_slots
from ttmbench.model_adapters.api import pool
from ttmbench.scoring.batches import BatchSizer
from ttmbench.sweep.driver import Driver

# Real processes; in place of a cell the first one waits for what never comes, later ones take their time, but move.
STAND_IN = """
import json, sys, threading, time
sys.path[:] = json.loads(sys.argv[1])
from pathlib import Path
from ttmbench._util.console import step_done
from ttmbench.evaluator import worker, worker_process
from ttmbench.evaluator.unit import UnitResult

def do(self, unit, report=None):
    try:
        (self._root / "taken").touch(exist_ok=False)
    except FileExistsError:
        for _ in range(45):
            time.sleep(0.02)
            step_done()
        return UnitResult("done")
    threading.Event().wait()

worker.Worker.do, worker_process._SIGNS = do, 0.02
worker_process.main()
"""


@pytest.fixture
def clock(monkeypatch):
    """The watch's clock: a list with the time."""
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def looks(watch, clock, seconds, step=1.0):
    """What is found hung while some seconds pass."""
    found = {}
    for _ in range(int(seconds / step)):
        clock[0] += step
        found |= watch.hung()
    return found


def test_a_worker_is_hung_after_the_limit_without_a_sign_and_only_at_work(clock):
    watch = Watch(10)
    watch.begin("idle", "x")
    watch.end("idle")
    watch.begin("works", "a/b")
    assert looks(watch, clock, 9) == {}
    watch.heard("works")
    watch.heard("nobody")
    assert looks(watch, clock, 10) == {}
    assert looks(watch, clock, 1) == {"works": "it hung: no sign of progress for 10 s"}
    watch.end("works")
    watch.begin("starts", "its start", START)
    assert looks(watch, clock, START) == {}, "a start has a limit of its own"
    assert looks(watch, clock, 1) == {"starts": f"it hung: no sign of progress for {START:g} s"}


def test_a_driver_that_was_stopped_itself_takes_nobody_for_hung(clock):
    watch = Watch(60)
    watch.begin("works", "a/b")
    clock[0] += 100_000  # of which it saw nothing
    assert watch.hung() == {}


def test_without_a_limit_nothing_is_ended_and_it_is_said_once(clock, capsys):
    watch = Watch()
    watch.begin("works", "a/b seed 1")
    assert looks(watch, clock, 3 * REPORTED_AFTER, step=5.0) == {}
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "works has given no sign of progress for 30 minutes, at a/b seed 1" in said
    assert "stall=SECONDS" in said


def test_a_process_that_blocks_is_ended_and_its_unit_is_done_by_another(tmp_path, forked, monkeypatch):
    monkeypatch.setattr("ttmbench.evaluator.local_executor._BEGIN", STAND_IN)
    planned = cells_of(tmp_path, models=["tiny-clip"], tasks=["shapes_color"], options=SMALL)
    told, executor = Told(), LocalExecutor(tmp_path, worker_slots(1, (), 1), stall=0.6)
    summary = Driver(planned, tmp_path, "plan.yaml").run(executor, told)
    assert (summary.status, summary.workers_lost, summary.workers_hung) == ("done", 1, 1)
    assert (summary.cells[0].attempts, summary.cells[0].worker) == (2, "worker-2")
    log = tmp_path / ".sweep/logs/worker-1.log"
    assert told.lines[0] == (
        f"worker-1 is lost: it hung: no sign of progress for 0.6 s; {log} has where it stood; "
        "tiny-clip/shapes_color is tried again"
    )
    assert "in do" in log.read_text()  # the function that waits
    assert [one.poll() for one in forked] == [-9, 0]


def test_the_limit_begins_once_a_worker_is_ready(tmp_path, forked, monkeypatch, clock):
    monkeypatch.setattr("ttmbench.evaluator.local_executor._BEGIN", "import signal; signal.pause()")
    monkeypatch.setattr("ttmbench.evaluator.local_executor._STOP", 0.1)
    executor = LocalExecutor(tmp_path, worker_slots(1, (), 1), stall=10)
    executor.start()
    for _ in range(100):
        clock[0] += 5
        assert executor.wait(0) == []
    assert [one.poll() for one in forked] == [None], "500 seconds of a start are no stall"
    executor.stop(True)


def test_processes_that_hang_before_they_begin_end_the_sweep(tmp_path, forked, monkeypatch):
    monkeypatch.setattr("ttmbench.evaluator.local_executor.START", 0.0)
    monkeypatch.setattr("ttmbench.evaluator.local_executor._BEGIN", "import signal; signal.pause()")
    executor = LocalExecutor(tmp_path, worker_slots(1, (), 1), stall=0.05)
    executor.start()
    with pytest.raises(TtmbenchError, match="fail to start: it hung: no sign of progress"):
        for _ in range(200):
            executor.wait(0.05)
    executor.stop(True)


def test_what_takes_long_gives_signs():
    found = []
    with steps_told(lambda: found.append(1)):
        list(BatchSizer(2).map_batches(0, 5, lambda rows: rows))
        assert len(found) == 3
        list(progress_iter(range(4), "looking", "images"))
        assert len(found) == 7
    step_done()
    assert len(found) == 7


def test_a_wait_that_a_server_asked_for_gives_signs(monkeypatch):
    monkeypatch.setattr(pool, "_PART", 0.01)
    found = []

    async def main():
        await pool.Pool(1).sleep(0.025)

    with steps_told(lambda: found.append(1)):
        asyncio.run(main())
    assert len(found) == 3


def test_signs_are_passed_on_now_and_then():
    found = []
    often, seldom = Throttle(lambda: found.append("often"), 0.0), Throttle(lambda: found.append("seldom"), 1000.0)
    for _ in range(3):
        often()
        seldom()
    assert found.count("often") == 3 and found.count("seldom") == 1
