"""The Ray executor: as many workers on a cluster as its nodes have room for, each in an actor.

Actors are placed node by node, not by Ray's scheduler: a node that lacks something can then be avoided. Its autoscaler
therefore sees no demand.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Literal

from ttmbench._util import machine
from ttmbench._util.console import warn
from ttmbench._util.third_party_errors import error_line
from ttmbench._version import __version__
from ttmbench.cache.folder import CACHE_VARIABLE, cache_folder
from ttmbench.errors import TtmbenchError
from ttmbench.evaluator.executor import Event, Finished, Progress, Watch, WorkerJoined, WorkerLost
from ttmbench.evaluator.local_executor import OWN
from ttmbench.evaluator.unit import Cell, Unit
from ttmbench.sweep.executor_options import RayOptions
from ttmbench.sweep.payload import Payload, files_of, gather, take_in
from ttmbench.sweep.ray_cluster import Node, Untyped, board_class, connect, first_line, import_ray, nodes, silence
from ttmbench.sweep.ray_worker import Done, Greeting, Hello, actor_class, leave_token

_CHECK = 2.0  # seconds between two checks of the nodes and the board
_FIRST = 60.0  # seconds for the first worker to begin, after which a warning says that none has
_MAX_FAILED_STARTS = 3  # on a node, in a row; it is not used then
_STOP = 4.0  # seconds for units to stop
_VARIABLES = ("TTMBENCH_LIMITS", "TTMBENCH_DATA", CACHE_VARIABLE)


@dataclass(eq=False)
class _Remote:
    """A worker as the driver sees it."""

    name: str
    node: Node
    actor: Untyped
    answer: Untyped  # to its greeting or its unit, as Ray's reference; None for an idle one
    common: bool = True  # whether it sees the sweep's folder
    process: int | None = None  # None until it has begun
    unit: Unit | None = None


class RayExecutor:
    """Workers on a cluster; a `ttmbench.evaluator.executor.Executor`.

    Args:
        root: the sweep's folder.
        options: how the cluster is used.
        cells: of the sweep.
        units: number of units, the most workers that make sense.
    """

    def __init__(self, root: Path, options: RayOptions, cells: Sequence[Cell], units: int) -> None:
        self._root, self._options, self._cells = root, options, cells
        self._most = min(units, options.workers or units)
        self._ray = import_ray()
        self._remotes: dict[str, _Remote] = {}
        self._queued: list[Event] = []
        self._unusable: dict[str, str] = {}
        self._failed_starts: Counter[str] = Counter()
        self._tokens: list[Path] = []
        self._started, self._checked = 0, 0.0
        self._watch = Watch(options.stall)
        self._head: str | None = None
        self._gone_head = self._travel_reported = False

    def start(self) -> None:
        """Joins the cluster and waits for the first worker.

        Raises:
            TtmbenchError: no cluster answers, or no node has what a worker needs.
        """
        ray, options = self._ray, self._options
        with tempfile.TemporaryDirectory() as folder:
            payload = gather(self._cells, Path(folder))
            travels = bool(payload.paths or payload.sent)
            self._head = connect(ray, options.address, {"working_dir": folder} if travels else {})
        there = nodes(ray)
        self._wanted = options.resources(any(node.resources.get("GPU") for node in there))
        if not any(node.room(self._wanted) for node in there):
            raise TtmbenchError(f"no node of the cluster has {_shown(self._wanted)}; there are: {_nodes_shown(there)}")
        here = self._on_node(ray.get_runtime_context().get_node_id(), soft=True)
        board = ray.remote(board_class()).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here)
        self._board = board.remote()
        self._taking = self._board.take.remote()
        self._actors = ray.remote(concurrency_groups={"work": 1, "control": 1})(actor_class())
        self._greeting = self._greet(payload)
        self._top_up()
        began = time.monotonic()
        while not (joined := self.wait(1.0)):
            if time.monotonic() - began > _FIRST:
                warn(f"no worker has begun in {_FIRST:.0f} s: the cluster has no {_shown(self._wanted)} free")
                break
        self._queued = joined

    def submit(self, worker: str, unit: Unit) -> None:
        """Gives a unit to a worker, with the files of earlier units if it does not see the sweep's folder."""
        remote = self._remotes[worker]
        remote.unit = unit
        self._watch.begin(worker, unit.name)
        try:
            files = None if remote.common else files_of(self._root, unit.cell)
            remote.answer = _call(remote.actor.do).remote(unit, files)
        except self._ray.exceptions.RayError as error:
            self._queued.append(self._lost(remote, self._why(remote, error)))

    def wait(self, timeout: float) -> list[Event]:
        """Events of the workers; TtmbenchError if no node can be used any more."""
        events, self._queued = self._queued, []
        remotes = {remote.answer: remote for remote in self._remotes.values() if remote.answer is not None}
        if not remotes:
            time.sleep(0 if events else min(timeout, 0.2))
        elif self._ray.wait(list(remotes), timeout=0 if events else timeout)[0]:
            for answer in self._ray.wait(list(remotes), num_returns=len(remotes), timeout=0)[0]:
                events += self._received(remotes[answer])
        if time.monotonic() - self._checked > _CHECK:
            events += self._take_lines()
            self._top_up()
        queued, self._queued = self._queued, []
        return events + queued

    def stop(self, at_once: bool) -> None:
        """Ends all workers; what units under way have finished is saved."""
        began = [remote for remote in self._remotes.values() if remote.process is not None]
        try:
            if not self._gone_head:
                if at_once:
                    self._interrupt([remote for remote in began if remote.unit is not None])
                leaving = [_call(remote.actor.leave, "control").remote() for remote in began]
                if leaving:
                    self._ray.wait(leaving, num_returns=len(leaving), timeout=1.0)
        finally:
            for remote in list(self._remotes.values()):
                self._drop(remote)
            if self._head is not None and not self._gone_head:
                self._ray.shutdown()
            for token in self._tokens:
                token.unlink(missing_ok=True)

    def _interrupt(self, busy: Sequence[_Remote]) -> None:
        """Asks units under way to stop, and saves what they have finished."""
        for remote in busy:
            _call(remote.actor.interrupt, "control").remote()
        remotes = {remote.answer: remote for remote in busy}
        for answer in self._ray.wait(list(remotes), num_returns=len(busy), timeout=_STOP)[0] if busy else ():
            with suppress(self._ray.exceptions.RayError, TtmbenchError):
                self._finished(remotes[answer], self._ray.get(answer, timeout=_STOP))

    def _greet(self, payload: Payload) -> Greeting:
        token, cache = None, cache_folder(next((cell.config.use_cache for cell in self._cells), None))
        if self._options.folder == "auto":
            token = token_hex(8)
            folders = [self._root.absolute() / OWN, *([] if cache is None else [cache.absolute()])]
            self._tokens = [path for folder in folders if (path := leave_token(folder, token)) is not None]
        return Greeting(
            root=str(self._root.absolute()),
            token=token,
            cwd=str(Path.cwd()),
            cache=None if cache is None else str(cache.absolute()),
            packages=machine.packages(),
            payload=payload,
            variables={name: os.environ[name] for name in _VARIABLES if os.environ.get(name)},
            threads=self._options.threads,
            board=self._board,
            name="",
        )

    def _on_node(self, node: str, soft: bool = False) -> Untyped:
        return self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=soft)

    def _top_up(self) -> None:
        """Begins workers where nodes have room for more, also on nodes that have just joined."""
        self._check_head()
        self._checked = time.monotonic()
        usable = [node for node in nodes(self._ray) if node.id not in self._unusable and node.room(self._wanted)]
        if not usable and not self._remotes and self._unusable:
            raise TtmbenchError(f"no node of the cluster can be used: {next(iter(self._unusable.values()))}")
        on = Counter(remote.node.id for remote in self._remotes.values())
        while len(self._remotes) < self._most:
            free = [node for node in usable if node.room(self._wanted) > on[node.id]]
            if not free:
                return
            node = min(free, key=lambda node: on[node.id])
            self._begin(node)
            on[node.id] += 1

    def _check_head(self) -> None:
        """TtmbenchError if the head of the cluster is gone, at which Ray would end this process after a minute."""
        why = None if self._head is None else silence(self._head)
        if why is not None:
            self._gone_head = True
            raise TtmbenchError(
                f"the head of the Ray cluster at {self._head} is gone ({why}); finished work is saved: once there is a "
                "cluster again, run the same command to resume"
            )

    def _begin(self, node: Node) -> None:
        self._started += 1
        name, wanted = f"{node.address}-{self._started}", self._wanted
        actor = self._actors.options(
            num_cpus=wanted.get("CPU", 0),
            num_gpus=wanted.get("GPU", 0),
            memory=wanted.get("memory"),
            scheduling_strategy=self._on_node(node.id),
        ).remote()
        greeting = self._ray.cloudpickle.dumps(replace(self._greeting, name=name))
        self._remotes[name] = _Remote(name, node, actor, _call(actor.hello).remote(__version__, greeting))

    def _received(self, remote: _Remote) -> list[Event]:
        try:
            answer = self._ray.get(remote.answer)
        except self._ray.exceptions.RayError as error:
            why = self._why(remote, error)
            return self._failed_start(remote, why) if remote.process is None else [self._lost(remote, why)]
        return self._welcome(remote, answer) if remote.process is None else [self._finished(remote, answer)]

    def _finished(self, remote: _Remote, answer: Done) -> Finished:
        self._watch.end(remote.name)
        unit, remote.unit, remote.answer = remote.unit, None, None
        assert unit is not None, "an answer is of a unit"
        result, files = answer
        if files:
            take_in(self._root, unit.cell, files, over=unit.kind == "run" and result.state == "done")
        if result.state == "unfit":
            result = replace(result, error=f"on node {remote.node.address}: {result.error}")
        return Finished(remote.name, unit, result)

    def _welcome(self, remote: _Remote, hello: Hello) -> list[Event]:
        lacks, common, process = hello
        if lacks:
            more = f" (and {len(lacks) - 1} more)" if len(lacks) > 1 else ""
            self._bar(remote.node, f"{lacks[0]}{more}")
            self._drop(remote)
            return []
        remote.common, remote.process, remote.answer = common, process, None
        self._failed_starts[remote.node.id] = 0
        if not remote.common and not self._travel_reported:
            self._travel_reported = True
            warn(
                f"node {remote.node.address} does not see {self._root}: files travel through Ray, and its workers "
                "share the node's own cache"
            )
        return [WorkerJoined(remote.name, remote.node.id)]

    def _failed_start(self, remote: _Remote, why: str) -> list[Event]:
        self._drop(remote)
        if remote.node.id in {node.id for node in nodes(self._ray)}:
            self._failed_starts[remote.node.id] += 1
            if self._failed_starts[remote.node.id] >= _MAX_FAILED_STARTS:
                self._bar(remote.node, f"workers fail to start there: {why}")
        return []

    def _lost(self, remote: _Remote, why: str, hung: bool = False) -> WorkerLost:
        self._drop(remote)
        self._checked = 0.0  # another one takes its place
        return WorkerLost(remote.name, remote.unit, why, hung)

    def _drop(self, remote: _Remote) -> None:
        self._remotes.pop(remote.name, None)
        self._watch.end(remote.name)
        if not self._gone_head:
            with suppress(Exception):  # whatever Ray raises for an actor that is gone
                self._ray.kill(remote.actor)

    def _bar(self, node: Node, why: str) -> None:
        self._unusable[node.id] = f"node {node.address}: {why}"
        warn(f"node {node.address} is not used: {why}")

    def _why(self, remote: _Remote, error: Exception) -> str:
        if isinstance(error, self._ray.exceptions.OutOfMemoryError):
            return f"the memory of node {remote.node.address} ran out"
        if not isinstance(error, self._ray.exceptions.RayActorError):
            return f"its unit or its result did not arrive: {first_line(error)}"
        self._check_head()
        try:
            there = any(node.id == remote.node.id for node in nodes(self._ray))
        except Exception as failure:
            return error_line(failure)
        return f"{'its process on ' if there else ''}node {remote.node.address} has ended"

    def _take_lines(self) -> list[Event]:
        """Lines that workers sent to the board, and workers that sent nothing for too long."""
        try:
            if not self._ray.wait([self._taking], timeout=0)[0]:
                return []
            lines = self._ray.get(self._taking)
        except self._ray.exceptions.RayError:  # it begins again, empty
            lines = {}
        self._taking = self._board.take.remote()
        for worker in lines:
            self._watch.heard(worker)
        progress = [Progress(worker, line) for worker, line in lines.items() if line and worker in self._remotes]
        hung = [(self._remotes[worker], why) for worker, why in self._watch.hung().items()]
        lost = [self._lost(remote, f"{why} on node {remote.node.address}", hung=True) for remote, why in hung]
        return [*progress, *lost]


def _call(method: Untyped, group: Literal["work", "control"] = "work") -> Untyped:
    """A method of an actor in one of its two threads: for work, or always free."""
    return method.options(concurrency_group=group)


def _shown(wanted: Mapping[str, float]) -> str:
    names = {"CPU": "CPUs", "GPU": "GPUs", "memory": "GB of memory"}
    shown = {name: amount / 1e9 if name == "memory" else amount for name, amount in wanted.items()}
    return ", ".join(f"{amount:g} {names[name]}" for name, amount in shown.items())


def _nodes_shown(there: Sequence[Node]) -> str:
    amounts = {node.address: {name: node.resources.get(name, 0) for name in ("CPU", "GPU")} for node in there}
    return ", ".join(f"{address} ({_shown(amount)})" for address, amount in amounts.items()) or "none"
