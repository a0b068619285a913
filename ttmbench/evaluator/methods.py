"""The test-time methods that a run names: checked before anything is scored, given references and rewards, and run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from ttmbench._util.console import warn
from ttmbench._util.third_party_errors import phase
from ttmbench.config import RunConfig, TTMConfig, parse_pairs, read_references
from ttmbench.data.loader import load_task_data
from ttmbench.data.task_file import TaskFile, TaskSpec, find_task
from ttmbench.errors import UsageError
from ttmbench.evaluator.adapters import make_adapter, model_info, remarks
from ttmbench.evaluator.cache import TaskCache
from ttmbench.evaluator.score_task import Run, check_training, plan_task, score_task
from ttmbench.evaluator.task_result import Scored
from ttmbench.methods.checkpoint import TaskCheckpoint
from ttmbench.methods.features import ReferenceSet, RewardModel, scale_and_bias
from ttmbench.methods.parameters import check_train, is_added
from ttmbench.methods.parts import check_parts
from ttmbench.methods.run import MethodRun
from ttmbench.methods.settings import checked_settings, recorded
from ttmbench.methods.training import Original
from ttmbench.methods.views import views_of
from ttmbench.model import DualEncoder, Model, PairScorer, StoredFeatures
from ttmbench.plugins.registry import BUILTIN, Registry
from ttmbench.results.summary import metric_mean
from ttmbench.scoring.dual_encoder import encode_captions, encode_images
from ttmbench.scoring.inputs import distinct_captions, distinct_images, rows_of, unknown_wrappers
from ttmbench.types import IterationRecord, MethodSpec, Record, Scores


def reference_tasks(registry: Registry, config: RunConfig) -> dict[str, TaskFile]:
    """The tasks that ``METHOD.references`` of the run's methods name; UsageError for a wrong one."""
    tasks: dict[str, TaskFile] = {}
    for method in config.methods:
        spec, key = registry.methods[method], f"{method}.references"
        given = config.method_args.get(key, spec.settings.get("references"))
        asked = read_references(given) if "references" in spec.needs else None
        if asked is None:
            continue
        try:
            task = find_task(registry, asked[0])
        except UsageError as error:
            raise UsageError(f"--method_args {key}: must be task, others or a task's name: {error}") from None
        if task.spec.kind == "classification":
            raise UsageError(f"--method_args {key}: task '{asked[0]}' has classes and no captions; give another")
        tasks[asked[0]] = task
    return tasks


def reference_set(run: Run, name: str) -> ReferenceSet:
    """The references that a setting names (``TASK`` or ``TASK:GROUPS``), once for all methods and tasks of a run.

    Their features come from the cache, or go there. DataError for data out of reach.
    """
    key = f"references {name}"
    if key not in run.helpers:
        with phase("references"):
            run.helpers[key] = _encoded(run, name)
    made: ReferenceSet = run.helpers[key]
    return made


def _encoded(run: Run, name: str) -> ReferenceSet:
    asked = read_references(name)
    assert asked is not None, "checked before anything is scored"
    task, config = find_task(run.registry, asked[0]), run.config
    run = run.on(task.spec)
    adapter = run.model
    assert isinstance(adapter, DualEncoder), "checked before anything is scored"
    groups = load_task_data(run.registry, task, asked[1], config.offline, config.data_dir).groups
    cache = TaskCache(run.cache, adapter, task.spec, groups, {"features": True}, "features of references")
    found = cache.find({"images": None, "captions": None})
    if found is None:
        with torch.no_grad():
            pool = list(distinct_images(groups))
            images = encode_images(adapter, pool, run.sizer, cache.data).features
            captions = encode_captions(adapter, distinct_captions(groups), run.sizer).features
        cache.keep({"images": images.cpu().numpy(), "captions": captions.cpu().numpy()}, config.model_name)
    else:
        images, captions = torch.from_numpy(found["images"]), torch.from_numpy(found["captions"])
    # Shuffled: the order of the groups would show which caption belongs to which image.
    drawn = np.random.default_rng(0)
    images, captions = (side.clone()[torch.from_numpy(drawn.permutation(len(side)))] for side in (images, captions))
    digest = cache.data.hexdigest()
    record = {"task": task.spec.task, "images": len(images), "captions": len(captions), "data_sha256": digest}
    return ReferenceSet(images, captions, record)


def check_reward(registry: Registry, spec: MethodSpec, settings: Mapping[str, object]) -> None:
    """UsageError for a reward model that no one has registered, or wrong arguments."""
    reward = settings.get("reward")
    if "reward_model" not in spec.needs or not isinstance(reward, str) or reward == "self":
        return
    try:
        registry.adapters[_read(reward)[0]]
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


def _loaded(run: Run, reward: str) -> DualEncoder | PairScorer:
    key = f"reward {reward}"
    if key not in run.helpers:
        name, arguments = _read(reward)
        config = run.config.model_copy(update={"compile": False})
        model = make_adapter(run.registry, name, arguments, config, True)
        if not isinstance(model, DualEncoder | PairScorer) or isinstance(model, StoredFeatures):
            why = "reads stored features" if isinstance(model, StoredFeatures) else "answers in words"
            raise UsageError(f"reward={reward}: model {name} {why}, and rewards are scores of images with captions")
        for remark in remarks(model):
            warn(remark)
        run.helpers[key] = model
    loaded: DualEncoder | PairScorer = run.helpers[key]
    return loaded


