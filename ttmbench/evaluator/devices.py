"""One run on several devices: this process works on the first, and a process of its own on each of the others.

They share what a stopped run leaves to the next: finished blocks of pair scores in the cache, and sealed seeds of the
test-time stage. Each does its part, and then this process goes through everything once more, finds it, and does what
is missing. So the run is one run with one document, and a process that dies costs time and no number.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from tqdm import tqdm

from ttmbench._util.console import warn
from ttmbench._util.third_party_errors import error_line
from ttmbench.cache.scores import ScoreCache
from ttmbench.config import RunConfig
from ttmbench.data.memory import Task
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.evaluator.adapters import make_adapter
from ttmbench.evaluator.determinism import conditions, deterministic
from ttmbench.evaluator.plan import DevicePart, RunContext, plan_task
from ttmbench.evaluator.score_task import score_task
from ttmbench.evaluator.settings import Chosen, cache_of, choose, model_settings, read_samples
from ttmbench.evaluator.task import run_task
from ttmbench.scoring.capabilities import Model, capabilities_of

_OWN = {
    *("seeds", "device", "track", "audit_labels", "log_samples", "save_scores", "output_path", "save_adapted"),
    "baseline",
}  # settings that are the run's own, and none of a further process


class _PartDoneError(Exception):
    """A process has scored its part of the pairs; the rest is not its matter."""


@contextmanager
def several_devices(
    config: RunConfig,
    key: str,
    adapter: Model | None = None,
    in_memory: Sequence[Task] = (),
    plugins: Sequence[Any] = (),
) -> Iterator[Devices]:
    """The devices of a run, for as long as it lasts.

    Args:
        config: the run.
        key: its `ttmbench.evaluator.run_key.RunKey`.
        adapter: a model that was given as an object.
        in_memory: tasks that are no files.
        plugins: plugins that were given as objects.

    Yields:
        The devices; of one device it does nothing.

    Raises:
        UsageError: the run cannot be divided.
    """
    names = config.device.split(",")
    if len(names) == 1:
        yield Devices(config, key)
        return
    for given, what in ((adapter, "a model"), (in_memory, "a task"), (plugins, "a plugin")):
        if given is not None and given != () and given != []:
            raise UsageError(
                f"device {config.device} starts a process for each further device, and {what} that is an object of "
                "this program cannot go there; name one that is registered, or one device"
            )
    for name in names:
        kind, _, number = name.partition(":")
        if kind == "cuda" and int(number) >= torch.cuda.device_count():
            raise UsageError(f"device {name} was asked for, but torch sees {torch.cuda.device_count()} CUDA devices")
    if config.ttm_also:
        raise UsageError(f"--ttm_also measures on one device, and --device has {len(names)}; leave one of them out")
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="ttmbench-") as folder:
        stack.enter_context(_threads_shared(names))
        devices = Devices(config, key, names, Path(folder))
        try:
            yield devices
        except BaseException:
            devices.stop(at_once=True)
            raise
        devices.stop()


@dataclass
class Devices:
    """The devices of a run; without names it has one, and nothing is divided."""

    config: RunConfig
    key: str
    names: Sequence[str] = ()
    folder: Path | None = None
    _pools: list[ProcessPoolExecutor] = field(default_factory=list)
    _waiting: list[tuple[int, Future[None]]] = field(default_factory=list)

    def cache(self, own: ScoreCache | None) -> ScoreCache | None:
        """The run's cache, else one that lasts as long as the run: processes leave scores there for each other."""
        if self.folder is None or own is not None:
            return own
        exact = conditions(self.config.batch_size) if self.config.deterministic else None
        return ScoreCache(self.folder / "cache", exact)

    def state(self, task: str) -> Path | None:
        """Folder of a task's checkpoints for a run without an output path."""
        return None if self.folder is None else self.folder / "state" / task

    def start(self, cache: ScoreCache | None, folders: Mapping[tuple[str, int], Path]) -> None:
        """Starts the processes, which load their model meanwhile."""
        if self.folder is None or cache is None:
            return
        settings = self.config.model_dump(mode="json", exclude=_OWN)
        for index, device in enumerate(self.names[1:], 1):
            pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _quiet)
            self._pools.append(pool)
            about = {**settings, "device": device, "use_cache": str(cache.folder)}
            place = (index, len(self.names), self.key, str(self.folder), threads_now())
            self._waiting.append((index, pool.submit(_load, about, place, dict(folders))))

    def joined(self, context: RunContext) -> RunContext:
        """The run's context with its part of the work; waits until every process has its model.

        Raises:
            UsageError: a device is not there, or the model cannot be divided.
        """
        if self.folder is None:
            return context
        if context.capabilities.reporting is not None:
            raise UsageError(
                f"model {self.config.model} asks a server, whose requests are made side by side already; name one "
                "device, or none"
            )
        waiting, self._waiting = self._waiting, []
        for _, started in waiting:
            started.result()
        return replace(context, part=DevicePart(0, len(self.names), self._begin, self._wait, self._adapt, self.folder))

    def stop(self, at_once: bool = False) -> None:
        """Ends the processes: when they have nothing left to do, or ``at_once``, whatever they do."""
        for pool in self._pools:
            for process in list((getattr(pool, "_processes", None) or {}).values()) if at_once else ():
                with suppress(Exception):
                    process.terminate()
            pool.shutdown(wait=True, cancel_futures=True)

    def _begin(self, task: str) -> None:
        self._submit(_score_part, task)

    def _adapt(self, task: str, state: Path) -> Callable[[], None]:
        self._submit(_adapt_part, task, str(state), self.config.run_seeds)
        return self._wait

    def _submit(self, work: Callable[..., None], *arguments: Any) -> None:
        for index, pool in enumerate(self._pools, 1):
            try:
                self._waiting.append((index, pool.submit(work, *arguments)))
            except Exception as error:  # its process died earlier
                self._say(index, error)

    def _wait(self) -> None:
        """Waits for the other processes; what one could not do is done here, and said."""
        waiting, self._waiting = self._waiting, []
        for index, part in waiting:
            try:
                part.result()
            except Exception as error:
                self._say(index, error)

    def _say(self, index: int, error: Exception) -> None:
        why = str(error) if isinstance(error, TtmbenchError) else error_line(error)
        warn(f"device {self.names[index]} did not do its part ({why}); {self.names[0]} does it")


