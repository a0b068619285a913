"""Parts of a run that another process can do first: a seed of the test-time stage, or some of the raw scores.

A seed leaves its folder of state under the run's key, scores leave blocks in the cache. `ttmbench.evaluator.run.run`
then computes neither again, and it alone writes numbers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path

from ttmbench._util.console import each_note_once
from ttmbench._util.text import Unreadable, read_json
from ttmbench._util.third_party_errors import foreign_errors
from ttmbench.config import RunConfig
from ttmbench.errors import UsageError, phase
from ttmbench.evaluator.determinism import deterministic as fixed_bits
from ttmbench.evaluator.determinism import naming_what_cannot
from ttmbench.evaluator.plan import Run, TaskPlan, plan_task
from ttmbench.evaluator.resume import open_place
from ttmbench.evaluator.run_key import RunKey
from ttmbench.evaluator.score_task import TaskMemory, load_data, score_share
from ttmbench.evaluator.settings import Chosen, cache_of, read_samples
from ttmbench.evaluator.task import Methods, one_seed
from ttmbench.evaluator.unit import Unit
from ttmbench.results.files import RunFiles
from ttmbench.results.labels import HOLDOUT, ORACLE, SIMPLE_MATCH, TTM
from ttmbench.scoring.capabilities import Capabilities, Model
from ttmbench.scoring.forced_choice.ask import ask_choices
from ttmbench.scoring.pairs import score_task_pairs
from ttmbench.ttm.checkpoint import is_finished
from ttmbench.ttm.variants import adapted_folders

_PATIENCE = 60.0  # seconds to wait while another process moves an earlier run's files aside


def run_seed(unit: Unit, config: RunConfig, chosen: Chosen, adapter: Model, memory: TaskMemory) -> None:
    """Runs the test-time stage of one seed of a task, and leaves its state next to the run's document.

    Args:
        unit: names the task and the seed.
        config: the whole run, with all of its seeds; its ``output_path`` is a ``.json`` file.
        chosen: what the configuration's names stand for.
        adapter: the model; it leaves as it came.
        memory: of the adapter.

    Raises:
        DataError: data unreachable, or not what the task file says.
        TtmbenchError: no usable scores, or training produced NaN or infinite numbers.
        UsageError: the model cannot be adapted to this task.
    """
    name = unit.cell.task
    with _part(config, chosen, adapter, name) as run:
        _move_other_run_aside(config, chosen.key(config))
        folders = adapted_folders(config, list(chosen.tasks), new=False)
        run = one_seed(run, unit.part)
        plan = plan_task(run, chosen.tasks[name], chosen.settings[name])
        if plan.adapts:
            methods = Methods(run, folders, chosen.also)
            methods.run_ahead(memory.score(plan, run), chosen.settings[name], _state_of(config, name))


def run_scores(unit: Unit, config: RunConfig, chosen: Chosen, adapter: Model, memory: TaskMemory) -> None:
    """Computes a part of the raw scores of a task, and leaves it in the cache; without a cache it does nothing.

    A pair scorer computes some blocks of pairs; a server answers on some of the groups and stores its answers itself;
    for any other model the first part is everything. Arguments and errors as for `run_seed`.
    """
    name, part, of = unit.cell.task, unit.part, unit.cell.shards
    if chosen.tasks[name].spec.kind != "groups":
        return
    with _part(config, chosen, adapter, name) as run:
        plan = plan_task(run, chosen.tasks[name], chosen.settings[name])
        if run.capabilities.reporting is not None:
            _ask(plan, run, part, of)
        elif run.cache is None or run.capabilities.scores == "choices":
            return
        elif of > 1 and run.capabilities.scores != "embeddings":
            score_share(plan, run, part, of)
        elif part == 0 and plan.way in ("prepared", "pairs"):
            memory.score(plan, run)


@contextmanager
def _part(config: RunConfig, chosen: Chosen, adapter: Model, task: str) -> Iterator[Run]:
    """The run of which this process does a part."""
    with each_note_once(), fixed_bits(config.seed) if config.deterministic else nullcontext():
        samples = read_samples(config.samples) if config.samples else None
        key = chosen.key(config).sha256
        run = Run(chosen.registry, config, Capabilities(adapter), cache_of(config), key, samples)
        with foreign_errors(f"task '{task}' with model '{config.model}'"), naming_what_cannot():
            yield run


def _ask(plan: TaskPlan, run: Run, part: int, of: int) -> None:
    """Asks a server about some of the groups, within a part of the allowed costs."""
    can, sizer = run.capabilities, run.sizer
    divide_costs = getattr(can.adapter, "divide_costs", None)
    if divide_costs is not None:
        divide_costs(of)
    with phase("load"):
        groups = load_data(run.registry, run.config, plan.task, run.samples).groups[part::of]
    with phase("score"):
        if groups and can.choice_scorer is not None and plan.way == "choices":
            ask_choices(can, groups, sizer, run.config.seed)
        elif groups and can.pair_scorer is not None:
            score_task_pairs(can, groups, sizer, False)


def _state_of(config: RunConfig, task: str) -> Path:
    assert config.output_path is not None, "a part of a run leaves files"
    return RunFiles.of(config.output_path, config.model_name, "").state_of(task)


def _move_other_run_aside(config: RunConfig, key: RunKey) -> None:
    """Moves the document and state of another command aside before a seed is left there."""
    path, deadline = Path(config.output_path or ""), time.monotonic() + _PATIENCE
    while path.exists():
        try:
            if read_json(path).get("run_key") == key.sha256:
                return
        except (Unreadable, AttributeError):
            return  # which the run reports
        try:
            with open_place(config, key, datetime.now().astimezone()):
                return
        except UsageError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def seed_is_done(config: RunConfig, task: str, seed: int, key: str) -> bool:
    """Whether all methods that a run applies with a seed are finished on disk.

    Args:
        config: the whole run; its ``output_path`` is a ``.json`` file.
        task: its one task.
        seed: one of its seeds.
        key: of the run (`ttmbench.evaluator.run_key.RunKey`).
    """
    wanted = {SIMPLE_MATCH: config.simple_match, TTM: config.ttm, ORACLE: config.oracle}
    wanted |= dict.fromkeys(config.ttm_controls, True) | {HOLDOUT: config.ttm_holdout is not None}
    state = _state_of(config, task)
    return all(is_finished(state, name, seed, key) for name, is_wanted in wanted.items() if is_wanted)