def _scored(run: Run, scored: Scored, reward: str) -> RewardModel:
    name, arguments = _read(reward)
    model, groups = _loaded(run, reward), scored.data.groups
    off: Record = {"methods": [], "method_args": {}, "also": []}
    asked = {"model": name, "model_args": arguments, "limit": None, "samples": None, **off}
    config: RunConfig = run.config.model_copy(update=asked)
    helper = replace(Run.of(run.registry, config, model), cache=run.cache, key=run.key, helpers=run.helpers)
    plan = plan_task(helper, TaskFile(scored.spec, None, tuple(groups)))
    raw = score_task(replace(plan, metrics=[], all_pairs=False), helper).raw
    values, are_cosines = torch.from_numpy(raw.groups), False
    rows = rows_of(groups)
    if not isinstance(model, DualEncoder):
        count = 2 * raw.groups.size
    else:
        with torch.no_grad():
            features = model.encode_captions(model.prepare_captions(list(groups[0].captions)))
            are_cosines = features.ndim == 2
            if are_cosines:
                scale, bias = (number.cpu() for number in scale_and_bias(model.logits, features.float()))
                values = (values - bias) / scale
        count = len(np.unique(rows.images)) + len(np.unique(rows.captions))
    declared, own = (model_info(one)["fingerprint"] for one in (model, run.model))
    is_student = bool(declared) and declared == own
    record = {"model": name, "fingerprint": declared, "is_student": is_student}
    return RewardModel(values, are_cosines, count, _note(reward, is_student, scored, raw), record)


def _note(reward: str, is_student: bool, scored: Scored, raw: Scores) -> str:
    """What the reward model scores by itself, with which the method is to be compared."""
    means = {metric.name: metric_mean(metric, raw) for metric in scored.metrics if metric.scope == "group"}
    shown = ", ".join(
        f"{name.replace('_', ' ')} {100 * mean:.1f} %" for name, mean in means.items() if mean is not None
    )
    whose = "the reward model is the original model itself" if is_student else "compare with the reward model itself"
    return f"reward={reward}: {whose}, which has {shown}"


def planned_settings(config: RunConfig, spec: MethodSpec, of_run: TTMConfig) -> Record:
    """The settings of a method on a task, of which ``of_run`` are TTM's."""
    return recorded(checked_settings(spec, settings_for(config, spec.name), of_run))


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
        if registry.methods[name].is_finetuning:
            raise UsageError(f"--methods {name}: 'ttmbench finetune' trains on labels; evaluate the weights it writes")
    reference_tasks(registry, config)
    _check_left(config, [registry.methods[name] for name in config.methods])
    for name in config.methods:
        spec = registry.methods[name]
        settings = checked_settings(spec, settings_for(config, name))
        if isinstance(settings, TTMConfig):
            _check_ttm(registry, config, name, settings, tasks, adapter)
            settings = recorded(settings)
        elif adapter is not None:
            _check_parameters(config, spec, settings, adapter)
        check_reward(registry, spec, settings)
        wrappers = settings.get("wrappers") if "caption_texts" in spec.needs else None
        encoder = adapter if isinstance(adapter, DualEncoder) else None
        if isinstance(wrappers, tuple) and encoder is not None and (unknown := unknown_wrappers(encoder, wrappers)):
            raise UsageError(f"method '{name}' cannot be run with model {config.model}: {unknown}")
        why = [refusal(spec, task.spec, adapter, settings) for task in tasks.values()]
        if None not in why:  # where another task allows it, this one has a note
            model = "" if adapter is None else f" with model {config.model}"
            raise UsageError(f"method '{name}' cannot be run on task '{next(iter(tasks))}'{model}: {why[0]}")


def _check_left(config: RunConfig, specs: Sequence[MethodSpec]) -> None:
    """UsageError if trained models are to be measured elsewhere or saved, and the run leaves none."""
    for option, is_given in (("--also", bool(config.also)), ("--save_adapted", config.save_adapted is not None)):
        if is_given and not any(spec.leaves_model for spec in specs):
            whose = "; ".join(f"method '{spec.name}' {_left_out(spec)}" for spec in specs)
            raise UsageError(f"{option} needs a method that leaves a trained model, such as ttm: {whose}")


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
        check_training(adapter, config, settings)


