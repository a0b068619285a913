"""What the executor makes of what Ray says, without Ray: lost objects, a full store, dead workers, nodes that come."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from support.sweeps import SMALL, TTM, cells_of

from ttmbench._util import machine
from ttmbench.cli import main
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.evaluator import executor as watch
from ttmbench.evaluator.executor import WorkerJoined, WorkerLost
from ttmbench.evaluator.local_executor import OWN
from ttmbench.evaluator.unit import Unit, UnitResult
from ttmbench.sweep import ray_cluster, ray_executor
from ttmbench.sweep.executor_options import RayOptions
from ttmbench.sweep.payload import Payload, gather, missing_plugins, relocated
from ttmbench.sweep.ray_cluster import board_class
from ttmbench.sweep.ray_executor import RayExecutor
from ttmbench.sweep.ray_worker import Greeting, RayWorker, leave_token


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


class OutOfMemoryError(RayError):
    pass


class LostError(RayError):
    pass


@dataclass(eq=False)
class Reference:
    """To what comes."""

    answer: object


class Refused(Exception):
    """Raised when something is sent, in place of an answer."""


class Method:
    """A method of an actor: what it was called with, and what it will answer."""

    def __init__(self, answers=()):
        self.answers, self.given = answers, []

    def options(self, **_):
        return self

    def remote(self, *given):
        self.given.append(given)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Refused):
            raise answer.args[0]
        return Reference(answer)


class FakeRay:
    """A cluster of nodes, whose actors answer as they are told.

    Args:
        does: what actors answer to units, one after the other.
        hello: likewise, to a greeting.
    """

    exceptions = SimpleNamespace(RayError=RayError, RayActorError=RayActorError, OutOfMemoryError=OutOfMemoryError)
    cloudpickle = SimpleNamespace(dumps=lambda value: value)
    strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
    util = SimpleNamespace(scheduling_strategies=strategies)

    def __init__(self, does=(), hello=()):
        self.does, self.greeted, self.there = list(does), list(hello), {"n1": 1}
        self.killed, self.actors, self.placed = [], [], []
        self.kill = self.killed.append

    def get_runtime_context(self):
        return SimpleNamespace(get_node_id=lambda: "n1")

    def nodes(self):
        return [
            {"NodeID": name, "NodeManagerAddress": f"at-{name}", "Resources": {"CPU": cpus}, "Alive": True}
            for name, cpus in self.there.items()
        ]

    def remote(self, *classes, **_):
        make = self.board if classes else self.actor
        return SimpleNamespace(options=make) if classes else lambda made: SimpleNamespace(options=make)

    def board(self, **_):
        return SimpleNamespace(remote=lambda: SimpleNamespace(take=Method([{}] * 99)))

    def actor(self, *, scheduling_strategy, **_):
        self.placed.append(scheduling_strategy)
        hello = Method([self.greeted.pop(0) if self.greeted else ([], True, 1)])
        made = SimpleNamespace(hello=hello, do=Method(self.does), leave=Method(), interrupt=Method())
        self.actors.append(made)
        return SimpleNamespace(remote=lambda: made)

    def wait(self, answers, num_returns=1, timeout=0.0):
        return list(answers)[:num_returns], []

    def get(self, answer, timeout=None):
        if isinstance(answer.answer, Exception):
            raise answer.answer
        return answer.answer


def done(unit=None, state="done", error=None):
    return UnitResult(state, error), {}


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """Makes an executor on a fake cluster and starts it."""
    (one,) = cells_of(tmp_path, options=SMALL)
    monkeypatch.setattr(ray_executor, "connect", lambda *_: None)
    monkeypatch.setattr(ray_executor, "_CHECK", -1.0)
    clock = [0.0]

    def now():
        clock[0] += 1.0
        return clock[0]

    monkeypatch.setattr(ray_executor, "time", SimpleNamespace(monotonic=now, sleep=lambda seconds: None))

    def begin(ray, **given):
        monkeypatch.setattr(ray_executor, "import_ray", lambda: ray)
        executor = RayExecutor(tmp_path / "out", RayOptions.read(given), [one.cell], 9)
        executor.start()
        joined, executor._queued = executor._queued, []
        return executor, joined

    return SimpleNamespace(begin=begin, unit=Unit(one.cell), planned=[one], root=tmp_path / "out")


def events(executor, times=12):
    return [event for _ in range(times) for event in executor.wait(0.0)]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (RayActorError("a\nlong story"), "its process on node at-n1 has ended"),
        (OutOfMemoryError("x"), "the memory of node at-n1 ran out"),
        (LostError("evicted\nat length"), "its unit or its result did not arrive: evicted"),
        (Refused(LostError("no room\nat all")), "its unit or its result did not arrive: no room"),
    ],
)
def test_a_dead_worker_is_replaced(begun, error, why):
    executor, (joined,) = begun.begin(FakeRay(does=[error]))
    executor.submit(joined.worker, begun.unit)
    lost, again = events(executor)
    assert lost == WorkerLost(joined.worker, begun.unit, why) and isinstance(again, WorkerJoined)


def test_a_worker_that_hangs_is_ended_and_replaced_and_one_that_gives_signs_is_not(begun, monkeypatch):
    ray = FakeRay(does=["never", "never", done()])
    ray.there = {"n1": 1, "n2": 1}
    ray.wait = lambda answers, num_returns=1, timeout=0.0: ([one for one in answers if one.answer != "never"], [])
    monkeypatch.setattr(watch, "time", ray_executor.time)  # a second at each look
    executor, joined = begun.begin(ray, stall=30)
    for one in joined:
        executor.submit(one.worker, begun.unit)
    told = {joined[1].worker: None}  # the line of one that only goes on
    executor._board.take.answers[:] = [told] * 99
    seen = events(executor, 60)
    assert seen[0] == WorkerLost(
        joined[0].worker, begun.unit, "it hung: no sign of progress for 30 s on node at-n1", True
    )
    assert isinstance(seen[1], WorkerJoined) and len(seen) == 2
    assert ray.killed == ray.actors[:1]


def test_a_board_that_cannot_be_asked_makes_nobody_hang(begun, monkeypatch):
    ray = FakeRay(does=["never"])
    ray.wait = lambda answers, num_returns=1, timeout=0.0: (
        [one for one in answers if isinstance(one.answer, dict | tuple)],
        [],
    )
    monkeypatch.setattr(watch, "time", ray_executor.time)
    executor, (joined,) = begun.begin(ray, stall=10)
    executor._board.take.answers[:] = ["no answer"]
    events(executor, 1)  # asks it
    executor.submit(joined.worker, begun.unit)
    assert events(executor, 60) == []


def test_a_dead_node_is_named_and_its_units_go_to_another(begun):
    ray = FakeRay(does=[RayActorError("x"), done()])
    ray.there = {"n1": 1, "n2": 1}
    executor, joined = begun.begin(ray)
    assert sorted(one.place for one in joined) == ["n1", "n2"]
    first = next(one for one in joined if one.place == "n2")
    executor.submit(first.worker, begun.unit)
    del ray.there["n2"]
    assert events(executor) == [WorkerLost(first.worker, begun.unit, "node at-n2 has ended")]


def test_a_node_that_comes_gets_workers(begun):
    ray = FakeRay()
    executor, joined = begun.begin(ray)
    assert len(joined) == 1 and events(executor) == []
    ray.there["n2"] = 2
    assert [one.place for one in events(executor)] == ["n2", "n2"]


def test_there_are_no_more_workers_than_asked_for(begun):
    ray = FakeRay()
    ray.there = {"n1": 4, "n2": 4}
    _, joined = begun.begin(ray, workers=3)
    assert sorted(one.place for one in joined) == ["n1", "n1", "n2"]


def test_a_node_that_lacks_something_is_left_alone(begun, capsys):
    ray = FakeRay(hello=[(["it has torch 1", "and more"], False, 0)])
    ray.there = {"n1": 1, "n2": 1}
    executor, joined = begun.begin(ray)
    assert [one.place for one in joined] == ["n2"] and events(executor) == []
    assert "node at-n1 is not used: it has torch 1 (and 1 more)" in capsys.readouterr().err
    assert ray.placed == ["n1", "n2"]


def test_workers_that_end_before_they_begin_end_the_sweep(begun):
    with pytest.raises(TtmbenchError, match="no node of the cluster can be used: node at-n1: workers fail to start"):
        begun.begin(FakeRay(hello=[RayActorError("x")] * 9))


def test_no_room_is_said_with_what_there_is(begun):
    with pytest.raises(TtmbenchError, match=r"no node of the cluster has 64 CPUs; there are: at-n1 \(1 CPUs"):
        begun.begin(FakeRay(), num_cpus=64)


def test_what_a_place_lacks_is_said_with_its_name(begun):
    executor, (joined,) = begun.begin(FakeRay(does=[done(state="unfit", error="no weights")]))
    executor.submit(joined.worker, begun.unit)
    (event,) = events(executor)
    assert event.result == UnitResult("unfit", "on node at-n1: no weights")


def test_a_head_that_is_gone_ends_the_sweep_with_one_line(begun, monkeypatch):
    executor, _ = begun.begin(FakeRay())
    executor._head = "127.0.0.1:1"
    with pytest.raises(
        TtmbenchError, match=r"the head of the Ray cluster at 127.0.0.1:1 is gone \(Connection refused\)"
    ):
        events(executor)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_cpu": 4}, "unknown key 'num_cpu'; did you mean 'num_cpus'?"),
        ({"num_cpus": 0}, "'num_cpus': must be greater than 0, got 0"),
        ({"num_gpus": "all"}, "'num_gpus': must be a valid number, got 'all'"),
        ({"workers": 1.5}, "'workers': must be a valid integer, got 1.5"),
        ({"folder": "mine"}, "'folder': must be 'auto' or 'own', got 'mine'"),
        ({"stall": True}, "'stall': must be a valid number, got True"),
        ({"address": "ray://head:10001"}, "ray start --address=HOST:PORT"),
    ],
)
def test_wrong_arguments_are_one_line(given, said):
    with pytest.raises(UsageError) as error:
        RayOptions.read(given)
    assert said in str(error.value)


def test_a_worker_takes_a_gpu_where_there_are_any():
    assert RayOptions().resources(True) == {"CPU": 1, "GPU": 1.0}
    assert RayOptions().resources(False) == {"CPU": 1}
    assert RayOptions(num_gpus=0.5, memory=2).resources(True) == {"CPU": 1, "GPU": 0.5, "memory": 2e9}
    assert (RayOptions(num_cpus=4).threads, RayOptions(num_cpus=0.5).threads) == (4, 1)


def test_no_cluster_is_started(monkeypatch, tmp_path):
    ray = SimpleNamespace(is_initialized=lambda: False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(TtmbenchError, match=f"no Ray cluster answers at 127.0.0.1:{port}"):
            ray_cluster.connect(ray, f"127.0.0.1:{port}", {})
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(TtmbenchError, match="no Ray cluster is known on this machine"):
        ray_cluster.connect(ray, "auto", {})
    with pytest.raises(UsageError, match="must be HOST:PORT"):
        ray_cluster.connect(ray, "head", {})


def test_without_ray_the_command_says_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ray_cluster._QUIET:
        monkeypatch.setenv(name, os.environ.get(name, "0"))
    plan = tmp_path / "plan.yaml"
    plan.write_text("models: [tiny-clip]\ntasks: [shapes_color]\n")
    assert main(["sweep", str(plan), "-o", str(tmp_path / "out"), "--executor", "ray"]) == 2
    assert "pip install 'ttmbench[ray]'" in capsys.readouterr().err


def test_task_files_and_samples_go_along(tmp_path, monkeypatch):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "deep.yaml").write_text("x")
    (tmp_path / "ids.json").write_text("[]")
    (tmp_path / "sent").mkdir()
    monkeypatch.chdir(tmp_path)
    options = SMALL | TTM | {"include_path": ["tasks"], "samples": "ids.json"}
    (tmp_path / "tasks" / "deep.yaml").unlink()
    (one,) = cells_of(tmp_path, options=options)
    payload = gather([one.cell], tmp_path / "sent")
    assert set(payload.paths) == {"tasks", "ids.json"}
    config = relocated(Unit(one.cell), {name: f"/there/{place}" for name, place in payload.paths.items()}).cell.config
    assert config.include_path == ["/there/files/0/tasks"] and config.samples == "/there/files/1/ids.json"
    assert relocated(Unit(one.cell), {}).cell == one.cell
    monkeypatch.setattr("ttmbench.sweep.payload.MOST", -1)
    (tmp_path / "other").mkdir()
    assert set(gather([one.cell], tmp_path / "other").paths) == {"ids.json"}


def test_a_local_plugin_goes_along_and_is_found(tmp_path, monkeypatch):
    own = tmp_path / "own"
    (own / "acme_sweep").mkdir(parents=True)
    (own / "acme_sweep" / "__init__.py").write_text("")
    about = own / "acme_sweep-2.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-sweep\nVersion: 2.1\n")
    (about / "entry_points.txt").write_text("[ttmbench]\nacme = acme_sweep\n")
    monkeypatch.setattr(sys, "path", [str(own), *sys.path])
    (tmp_path / "sent").mkdir()
    payload = gather([], tmp_path / "sent")
    assert payload.plugins["acme-sweep"] == "2.1" and "acme-sweep" in payload.sent
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != str(own)])
    assert [line for line in missing_plugins(payload, tmp_path / "nothing") if "acme" in line] == [
        "the plugin acme-sweep 2.1 is not installed there"
    ]
    monkeypatch.setattr(sys, "path", [one for one in sys.path if "nothing" not in one])
    assert not [line for line in missing_plugins(payload, tmp_path / "sent") if "acme" in line]
    assert (tmp_path / "sent" / "plugins" / "acme_sweep" / "__init__.py").is_file()


@pytest.fixture
def greeting(tmp_path, monkeypatch):
    """What a driver says; its board remembers what it is told."""
    (tmp_path / "driver").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TTMBENCH_CACHE", str(tmp_path / "node"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    told = []
    board = SimpleNamespace(tell=SimpleNamespace(remote=lambda *given: told.append(given)))
    given = {
        "root": str(tmp_path / "driver"),
        "token": "t",
        "cwd": str(tmp_path),
        "cache": str(tmp_path / "cache"),
        "packages": machine.packages(),
        "payload": Payload({}, {}, ()),
        "variables": {},
        "threads": 1,
        "board": board,
        "name": "w",
    }
    return given, told


def test_a_worker_that_sees_the_folder_works_there(greeting, tmp_path, capsys):
    given, told = greeting
    leave_token(tmp_path / "driver" / OWN, "t")
    leave_token(tmp_path / "cache", "t")
    worker = RayWorker(Greeting(**given))
    assert worker.common and worker.lacks == [] and worker._cache is None
    assert [path.name for path in (tmp_path / "driver" / OWN).iterdir()] == [".common-t"]
    (one,) = cells_of(tmp_path, options={**SMALL, "limit": 4})
    result, files = worker.do(Unit(one.cell), None)
    assert result.state == "done" and files == {} and told[0][0] == "w"
    assert (tmp_path / "driver" / one.cell.document).is_file()
    (tmp_path / "cache" / ".common-t").unlink()
    assert RayWorker(Greeting(**given))._cache == tmp_path / "driver" / OWN / "scores"


def test_a_worker_that_does_not_see_it_sends_what_it_wrote(greeting, tmp_path):
    given, _ = greeting
    worker = RayWorker(Greeting(**{**given, "packages": {**machine.packages(), "torch": "1.0"}}))
    assert not worker.common and worker._cache == tmp_path / "node"
    assert [line.startswith("it has torch ") and line.endswith(", the driver has 1.0") for line in worker.lacks] == [
        True
    ]
    (one,) = cells_of(tmp_path, options={**SMALL, "limit": 4})
    result, files = worker.do(Unit(one.cell), {})
    assert result.state == "done" and one.cell.document in files
    assert not (tmp_path / "driver" / one.cell.folder).exists()
    own = worker._root
    dead = tmp_path / "ttmbench-sweep-999999999-x"
    dead.mkdir()
    RayWorker(Greeting(**given)).leave()
    assert own.is_dir() and not dead.exists()
    worker.leave()
    assert not own.exists()


def test_what_killed_commands_left_to_be_known_by_is_removed(tmp_path):
    left = [leave_token(tmp_path / name, "one") for name in (OWN, "cache")]
    os.utime(left[1], (0, 0))
    other = leave_token(tmp_path / "cache", "two")
    assert leave_token(tmp_path / OWN, "three").is_file() and other.is_file()
    assert not left[0].exists() and not left[1].exists()
    leave_token(tmp_path / "cache", "four")
    assert other.exists(), "it may be of a sweep that runs"


def test_the_board_has_the_last_line_of_a_worker():
    board = board_class()()
    board.tell("w", "first")
    board.tell("w", "second")
    board.tell("w", None)
    assert board.take() == {"w": "second"} and board.take() == {}


def test_a_worker_that_is_interrupted_stops_its_unit():
    worker = RayWorker.__new__(RayWorker)
    worker._thread = None
    worker.interrupt()  # nothing is under way

    def work():
        worker._thread = threading.get_ident()
        with pytest.raises(KeyboardInterrupt):
            while True:
                time.sleep(0.01)

    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(work)
        while worker._thread is None:
            time.sleep(0.01)
        worker.interrupt()
        stopped.result(5)
