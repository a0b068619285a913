"""One run on several devices: a process on each does its part of the pairs and seeds, and the run finds all of them.

The processes leave what a run leaves that is interrupted: blocks of scores in the cache, and finished seeds. What one
does not do, because it dies, is done by the run itself: that costs time and no number.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import filelock
import torch

from ttmbench._util.child import shared_threads, start, stop, why_failed
from ttmbench._util.console import warn
from ttmbench.config import RunConfig, TTMConfig
from ttmbench.data.paths import cache_folder
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import UsageError
from ttmbench.evaluator.one_task import Methods
from ttmbench.evaluator.score_task import Run, plan_task, score, score_share
from ttmbench.model import DualEncoder, PairScorer


@contextmanager
def divided(
    config: RunConfig, left: Sequence[str], objects: Mapping[str, object], key: str, results: Path | None
) -> Iterator[tuple[RunConfig, Path]]:
    """Has each device of a run do its part of the tasks that are ``left``.

    Yields the run with their cache, and the document that names their state.

    Both are temporary for a run without a cache or an output folder. UsageError for a run that cannot be divided: with
    ``objects`` of this program in place of registered ones.
    """
    names = config.device.split(",")
    for what, given in objects.items():
        if given:
            raise UsageError(
                f"device {config.device} starts a process for each device, and {what} that is an object of this "
                "program cannot go there; name one that is registered, or one device"
            )
    for name in names:
        kind, _, number = name.partition(":")
        if kind == "cuda" and int(number) >= torch.cuda.device_count():
            raise UsageError(f"device {name} was requested, but torch finds {torch.cuda.device_count()} CUDA devices")
    if config.also:
        raise UsageError(f"--also measures on one device, and --device has {len(names)}; omit one of them")
    with tempfile.TemporaryDirectory(prefix="ttmbench-") as folder:
        document = (results or Path(folder) / "results.json").absolute()
        if cache_folder(config.use_cache) is None:
            config = config.model_copy(update={"use_cache": str(Path(folder) / "cache")})
        whole = config.model_copy(update={"track": [], "track_args": {}, "baseline": None})
        processes, threads = {}, shared_threads(names.count("cpu"))
        try:
            for part, name in enumerate(names if left else ()):
                settings = whole.model_copy(update={"device": name}).model_dump(mode="json")
                request = json.dumps([settings, left, key, str(document), folder, part, len(names)])
                log = Path(folder) / f"{part}.log"
                function = "ttmbench.evaluator.evaluate:run_part"
                processes[log] = name, start(function, [request], log, threads if name == "cpu" else {})
            for log, (name, process) in processes.items():
                why = why_failed(process, log)
                if why is not None:
                    warn(f"device {name} did not do its part ({why}); {names[0]} does it")
        finally:
            stop(process for _, process in processes.values())
        yield config, document


def do_part(
    run: Run,
    methods: Methods,
    task: TaskFile,
    settings: TTMConfig,
    state: Path,
    first: Path,
    part_of: tuple[int, int],
) -> None:
    """Scores pair blocks ``part`` modulo ``of`` into the cache, and runs the seeds ``part`` modulo ``of``.

    ``first`` exists once a process has scored the whole task.
    """
    if task.spec.kind != "groups":
        return
    run, (part, of) = run.on(task.spec), part_of
    config, plan = run.config, plan_task(run, task.spec, methods.defined_on(run, task.spec)[0], settings)
    if isinstance(run.model, PairScorer) and not isinstance(run.model, DualEncoder) and not plan.in_memory:
        score_share(plan, run, run.load(task), slice(part, None, of))
    seeds = config.run_seeds[part::of]
    trains = any(run.registry.methods[name].trains for name in config.methods)
    if not seeds or not trains or len(config.run_seeds) == 1:
        return
    # Seeds start from raw scores, whose bits must be the same for all: one process computes them, and others find them.
    scored = None
    with filelock.FileLock(f"{first}.lock"):
        if not first.exists():
            scored = score(plan, run, run.load(task))
            first.touch()
    methods.run_seeds(run, seeds, scored or score(plan, run, run.load(task)), settings, state)