def threads_now() -> int:
    """How many threads torch computes with on a processor."""
    return torch.get_num_threads()


@contextmanager
def _threads_shared(names: Sequence[str]) -> Iterator[None]:
    """Inside, processes on the processor share its threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before // max(1, sum(name == "cpu" for name in names))))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass
class _Process:
    """What a process of a further device keeps."""

    chosen: Chosen
    context: RunContext
    bits: ExitStack


_HERE: list[_Process] = []


def _quiet() -> None:
    """Of a further process: no bars and lines of its own, no answer to Ctrl-C, and an end when its parent has one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")
    tqdm.set_lock(threading.RLock())  # its own is a semaphore of the system, which outlives a process that is ended
    parent = multiprocessing.parent_process()

    def end() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def _load(about: dict[str, Any], place: tuple[int, int, str, str, int], folders: dict[tuple[str, int], Path]) -> None:
    """Loads the model in a further process."""
    index, count, key, folder, threads = place
    torch.set_num_threads(threads)
    with _plain_errors():
        config = RunConfig.model_validate(about)
        bits = ExitStack()
        bits.enter_context(deterministic(config.deterministic, config.seed))
        chosen = choose(config)
        adapter = make_adapter(chosen.registry, config.model, config.model_args, model_settings(config))
        part = DevicePart(index, count, lambda task: None, _end_here, lambda task, state: lambda: None, Path(folder))
        samples = read_samples(config.samples) if config.samples else None
        context = RunContext.of_model(
            chosen.registry,
            config,
            capabilities_of(adapter),
            samples,
            cache_of(config),
            key,
            folders=folders,
            silent=True,
            part=part,
        )
    _HERE[:] = [_Process(chosen, context, bits)]


def _score_part(task: str) -> None:
    """Scores a further process's part of a task's pairs."""
    (here,) = _HERE
    with _plain_errors(), suppress(_PartDoneError):
        score_task(plan_task(here.context, here.chosen.tasks[task]), here.context)


def _adapt_part(task: str, state: str, seeds: list[int]) -> None:
    """Adapts with a further process's part of the seeds."""
    (here,) = _HERE
    assert here.context.part is not None, "a further process has a part"
    own = here.context.part.own(seeds)
    if not own:
        return
    with _plain_errors():
        config = here.context.config.model_copy(update={"seeds": own})
        context = replace(here.context, config=config, part=None)
        outcome = run_task(context, here.chosen.tasks[task], here.chosen.settings[task], Path(state))
        if outcome.failure is not None:
            raise outcome.failure


def _end_here() -> NoReturn:
    raise _PartDoneError


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Errors of any class as such that travel between processes."""
    try:
        yield
    except _PartDoneError:
        raise
    except TtmbenchError as error:
        raise type(error)(str(error)) from None
    except Exception as error:
        raise TtmbenchError(error_line(error)) from None
