"""The test-time methods that a run names, TTM and its controls apart: checked before anything is scored, then run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from ttmbench._util.option_values import read_references
from ttmbench.config import RunConfig, TTMConfig
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.errors import UsageError
from ttmbench.evaluator.plan import Run, check_training
from ttmbench.evaluator.reference_sets import is_its_own_reference, reference_set, reference_tasks
from ttmbench.evaluator.reward_models import check_reward, reward_model
from ttmbench.evaluator.task_result import Scored
from ttmbench.evaluator.ttm_method import run_ttm_method
from ttmbench.methods.run import MethodRun
from ttmbench.methods.settings import checked_settings
from ttmbench.methods.views import views_of
from ttmbench.plugins.manager import BUILTIN
from ttmbench.plugins.registry import Registry
from ttmbench.protocols import DualEncoder, StoredFeatures, TrainableInParts
from ttmbench.results.summary import MethodScores
from ttmbench.scoring.capabilities import Capabilities, Model, unknown_wrappers
from ttmbench.scoring.fingerprint import distinct_captions
from ttmbench.scoring.inputs import rows_of
from ttmbench.ttm.checkpoint import TaskCheckpoint
from ttmbench.ttm.parameters import check_train, is_added
from ttmbench.ttm.parts import check_parts
from ttmbench.ttm.variants import Adaptation
from ttmbench.types import MethodSpec, Record


def check_methods(
    registry: Registry, config: RunConfig, tasks: Mapping[str, TaskFile], adapter: Model | None = None
) -> None:
    """UsageError for an unknown method or setting, or a method that a task, or the model, does not allow."""
    for key in config.method_args:
        if key.partition(".")[0] not in config.methods:
            raise UsageError(
                f"--method_args {key}: must be METHOD.KEY with a method of the run ({', '.join(config.methods)}); add "
                "the method to --methods, or omit the setting"
            )
    for name in config.methods:
        if registry.method(name).is_finetuning:
            raise UsageError(f"--methods {name}: 'ttmbench finetune' trains on labels; evaluate the weights it writes")
    reference_tasks(registry, config)
    _check_left(config, [registry.method(name) for name in config.methods])
    for name in config.methods:
        spec = registry.method(name)
        settings = checked_settings(spec, settings_for(config, name))
        check_reward(registry, spec, settings)
        if spec.is_ttm:
            _check_ttm(registry, config, name, TTMConfig.model_validate(settings), tasks, adapter)
        elif adapter is not None:
            _check_parameters(config, spec, settings, adapter)
        wrappers = settings.get("wrappers") if "caption_texts" in spec.needs else None
        if isinstance(wrappers, tuple) and (unknown := unknown_wrappers(adapter, wrappers)):
            raise UsageError(f"method '{name}' cannot be run with model {config.model}: {unknown}")
        why = [refusal(spec, task.spec, adapter, settings) for task in tasks.values()]
        if None not in why:  # where another task allows it, this one has a note
            model = "" if adapter is None else f" with model {config.model}"
            raise UsageError(f"method '{name}' cannot be run on task '{next(iter(tasks))}'{model}: {why[0]}")


def _check_left(config: RunConfig, specs: Sequence[MethodSpec]) -> None:
    """UsageError if trained models are to be measured elsewhere or saved, and the run leaves none."""
    for option, is_given, leaves in (
        ("--ttm_also", bool(config.ttm_also), config.ttm),
        ("--save_adapted", config.save_adapted is not None, config.ttm or config.simple_match),
    ):
        if is_given and not leaves and not any(spec.leaves_model for spec in specs):
            whose = "; ".join(f"method '{spec.name}' {_left_out(spec)}" for spec in specs)
            raise UsageError(f"{option} needs TTM or a method that leaves a trained model: {whose}")


def _left_out(spec: MethodSpec) -> str:
    """Why a method leaves no trained model."""
    return f"restores the model before each {spec.reset}" if spec.trains else "trains nothing"


def _check_ttm(
    registry: Registry,
    config: RunConfig,
    method: str,
    settings: TTMConfig,
    tasks: Mapping[str, TaskFile],
    adapter: Model | None,
) -> None:
    """UsageError for parts that cannot be used together, with a task, or with the model."""
    for key in ("augment", "augment_scale"):
        if key in settings_for(config, method):
            raise UsageError(f"--method_args {method}.{key}: images are prepared once for a run; use --ttm_args {key}")
    for spec in (task.spec for task in tasks.values() if task.spec.kind == "groups"):
        check_parts(registry, settings, spec.shape, spec.is_global)
    if adapter is not None:
        check_training(Capabilities(adapter), config, settings)


def _check_parameters(config: RunConfig, spec: MethodSpec, settings: Record, adapter: Model) -> None:
    """UsageError for parameters that the model lacks, or a precision in which none are trained."""
    which = settings.get("train")
    if config.dtype == "fp16" and (which is not None or "caption_embeddings" in spec.needs):
        raise UsageError(f"method '{spec.name}' needs gradients, which underflow in fp16; use --dtype bf16 or fp32")
    if isinstance(which, str) and spec.leaves_model and config.save_adapted is not None and is_added(which):
        raise UsageError(
            f"method '{spec.name}': --save_adapted cannot save what train={which} adds; train a set of weights"
        )
    if isinstance(which, str) and isinstance(adapter, TrainableInParts):
        try:
            check_train(adapter, which)
        except UsageError as error:
            raise UsageError(f"method '{spec.name}': {error}") from None


def settings_for(config: RunConfig, method: str) -> Record:
    """The settings of a method that the user gives."""
    split = {key: key.partition(".") for key in config.method_args}
    return {split[key][2]: value for key, value in config.method_args.items() if split[key][0] == method}


def refusal(
    spec: MethodSpec, task: TaskSpec, adapter: Model | None = None, settings: Mapping[str, object] | None = None
) -> str | None:
    """Why a method cannot be run on a task, and with a model and settings if they are given; None if it can."""
    if task.kind != "groups":
        return "it works on groups, but the task has no groups"
    if task.is_global and not spec.is_ttm:
        return "it works inside groups, and the task is matched globally"
    if task.shape.true_captions > 1 and (spec.assumes_matching or spec.trains):
        return f"{task.shape.true_captions} captions are true for each image, and it is defined for one"
    if "views" in spec.needs and task.shape.captions == 1:
        return f"it chooses views by their answers among captions, and a {task.shape} group has one caption"
    if "views" in spec.needs and task.video is not None:
        return "it needs views of images, and the items are videos"
    if "references" in spec.needs and is_its_own_reference(settings or {}, task.task):
        return "its references are the task itself; name another task, or give references=task"
    if adapter is None:
        return None
    if spec.is_ttm:
        loss = Capabilities(adapter).loss
        if loss == "matching" and task.is_global:
            return "the model learns which pairs inside a group match, and the task is matched globally"
        return None if loss else "the model cannot be adapted (it has no matching_loss or pair_loss)"
    if spec.takes_features and not isinstance(adapter, DualEncoder):
        return "it needs the features of a dual encoder"
    if isinstance(adapter, StoredFeatures) and read_references((settings or {}).get("references")) is not None:
        return "it encodes references of another task, and the model reads stored features"
    if "views" in spec.needs and isinstance(adapter, StoredFeatures):
        return "it needs views of images, and the model reads stored features"
    if "caption_texts" in spec.needs and isinstance(adapter, StoredFeatures):
        return "it encodes captions in other words, and the model reads stored features"
    if spec.trains and not (isinstance(adapter, TrainableInParts) and adapter.trains_in_parts):
        return "it needs gradients of image and caption features, which the model does not give"
    if "caption_embeddings" in spec.needs and Capabilities(adapter).caption_embeddings is None:
        return "it shifts the token embeddings of captions, and the model's cannot be shifted"
    return None


def undefined_notes(run: Run, task: TaskSpec) -> list[str]:
    """A sentence for each method of the run that is not defined for a task."""
    specs = {name: run.registry.method(name) for name in run.config.methods}
    why = {name: refusal(spec, task, run.adapter, settings_for(run.config, name)) for name, spec in specs.items()}
    notes = [f"method '{name}' was not run: {reason}" for name, reason in why.items() if reason is not None]
    wanted = {"measured on other tasks": run.config.ttm_also, "saved": run.config.save_adapted}
    what = " or ".join(words for words, is_wanted in wanted.items() if is_wanted)
    for spec in (specs[name] for name, reason in why.items() if reason is None and what):
        if not spec.leaves_model:
            notes.append(f"what method '{spec.name}' does is not {what}: it {_left_out(spec)}")
    return notes


def is_left(run: Run, task: TaskSpec) -> bool:
    """Whether a method of ``--methods`` leaves a trained model on a task."""
    specs = [run.registry.method(name) for name in run.config.methods]
    return any(
        spec.leaves_model and refusal(spec, task, run.adapter, settings_for(run.config, spec.name)) is None
        for spec in specs
    )


def columns(
    run: Run,
    scored: Scored,
    checkpoint: TaskCheckpoint,
    by_ttm: Adaptation | None,
    trained_alone: bool = False,
) -> Iterator[tuple[str, MethodSpec, Callable[..., MethodScores]]]:
    """Each method of ``--methods`` that is defined on a task, with what runs it.

    That takes ``after``, what follows each seed of it. ``by_ttm`` runs those that are TTM with
    settings of their own; ``trained_alone`` leaves out the others, and checks, which no later run finds.
    """
    stage, registry, config = scored.stage, run.registry, run.config
    adapter = run.capabilities.dual_encoder
    rows = rows_of(scored.data.groups) if stage is None else stage.prepared.rows
    shared = MethodRun(
        scored.raw,
        scored.spec.shape,
        scored.metrics,
        config.run_seeds,
        (len(np.unique(rows.images)), len(np.unique(rows.captions))),
        stage,
        None if adapter is None else views_of(adapter, scored.data.groups, run.sizer),
        checkpoint,
        () if isinstance(run.adapter, StoredFeatures) else distinct_captions(scored.data.groups),
        config.audit_labels and not trained_alone,
        None if trained_alone else config.ttm_holdout,
        None if scored.data.clusters is None else scored.data.clusters.groups,
        config.seed,
        partial(reference_set, run),
        partial(reward_model, run, scored),
    )
    for name in config.methods:
        spec, plugin = registry.methods[name]
        given = settings_for(config, name)
        if refusal(spec, scored.spec, run.adapter, given) is not None or (trained_alone and not spec.trains):
            continue
        if spec.is_ttm:
            assert by_ttm is not None, "the model can be adapted, or it would be refused"
            yield name, spec, partial(run_ttm_method, by_ttm, spec, given, audit=shared.audit, holdout=shared.holdout)
        else:
            yield name, spec, partial(shared.column, spec, given, "" if plugin == BUILTIN else plugin)