def _check_parameters(config: RunConfig, spec: MethodSpec, settings: Record, adapter: Model) -> None:
    """UsageError for parameters that the model lacks, or a precision in which none are trained."""
    which = settings.get("train")
    if config.dtype == "fp16" and (which is not None or "caption_embeddings" in spec.needs):
        raise UsageError(f"method '{spec.name}' needs gradients, which underflow in fp16; use --dtype bf16 or fp32")
    if isinstance(which, str) and spec.leaves_model and config.save_adapted is not None and is_added(which):
        raise UsageError(
            f"method '{spec.name}': --save_adapted cannot save what train={which} adds; train a set of weights"
        )
    if isinstance(which, str) and isinstance(adapter, DualEncoder) and adapter.trainable:
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
    if task.is_global and not spec.takes_ttm_args:
        return "it works inside groups, and the task is matched globally"
    if task.shape.true_captions > 1 and (spec.assumes_matching or spec.trains):
        return f"{task.shape.true_captions} captions are true for each image, and it is defined for one"
    if "views" in spec.needs and task.shape.captions == 1:
        return f"it chooses views by their answers among captions, and a {task.shape} group has one caption"
    if "views" in spec.needs and task.video is not None:
        return "it needs views of images, and the items are videos"
    references = read_references((settings or {}).get("references"))
    if "references" in spec.needs and references is not None and references[0] == task.task:
        return "its references are the task itself; name another task, or give references=task"
    if adapter is None:
        return None
    if spec.takes_ttm_args:
        if not adapter.trainable:
            return "the model cannot be adapted (it has no matching_loss or pair_loss)"
        if task.is_global and not isinstance(adapter, DualEncoder):
            return "the model learns which pairs inside a group match, and the task is matched globally"
        return None
    encoder = adapter if isinstance(adapter, DualEncoder) else None
    if spec.takes_features and (encoder is None or encoder.vectors == "many"):
        return "it needs the features of a dual encoder, one vector for each image and caption"
    if isinstance(adapter, StoredFeatures) and references is not None:
        return "it encodes references of another task, and the model reads stored features"
    if "views" in spec.needs and isinstance(adapter, StoredFeatures):
        return "it needs views of images, and the model reads stored features"
    if "caption_texts" in spec.needs and isinstance(adapter, StoredFeatures):
        return "it encodes captions in other words, and the model reads stored features"
    if spec.trains and not (encoder is not None and encoder.gives_gradients and encoder.trains_in_parts):
        return "it needs gradients of image and caption features, which the model does not give"
    if "caption_embeddings" in spec.needs and (encoder is None or encoder.caption_width is None):
        return "it shifts the token embeddings of captions, and the model's cannot be shifted"
    return None


def undefined_notes(run: Run, task: TaskSpec) -> list[str]:
    """A sentence for each method of the run that is not defined for a task."""
    specs = {name: run.registry.methods[name] for name in run.config.methods}
    why = {name: refusal(spec, task, run.model, settings_for(run.config, name)) for name, spec in specs.items()}
    notes = [f"method '{name}' was not run: {reason}" for name, reason in why.items() if reason is not None]
    wanted = {"measured on other tasks": run.config.also, "saved": run.config.save_adapted}
    what = " or ".join(words for words, is_wanted in wanted.items() if is_wanted)
    for spec in (specs[name] for name, reason in why.items() if reason is None and what):
        if not spec.leaves_model:
            notes.append(f"what method '{spec.name}' does is not {what}: it {_left_out(spec)}")
    return notes


def runner(run: Run, scored: Scored, settings: TTMConfig, checkpoint: TaskCheckpoint, trained_alone: bool) -> MethodRun:
    """What runs the methods of a run on a task, of which ``settings`` are TTM's.

    ``trained_alone`` leaves out what no later run finds: checks of a method.
    """
    stage, config, task, clusters = scored.stage, run.config, scored.spec, scored.data.clusters
    rows = rows_of(scored.data.groups) if stage is None else stage.prepared.rows
    trains = any(spec.trains for spec, _, _ in runnable(run, task))

    def iterated(method: str, record: IterationRecord) -> None:
        run.registry.notify("ttmbench_iteration_finished", task=task.task, method=method, record=record)

    return MethodRun(
        raw=scored.raw,
        shape=task.shape,
        metrics=scored.metrics,
        seeds=config.run_seeds,
        registry=run.registry,
        settings=settings,
        stage=stage,
        original=Original(stage) if trains and stage is not None else None,
        items=(len(np.unique(rows.images)), len(np.unique(rows.captions))),
        is_global=task.is_global,
        views=views_of(run.model, scored.data.groups, run.sizer) if isinstance(run.model, DualEncoder) else None,
        checkpoint=checkpoint,
        texts=() if isinstance(run.model, StoredFeatures) else distinct_captions(scored.data.groups),
        audit=config.audit_labels and not trained_alone,
        holdout=None if trained_alone else config.holdout,
        clusters=None if clusters is None else clusters.groups,
        seed=config.seed,
        references=partial(reference_set, run),
        rewards=partial(reward_model, run, scored),
        iterated=iterated,
        divided="," in config.device,
    )


def runnable(run: Run, task: TaskSpec) -> Iterator[tuple[MethodSpec, Record, str]]:
    """Each method of ``--methods`` that is defined on a task, with the user's settings and its plugin if it has one."""
    for name in run.config.methods:
        spec, given = run.registry.methods[name], settings_for(run.config, name)
        plugin = run.registry.methods.plugins[name]
        if refusal(spec, task, run.model, given) is None:
            yield spec, given, "" if plugin == BUILTIN else plugin
