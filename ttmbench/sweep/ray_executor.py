"""Workers on a Ray cluster: actors as many as its nodes have room for, each with a worker of its own."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

from ttmbench._util.console import warn
from ttmbench._util.third_party_errors import error_line
from ttmbench._version import __version__
from ttmbench.cache.location import CACHE_VARIABLE, LIMIT_VARIABLE, cache_folder
from ttmbench.errors import TtmbenchError
from ttmbench.evaluator.executor import Event, Finished, Progress, Watch, WorkerJoined, WorkerLost
from ttmbench.evaluator.local_executor import OWN
from ttmbench.evaluator.unit import Cell, Unit, UnitResult
from ttmbench.results import environment
from ttmbench.sweep.carried import Carried, gather
from ttmbench.sweep.executor_options import RayOptions
from ttmbench.sweep.ray_board import board_class
from ttmbench.sweep.ray_cluster import Node, connect, first_line, import_ray, nodes, silence
from ttmbench.sweep.ray_worker import Begin, Greeting, actor_class, leave_token
from ttmbench.sweep.transfer import files_of, take_in

_LOOK = 2.0  # seconds between two looks at the nodes, and at the board
_FIRST = 60.0  # seconds for the first worker to begin, after which it is said that none has
_STILLBORN = 3  # workers in a row that are lost on a node before they begin: it is not used
_TRIES = 4  # to hand over a unit, or to get its result
_STOP = 4.0  # seconds for units to stop
_VARIABLES = ("TTMBENCH_LIMITS", "TTMBENCH_DATA", LIMIT_VARIABLE, CACHE_VARIABLE)


@dataclass(eq=False)
class _Remote:
    """A worker as the driver sees it.

    Attributes:
        name: of the worker.
        node: where it is.
        actor: its handle.
        answer: what it was asked last, as Ray's reference; None while there is nothing to wait for.
        asked: what that was; ``sending`` is a unit that could not be handed over yet.
        process: its number on its node.
        tries: to hand over or to get this unit's result.
        later: not before.
    """

    name: str
    node: Node
    actor: Any
    answer: Any
    asked: Literal["hello", "unit", "sending", "nothing"] = "hello"
    common: bool = True
    unit: Unit | None = None
    process: int = 0
    tries: int = 0
    later: float = 0.0


class RayExecutor:
    """Workers on a cluster; a `ttmbench.evaluator.executor.Executor`.

    Args:
        root: the sweep's folder.
        options: how the cluster is used.
        cells: of the sweep.
        units: how many there are: no more workers than these.
    """

    def __init__(self, root: Path, options: RayOptions, cells: Sequence[Cell], units: int) -> None:
        self._root, self._options, self._cells = root, options, cells
        self._most = min(units, options.workers or units)
        self._ray = import_ray()
        self._remotes: dict[str, _Remote] = {}
        self._queued: list[Event] = []
        self._barred: dict[str, str] = {}
        self._stillborn: Counter[str] = Counter()
        self._tokens: list[Path] = []
        self._told: set[bool] = set()
        self._started, self._looked = 0, 0.0
        self._watch = Watch(options.stall)
        self._head: str | None = None
        self._gone_head = False

    def start(self) -> None:
        """Joins the cluster and waits for the first worker.

        Raises:
            TtmbenchError: no cluster answers, no node has room, or no node has what a worker needs.
        """
        ray, options = self._ray, self._options
        with tempfile.TemporaryDirectory() as folder:
            carried = gather(self._cells, Path(folder))
            self._head = connect(ray, options.address, {} if carried.is_empty else {"working_dir": folder})
        there = nodes(ray)
        self._wanted = options.resources(any(node.resources.get("GPU") for node in there))
        if not any(node.room(self._wanted) for node in there):
            raise TtmbenchError(f"no node of the cluster has {_shown(self._wanted)}; there are: {_nodes_shown(there)}")
        stays = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        own = stays(ray.get_runtime_context().get_node_id(), soft=True)
        board = ray.remote(board_class()).options(num_cpus=0, max_restarts=-1, scheduling_strategy=own)
        self._board = board.remote()
        self._taking = self._board.take.remote()
        self._actors = ray.remote(concurrency_groups={"work": 1, "control": 1})(actor_class())
        self._greeting = self._greet(carried)
        self._top_up()
        began = time.monotonic()
        while not (joined := self.wait(1.0)):
            if time.monotonic() - began > _FIRST:
                warn(f"no worker has begun in {_FIRST:.0f} s: the cluster has no {_shown(self._wanted)} free")
                break
        self._queued = joined

    def submit(self, worker: str, unit: Unit) -> None:
        """Gives a unit to a worker, with what earlier units left where it does not see the sweep's folder."""
        remote = self._remotes[worker]
        remote.unit, remote.tries = unit, 0
        self._hand_over(remote)

    def wait(self, timeout: float) -> list[Event]:
        """What has happened; TtmbenchError if no node can be used any more."""
        events, self._queued = self._queued, []
        now = time.monotonic()
        for remote in list(self._remotes.values()):
            if remote.asked == "sending" and now >= remote.later:
                self._hand_over(remote)
        answers = {one.answer: one for one in self._remotes.values() if one.answer is not None and now >= one.later}
        if not answers:
            time.sleep(0 if events else min(timeout, 0.2))
        else:
            waited, _ = self._ray.wait(list(answers), timeout=0 if events else timeout)
            if waited:
                waited, _ = self._ray.wait(list(answers), num_returns=len(answers), timeout=0)
            for answer in waited:
                events += self._heard(answers[answer])
        if time.monotonic() - self._looked > _LOOK:
            events += self._take_lines()
            self._top_up()
        return [*events, *self._drain()]

    def stop(self, at_once: bool) -> None:
        """Ends all workers; what units under way have finished is kept."""
        try:
            if not self._gone_head:
                if at_once:
                    self._interrupt()
                began = [one for one in self._remotes.values() if one.asked != "hello"]
                leaving = [_call(one.actor.leave, "control").remote() for one in began]
                if leaving:
                    self._ray.wait(leaving, num_returns=len(leaving), timeout=1.0)
        finally:
            for remote in list(self._remotes.values()):
                self._drop(remote)
            if self._head is not None and not self._gone_head:
                self._ray.shutdown()
            for token in self._tokens:
                token.unlink(missing_ok=True)

    def _interrupt(self) -> None:
        """Asks units under way to stop, and takes in what they have finished."""
        busy = {one.answer: one for one in self._remotes.values() if one.asked == "unit" and one.answer is not None}
        for one in busy.values():
            _call(one.actor.interrupt, "control").remote()
        stopped = self._ray.wait(list(busy), num_returns=len(busy), timeout=_STOP)[0] if busy else []
        for answer in stopped:
            with suppress(self._ray.exceptions.RayError, TtmbenchError):
                unit, (_, files) = busy[answer].unit, self._ray.get(answer, timeout=_STOP)
                if unit is not None and files:
                    take_in(self._root, unit.cell, files, over=False)

    def _greet(self, carried: Carried) -> Greeting:
        token = None
        configured = next((one.config.use_cache for one in self._cells), None)
        cache = cache_folder(configured)
        if self._options.folder == "auto":
            token = token_hex(8)
            places = [self._root.absolute() / OWN, *([] if cache is None else [cache.absolute()])]
            self._tokens = [path for place in places if (path := leave_token(place, token)) is not None]
        variables = {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)}
        return Greeting(
            root=str(self._root.absolute()),
            token=token,
            cwd=str(Path.cwd()),
            cache=None if cache is None else str(cache.absolute()),
            packages=environment.packages(),
            carried=carried,
            variables=variables,
            threads=self._options.threads,
            board=self._board,
            name="",
        )

    def _top_up(self) -> None:
        """Begins workers where nodes have room for more; a node that has just come is one of them."""
        self._check_head()
        self._looked = time.monotonic()
        there = nodes(self._ray)
        usable = [node for node in there if node.id not in self._barred and node.room(self._wanted)]
        if not usable and not self._remotes and self._barred:
            raise TtmbenchError(f"no node of the cluster can be used: {next(iter(self._barred.values()))}")
        on = Counter(one.node.id for one in self._remotes.values())
        rooms = {node.id: node.room(self._wanted) - on[node.id] for node in usable}
        while len(self._remotes) < self._most and any(room > 0 for room in rooms.values()):
            node = min((one for one in usable if rooms[one.id] > 0), key=lambda one: on[one.id])
            self._begin(node)
            on[node.id] += 1
            rooms[node.id] -= 1

    def _check_head(self) -> None:
        """TtmbenchError if the head of the cluster is gone, at which Ray would end this process after a minute."""
        why = None if self._head is None else silence(self._head)
        if why is not None:
            self._gone_head = True
            raise TtmbenchError(
                f"the head of the Ray cluster at {self._head} is gone ({why}); what is finished is kept, and the same "
                "command goes on once there is a cluster again"
            )

    def _begin(self, node: Node) -> None:
        ray = self._ray
        self._started += 1
        name = f"{node.address}-{self._started}"
        stays = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
        wanted = self._wanted
        actor = self._actors.options(
            num_cpus=wanted.get("CPU", 0),
            num_gpus=wanted.get("GPU", 0),
            memory=wanted.get("memory"),
            scheduling_strategy=stays,
        ).remote()
        greeting = Begin(Greeting(**{**vars(self._greeting), "name": name}))
        hello = _call(actor.hello).remote(__version__, ray.cloudpickle.dumps(greeting))
        self._remotes[name] = _Remote(name, node, actor, hello)

    def _hand_over(self, remote: _Remote) -> None:
        """Sends a worker its unit; what Ray has no room for now is sent later."""
        unit = remote.unit
        assert unit is not None
        remote.tries += 1
        try:
            files = None if remote.common else files_of(self._root, unit.cell)
            remote.answer, remote.asked = _call(remote.actor.do).remote(unit.to_json(), files), "unit"
            remote.tries = 0
            self._watch.begin(remote.name, unit.name)
        except self._ray.exceptions.RayActorError:
            self._queued.append(self._lost(remote, self._ended(remote)))
        except self._ray.exceptions.RayError as error:
            if remote.tries >= _TRIES:
                remote.unit, remote.asked = None, "nothing"
                why = f"it cannot be handed to a worker: {first_line(error)}"
                self._queued.append(Finished(remote.name, unit, UnitResult("failed", why)))
            else:
                remote.answer, remote.asked = None, "sending"
                remote.later = time.monotonic() + 2.0**remote.tries

    def _heard(self, remote: _Remote) -> list[Event]:
        """What the answer of a worker means."""
        errors = self._ray.exceptions
        try:
            said = self._ray.get(remote.answer)
        except errors.RayActorError:
            return self._gone(remote, self._ended(remote))
        except errors.OutOfMemoryError:
            return self._gone(remote, f"the memory of node {remote.node.address} ran out")
        except errors.RayError as error:
            remote.tries += 1
            if remote.asked != "unit" or remote.tries >= _TRIES:
                return self._gone(remote, f"its result did not arrive: {first_line(error)}")
            remote.answer = _call(remote.actor.again, "control").remote()  # done it is, and was lost on the way
            remote.later = time.monotonic() + 2.0 ** (remote.tries - 1)
            return []
        if remote.asked == "hello":
            return self._welcome(remote, said)
        self._watch.end(remote.name)
        unit, remote.unit, remote.answer, remote.asked = remote.unit, None, None, "nothing"
        assert unit is not None and said[0] is not None, "an answer is of a unit"
        result, files = UnitResult(**said[0]), said[1]
        if files:
            take_in(self._root, unit.cell, files, over=unit.kind == "run" and result.state == "done")
        if result.state == "unfit":
            result = UnitResult("unfit", f"on node {remote.node.address}: {result.error}", result.seconds)
        return [Finished(remote.name, unit, result)]

    def _welcome(self, remote: _Remote, said: Mapping[str, Any]) -> list[Event]:
        """A worker has begun, or says what it lacks."""
        if said["lacks"]:
            more = f" (and {len(said['lacks']) - 1} more)" if len(said["lacks"]) > 1 else ""
            self._bar(remote.node, f"{said['lacks'][0]}{more}")
            self._drop(remote)
            return []
        remote.common, remote.process, remote.answer, remote.asked = said["common"], said["process"], None, "nothing"
        self._stillborn[remote.node.id] = 0
        if remote.common not in self._told:
            self._told.add(remote.common)
            if not remote.common:
                warn(
                    f"node {remote.node.address} does not see {self._root}: files travel through Ray, and its workers "
                    "share the node's own cache"
                )
        return [WorkerJoined(remote.name, remote.node.id)]

    def _gone(self, remote: _Remote, why: str) -> list[Event]:
        if remote.asked != "hello":
            return [self._lost(remote, why)]
        self._drop(remote)
        if remote.node.id in {node.id for node in nodes(self._ray)}:
            self._stillborn[remote.node.id] += 1
            if self._stillborn[remote.node.id] >= _STILLBORN:
                self._bar(remote.node, f"workers end there before they begin: {why}")
        return []

    def _lost(self, remote: _Remote, why: str, hung: bool = False) -> WorkerLost:
        self._drop(remote)
        self._looked = 0.0  # another one takes its place
        return WorkerLost(remote.name, remote.unit, why, hung)

    def _drop(self, remote: _Remote) -> None:
        self._remotes.pop(remote.name, None)
        self._watch.end(remote.name)
        if not self._gone_head:
            with suppress(Exception):  # whatever Ray has to say of an actor that is gone
                self._ray.kill(remote.actor)

    def _bar(self, node: Node, why: str) -> None:
        self._barred[node.id] = f"node {node.address}: {why}"
        warn(f"node {node.address} is not used: {why}")

    def _ended(self, remote: _Remote) -> str:
        """Why a worker is gone, as far as it is known."""
        self._check_head()
        try:
            there = any(node.id == remote.node.id for node in nodes(self._ray))
        except Exception as error:
            return error_line(error)
        return f"{'its process on ' if there else ''}node {remote.node.address} has ended"

    def _take_lines(self) -> list[Event]:
        """What workers have told the board, and which of them have told it nothing for too long."""
        try:
            if not self._ray.wait([self._taking], timeout=0)[0]:
                return []
            lines = self._ray.get(self._taking)
        except self._ray.exceptions.RayError:  # it begins again, empty
            lines = {}
        self._taking = self._board.take.remote()
        for worker in lines:
            self._watch.heard(worker)
        told = [Progress(worker, line) for worker, line in lines.items() if line and worker in self._remotes]
        hung = [(self._remotes[worker], why) for worker, why in self._watch.hung().items()]
        return [*told, *(self._lost(one, f"{why} on node {one.node.address}", hung=True) for one, why in hung)]

    def _drain(self) -> list[Event]:
        queued, self._queued = self._queued, []
        return queued


def _call(method: Any, group: Literal["work", "control"] = "work") -> Any:
    """A method of an actor in one of its two threads: that of its work, and one that is always free."""
    return method.options(concurrency_group=group)


def _shown(wanted: Mapping[str, float]) -> str:
    """Resources for a person."""
    names = {"CPU": "CPUs", "GPU": "GPUs", "memory": "GB of memory"}
    shown = {name: amount / 1e9 if name == "memory" else amount for name, amount in wanted.items()}
    return ", ".join(f"{amount:g} {names[name]}" for name, amount in shown.items())


def _nodes_shown(there: Sequence[Node]) -> str:
    """Nodes and what they have, for a person."""
    shown = (
        f"{node.address} ({_shown({name: node.resources.get(name, 0) for name in ('CPU', 'GPU')})})" for node in there
    )
    return ", ".join(shown) or "none"
