"""Reward models of methods (``METHOD.reward=NAME``): another model, loaded once, of which only scores are used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from ttmbench._util.console import warn
from ttmbench._util.third_party_errors import phase
from ttmbench.config import RunConfig, parse_pairs
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import UsageError
from ttmbench.evaluator.adapters import make_adapter, model_info, model_settings, remarks
from ttmbench.evaluator.plan import Run, plan_task
from ttmbench.evaluator.score_task import score_task
from ttmbench.evaluator.task_result import Scored
from ttmbench.methods.features import RewardModel, scale_and_bias
from ttmbench.plugins.registry import Registry
from ttmbench.results.summary import metric_mean
from ttmbench.scoring.capabilities import Capabilities
from ttmbench.scoring.inputs import rows_of
from ttmbench.types import MethodSpec, Record, Scores


def check_reward(registry: Registry, spec: MethodSpec, settings: Mapping[str, object]) -> None:
    """UsageError for a reward model that no one has registered, or wrong arguments."""
    reward = settings.get("reward")
    if "reward_model" not in spec.needs or not isinstance(reward, str) or reward == "self":
        return
    try:
        registry.adapter(_read(reward)[0])
    except UsageError as error:
        raise UsageError(f"--method_args {spec.name}.reward: must be self or a model: {error}") from None


def reward_model(run: Run, scored: Scored, reward: str) -> RewardModel:
    """What a model says of the pairs of a task; it is loaded once for a run, and its scores may come from the cache.

    UsageError for a model that has no scores of pairs, DataError for weights out of reach.
    """
    key = f"reward {reward} {scored.spec.task} {scored.data.fingerprint}"
    if key not in run.helpers:
        with phase("reward model"):
            run.helpers[key] = _scored(run, scored, reward)
    made: RewardModel = run.helpers[key]
    return made


def _read(reward: str) -> tuple[str, Record]:
    """Name and arguments of a model written ``NAME`` or ``NAME:KEY=VALUE|KEY=VALUE``."""
    name, _, arguments = reward.partition(":")
    return name, parse_pairs(arguments.replace("|", ","))


def _loaded(run: Run, reward: str) -> Capabilities:
    key = f"reward {reward}"
    if key not in run.helpers:
        name, arguments = _read(reward)
        settings = model_settings(run.config.model_copy(update={"compile": False}), True)
        can = Capabilities(make_adapter(run.registry, name, arguments, settings))
        if can.scores == "choices" or can.stored_features is not None:
            why = "answers in words" if can.scores == "choices" else "reads stored features"
            raise UsageError(f"reward={reward}: model {name} {why}, and rewards are scores of images with captions")
        for remark in remarks(can.adapter):
            warn(remark)
        run.helpers[key] = can
    loaded: Capabilities = run.helpers[key]
    return loaded


def _scored(run: Run, scored: Scored, reward: str) -> RewardModel:
    name, arguments = _read(reward)
    can, groups = _loaded(run, reward), scored.data.groups
    off = {"methods": [], "method_args": {}, "ttm": False, "simple_match": False, "oracle": False, "ttm_also": []}
    asked = {"model": name, "model_args": arguments, "limit": None, "samples": None, **off}
    config: RunConfig = run.config.model_copy(update=asked)
    helper = replace(run, config=config, capabilities=can, samples=None, _sizer=None)
    plan = plan_task(helper, TaskFile(scored.spec, None, tuple(groups)))
    raw = score_task(replace(plan, metrics=[], all_pairs=False), helper).raw
    values, are_cosines = torch.from_numpy(raw.groups), False
    adapter, rows = can.dual_encoder, rows_of(groups)
    if adapter is None:
        count = 2 * raw.groups.size
    else:
        with torch.no_grad():
            features = adapter.encode_captions(adapter.prepare_captions(list(groups[0].captions)))
            are_cosines = features.ndim == 2
            if are_cosines:
                scale, bias = (number.cpu() for number in scale_and_bias(adapter.logits, features.float()))
                values = (values - bias) / scale
        count = len(np.unique(rows.images)) + len(np.unique(rows.captions))
    declared, own = (model_info(one)["fingerprint"] for one in (can, run.capabilities))
    is_student = bool(declared) and declared == own
    record = {"model": name, "fingerprint": declared, "is_student": is_student}
    return RewardModel(values, are_cosines, count, _note(reward, is_student, scored, raw), record)


def _note(reward: str, is_student: bool, scored: Scored, raw: Scores) -> str:
    """What the reward model scores by itself, with which the method is to be compared."""
    means = {metric.name: metric_mean(metric, raw) for metric in scored.metrics if metric.scope == "group"}
    shown = ", ".join(
        f"{name.replace('_', ' ')} {100 * mean:.1f} %" for name, mean in means.items() if mean is not None
    )
    whose = "the reward model is the model itself as it came" if is_student else "compare with the reward model itself"
    return f"reward={reward}: {whose}, which has {shown}"
