"""Sweeps by worker processes of this machine, and their faults: they are killed, interrupted, or hang."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import processes
from support.sweeps import SMALL, TTM, Told, cells_of, numbers, write_plan

from ttmbench._util.console import progress_iter, step_done, steps_told
from ttmbench.cli import main
from ttmbench.errors import TtmbenchError
from ttmbench.evaluator import executor as executor_module
from ttmbench.evaluator.executor import REPORTED_AFTER, START, Finished, Throttle, Watch, WorkerJoined, WorkerLost
from ttmbench.evaluator.local_executor import LocalExecutor, worker_slots
from ttmbench.evaluator.run import run
from ttmbench.evaluator.unit import Unit
from ttmbench.evaluator.worker import Worker
from ttmbench.model_adapters.api import pool
from ttmbench.scoring.batches import BatchSizer
from ttmbench.sweep.driver import Driver
from ttmbench.sweep.folder import read_summary

PLAN = {
    "models": ["tiny-clip", "tiny-clip-seed1"],
    "tasks": ["shapes_color", "shapes_place"],
    "options": {**SMALL, **TTM, "limit": 4, "deterministic": True},
}
SWEEP = "import sys; from ttmbench.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Every cell as a run of its own."""
    folder = tmp_path_factory.mktemp("alone")
    cells = [one.cell for one in cells_of(folder, **PLAN)]
    for one in cells:
        run(one.config_at(folder))
    return {one.folder: numbers(folder / one.document) for one in cells}


def events_until(executor, kind, timeout=60.0):
    """The first event of a kind, and all that came before it."""
    seen, end = [], time.monotonic() + timeout
    while time.monotonic() < end:
        for event in executor.wait(0.2):
            seen.append(event)
            if isinstance(event, kind):
                return event, seen
    raise AssertionError(seen)


def wait_for(condition, timeout=60.0):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_two_workers_give_the_bits_of_single_runs_although_one_is_killed(tmp_path, alone, forked, monkeypatch, capfd):
    """2 models x 2 tasks x 2 seeds of TTM; a worker is killed once it is at work."""
    submit, killed = LocalExecutor.submit, []

    def submit_and_kill(self, worker, unit):
        submit(self, worker, unit)
        if unit.kind == "seed" and not killed:
            killed.append(unit.name)
            os.kill(self._processes[worker].process.pid, signal.SIGKILL)

    monkeypatch.setattr(LocalExecutor, "submit", submit_and_kill)
    root = tmp_path / "board"
    code = main(["sweep", str(write_plan(tmp_path, **PLAN)), "-o", str(root), "--workers", "2"])
    said = capfd.readouterr()
    assert code == 0, said.err
    summary = read_summary(root / "sweep.json")
    assert {one.cell: numbers(root / one.document) for one in summary.cells} == alone
    assert summary.workers_lost == 1 and sorted(one.attempts for one in summary.cells) == [1, 1, 1, 2]
    assert f"ended by SIGKILL (out of memory?); {killed[0]} is tried again" in said.err
    assert said.err.count(" done in ") == 4 and "4 cells: 4 done" in said.out
    assert len(forked) == 3 and all(one.poll() is not None for one in forked)


LONG = {**SMALL, **TTM, "ttm_args": {"iterations": 40, "epochs": 10}}


def steps(root: Path) -> dict[Path, int]:
    """The finished iterations of seeds."""
    return {path: path.stat().st_mtime_ns for path in root.glob("*/*/.*/**/iteration_*.safetensors")}


