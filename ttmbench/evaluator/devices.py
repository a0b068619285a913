"""One run on several devices: a process on each does its part of the pairs and seeds, and the run finds all of them.

The processes leave what a run leaves that is interrupted: blocks of scores in the cache, and finished seeds. What one
does not do, because it dies, is done by the run itself: that costs time and no number.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import filelock
import torch

from ttmbench._util.child import shared_threads, start, stop, why_failed
from ttmbench._util.console import each_note_once, warn
from ttmbench._util.third_party_errors import error_line, foreign_errors
from ttmbench.config import RunConfig, TTMConfig
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.evaluator.adapters import make_adapter, model_settings
from ttmbench.evaluator.cache import ScoreCache
from ttmbench.evaluator.determinism import arithmetic_of, naming_what_cannot
from ttmbench.evaluator.resume import RunFiles
from ttmbench.evaluator.score_task import Run, plan_task, score_share, score_task
from ttmbench.evaluator.settings import Chosen, cache_of, read_samples, resolve
from ttmbench.evaluator.task import Methods
from ttmbench.methods.variants import adapted_folders
from ttmbench.model import Model, overrides
from ttmbench.scoring.batches import BatchSizer


@contextmanager
def divided(
    config: RunConfig, chosen: Chosen, adapter: Model | None, key: str, left: Sequence[str], results: Path | None
) -> Iterator[tuple[ScoreCache, Path]]:
    """Has each device of a run do its part; yields the cache, and the document by whose name the state lies.

    Both are temporary for a run without a cache or an output folder. ``left`` are the tasks that are not done.
    UsageError for a run that cannot be divided.
    """
    names = config.device.split(",")
    for is_given, what in ((adapter, "a model"), (chosen.in_memory, "a task"), (chosen.plugins, "a plugin")):
        if is_given:
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
        if cache_of(config) is None:
            config = config.model_copy(update={"use_cache": str(Path(folder) / "cache")})
        whole = config.model_copy(update={"track": [], "track_args": {}, "baseline": None})
        processes, threads = {}, shared_threads(names.count("cpu"))
        try:
            for part, name in enumerate(names if left else ()):
                settings = whole.model_copy(update={"device": name}).model_dump(mode="json")
                request = json.dumps([settings, list(left), key, str(document), folder, part, len(names)])
                log = Path(folder) / f"{part}.log"
                function = "ttmbench.evaluator.devices:main"
                processes[log] = name, start(function, [request], log, threads if name == "cpu" else {})
            for log, (name, process) in processes.items():
                why = why_failed(process, log)
                if why is not None:
                    warn(f"device {name} did not do its part ({why}); {names[0]} does it")
        finally:
            stop(process for _, process in processes.values())
        cache = cache_of(config)
        assert cache is not None, "there is a temporary one"
        yield cache, document


def main() -> None:
    """Does the part of a run that ``sys.argv`` describes, and ends the process with the reason if it cannot."""
    settings, left, key, document, folder, part, of = json.loads(sys.argv[1])
    config = RunConfig.model_validate(settings)
    try:
        with each_note_once(), arithmetic_of(config):
            chosen, cache = resolve(config), cache_of(config)
            assert cache is not None, "the processes exchange scores there"
            model = make_adapter(chosen.registry, config.model, config.model_args, model_settings(config))
            cache.as_loaded = model
            if overrides(model, "usage"):
                raise UsageError(f"model {config.model} asks a server, whose requests are made side by side already")
            samples = read_samples(config.samples) if config.samples else None
            sizer = BatchSizer.for_run(config.batch_size, model.device, config.deterministic)
            run = Run(chosen.registry, config, model, sizer, cache, key, samples)
            methods = Methods(run, adapted_folders(config, list(chosen.tasks), new=False))
            for name in left:
                plan = chosen.tasks[name], chosen.settings[name]
                state = RunFiles(Path(document), "").state / "tasks" / name
                with foreign_errors(f"task '{name}' with model '{config.model}'"), naming_what_cannot():
                    _do(run, methods, *plan, state, Path(folder) / f"{name}.scored", (part, of))
    except Exception as error:
        warn(str(error) if isinstance(error, TtmbenchError) else error_line(error))
        sys.exit(1)


def _do(
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
    plan, config = plan_task(run, task, settings), run.config
    if plan.way == "pairs":
        score_share(plan, run, part, of)
    seeds, trains = (
        config.run_seeds[part::of],
        plan.adapts or any(run.registry.methods[name].trains for name in config.methods),
    )
    if not seeds or not trains or len(config.run_seeds) == 1:
        return
    # Seeds start from raw scores, whose bits must be the same for all: one process computes them, and others find them.
    scored = None
    with filelock.FileLock(f"{first}.lock"):
        if not first.exists():
            scored = score_task(plan, run)
            first.touch()
    methods.of(run).run_seeds(seeds, scored or score_task(plan, run), plan, settings, state)
