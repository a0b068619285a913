"""Sweeps by worker processes of this machine, and their faults."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from support import processes
from support.sweeps import SMALL, TTM, Told, cells_of, numbers, write_plan

from ttmbench.cli import main
from ttmbench.errors import TtmbenchError
from ttmbench.evaluator.executor import Finished, WorkerJoined, WorkerLost
from ttmbench.evaluator.local_executor import LocalExecutor, worker_slots
from ttmbench.evaluator.run import run
from ttmbench.evaluator.unit import Unit
from ttmbench.evaluator.worker import Worker
from ttmbench.sweep.driver import Driver
from ttmbench.sweep.summary import read_summary

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
    planned = cells_of(tmp_path, models=["tiny-clip"], tasks=["shapes_color"], options=LONG)
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
    planned = cells_of(tmp_path, models=["tiny-clip"], tasks=["shapes_color"], options=LONG)
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
    plan = write_plan(tmp_path, models=["tiny-clip"], tasks=["shapes_color"], options=LONG)
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
        (one,) = cells_of(tmp_path, models=["tiny-clip"], tasks=["shapes_color"], options=SMALL)
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