def test_an_interrupted_driver_stops_its_workers_in_seconds_and_goes_on_where_they_were(tmp_path, forked):
    planned = cells_of(tmp_path, options=LONG)
    root = tmp_path / "board"
    root.mkdir()

    class Interrupts(Told):
        def update(self, *_):
            if len(steps(root)) >= 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Driver(planned, root, "plan.yaml").run(LocalExecutor(root, worker_slots(1, (), 1)), Interrupts())
    assert forked[0].poll() == 0, "it ended by itself, and was not killed"
    summary = read_summary(root / "sweep.json")
    assert summary.status == "interrupted" and [one.state for one in summary.cells] == ["waiting"]
    before, lines = steps(root), []
    assert before

    def tell(line):
        lines.append(line)
        if "iteration" in line:
            raise KeyboardInterrupt

    assert Worker(root).do(Unit(planned[0].cell, "seed", 0), report=tell).state == "stopped"
    # An iteration is recorded before the model that it leaves is on the disk, so the last one may be done again.
    again = lines[-1] == f"tiny-clip/shapes_color seed 0: seed 0, iteration {len(before)} done"
    assert again or lines[-1] == f"tiny-clip/shapes_color seed 0: seed 0, iteration {len(before) + 1} done"
    stays = {path: written for path, written in before.items() if not again or path.stem != f"iteration_{len(before)}"}
    assert stays.items() <= steps(root).items()


def test_a_worker_whose_driver_is_gone_ends(tmp_path, forked):
    planned = cells_of(tmp_path, options=LONG)
    executor = LocalExecutor(tmp_path, worker_slots(1, (), 1))
    executor.start()
    joined, _ = events_until(executor, WorkerJoined)
    executor.submit(joined.worker, Unit(planned[0].cell, "seed", 0))
    wait_for(lambda: steps(tmp_path))
    forked[0].stdin.close()
    wait_for(lambda: forked[0].poll() is not None)
    executor.stop(True)


@pytest.mark.slow
def test_ctrl_c_stops_in_seconds_and_the_same_command_goes_on(tmp_path):
    plan = write_plan(tmp_path, options=LONG)
    root = tmp_path / "board"
    words = ["-c", SWEEP, "sweep", plan, "-o", root]
    process = processes.start(words, stdout=-1, stderr=-1, text=True)
    wait_for(lambda: len(steps(root)) >= 2)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "sweep.json has the status of every cell; run the same command again to resume" in err
    summary = read_summary(root / "sweep.json")
    assert summary.status == "interrupted" and [one.state for one in summary.cells] == ["waiting"]


def test_a_worker_that_dies_idle_is_replaced_and_none_is_lost_with_it(tmp_path, forked):
    executor = LocalExecutor(tmp_path, worker_slots(1, (), 1))
    try:
        executor.start()
        joined, _ = events_until(executor, WorkerJoined)
        forked[0].kill()
        lost, _ = events_until(executor, WorkerLost)
        assert (lost.worker, lost.unit) == (joined.worker, None)
        again, _ = events_until(executor, WorkerJoined)
        assert again.worker != joined.worker
        (one,) = cells_of(tmp_path, options=SMALL)
        executor.submit(again.worker, Unit(one.cell))
        done, seen = events_until(executor, Finished)
        assert done.result.state == "done" and "tiny-clip/shapes_color" in [
            getattr(event, "line", "") for event in seen
        ]
    finally:
        executor.stop(False)
    assert [one.poll() for one in forked] == [-9, 0]


def test_processes_that_cannot_begin_end_the_sweep_with_their_last_line(tmp_path, monkeypatch):
    monkeypatch.setattr("ttmbench.evaluator.local_executor._BEGIN", "raise SystemExit('no such thing')")
    executor = LocalExecutor(tmp_path, worker_slots(1, (), 1))
    executor.start()
    with pytest.raises(TtmbenchError, match="fail to start: its process ended with exit code 1: no such thing"):
        events_until(executor, Finished)
    executor.stop(True)


def test_threads_and_devices_are_shared_out(monkeypatch):
    def environments(workers, devices=()):
        return [dict(slot.environment) for slot in worker_slots(workers, devices, 9)]

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    assert environments(1) == [{}]  # a process alone computes as a run does
    assert environments(2) == [{"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"}] * 2
    assert [one["CUDA_VISIBLE_DEVICES"] for one in environments(3, ("4", "7"))] == ["4", "7", "4"]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert environments(2)[0]["OMP_NUM_THREADS"] == "3"  # what the user says is the most
    assert len(worker_slots(8, (), 3)) == 3 and len(worker_slots(None, ("0", "1"), 9)) == 2


# ---- workers that hang: seen by their silence, ended, and what they were at is done by others

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
    monkeypatch.setattr(executor_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
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
    planned = cells_of(tmp_path, options=SMALL)
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
