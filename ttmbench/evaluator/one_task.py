"""Test-time methods on a task of a run; which are possible is checked before anything is scored.

With ``--also``, adapted models are measured on other tasks, whatever their kind. What was measured is stored with the
finished seed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from ttmbench._util.console import warn
from ttmbench._util.file_io import to_json, write_text
from ttmbench._util.third_party import error_line, phase
from ttmbench._version import __version__
from ttmbench.config import RunConfig, TTMConfig, parse_pairs, read_references
from ttmbench.data.loader import load_task_data
from ttmbench.data.task_file import TaskFile, TaskSpec, find_task
from ttmbench.errors import DivergedError, NotRestoredError, TtmbenchError, UsageError
from ttmbench.evaluator.adapters import finetuned, make_adapter, model_info, remarks, write_record
from ttmbench.evaluator.eval_results import Scored, TaskResult, TransferResult
from ttmbench.evaluator.score_task import Run, ScoreCache, TaskCache, notify_scored, plan_task, score
from ttmbench.methods.features import ReferenceSet, RewardModel, scale_and_bias
from ttmbench.methods.parameters import SETS, is_added, low_rank_removed, parameters_of
from ttmbench.methods.parts import check_parts
from ttmbench.methods.runner import Left, Metadata, MethodRun, TaskCheckpoint, Tensors, score_tensors, scores_of
from ttmbench.methods.settings import checked_settings, load_parts, recorded, usual_rate
from ttmbench.methods.ttm import DEFAULT_PARTS
from ttmbench.methods.views import views_of
from ttmbench.model import DualEncoder, Model, PairScorer, StoredFeatures
from ttmbench.plugins.registry import Registry
from ttmbench.results.numbers import RAW, Number, as_entries
from ttmbench.results.summary import MethodScores, difference_of, differences, metric_mean, over_seeds
from ttmbench.scoring.dual_encoder import encode_captions, encode_images
from ttmbench.scoring.inputs import Inputs, unknown_wrappers
from ttmbench.types import MethodSpec, Record, Scores


def settings_for(config: RunConfig, method: str) -> Record:
    """The settings of a method that the user gives."""
    split = {key: key.partition(".") for key in config.method_args}
    return {split[key][2]: value for key, value in config.method_args.items() if split[key][0] == method}


def reference_tasks(registry: Registry, config: RunConfig) -> dict[str, TaskFile]:
    """The tasks that ``METHOD.references`` of the run's methods name; UsageError for a wrong one."""
    tasks: dict[str, TaskFile] = {}
    for spec in (registry.methods[name] for name in config.methods):
        given = settings_for(config, spec.name).get("references", spec.settings.get("references"))
        asked = read_references(given) if "references" in spec.needs else None
        if asked is not None:
            task = tasks[asked[0]] = find_task(registry, asked[0])
            if task.spec.kind == "classification":
                what = f"--method_args {spec.name}.references: task '{asked[0]}'"
                raise UsageError(f"{what} has classes and no captions; give another")
    return tasks


def reference_set(run: Run, name: str) -> ReferenceSet:
    """The references that a setting names (``TASK`` or ``TASK:GROUPS``), with features that go to the cache.

    DataError for data out of reach.
    """
    asked = read_references(name)
    assert asked is not None, "checked before anything is scored"
    task, config = find_task(run.registry, asked[0]), run.config
    run = run.on(task.spec)
    adapter = run.model
    assert isinstance(adapter, DualEncoder), "checked before anything is scored"
    groups = load_task_data(run.registry, task, asked[1], config.offline, config.data_dir).groups
    inputs = Inputs(groups)
    cache = TaskCache(run.cache, adapter, task.spec, inputs, {"features": True}, "features of references")
    found = cache.find({"images": None, "captions": None})
    if found is None:
        with torch.no_grad():
            images = encode_images(adapter, inputs, run.sizer).features
            captions = encode_captions(adapter, inputs.captions, run.sizer).features
        cache.keep({"images": images.cpu().numpy(), "captions": captions.cpu().numpy()}, config.model_name)
    else:
        images, captions = torch.from_numpy(found["images"]), torch.from_numpy(found["captions"])
    # Shuffled: the order of the groups would show which caption belongs to which image.
    drawn = np.random.default_rng(0)
    images, captions = (side.clone()[torch.from_numpy(drawn.permutation(len(side)))] for side in (images, captions))
    digest = inputs.digest()
    record = {"task": task.spec.task, "images": len(images), "captions": len(captions), "data_sha256": digest}
    return ReferenceSet(images, captions, record)


def _read(reward: str) -> tuple[str, Record]:
    """Name and arguments of a model written ``NAME`` or ``NAME:KEY=VALUE|KEY=VALUE``."""
    name, _, arguments = reward.partition(":")
    return name, parse_pairs(arguments.replace("|", ","))


def _loaded(run: Run, reward: str) -> DualEncoder | PairScorer:
    name, arguments = _read(reward)
    model = make_adapter(run.registry, name, arguments, run.config.model_copy(update={"compile": False}), True)
    if not isinstance(model, DualEncoder | PairScorer) or isinstance(model, StoredFeatures):
        why = "reads stored features" if isinstance(model, StoredFeatures) else "answers in words"
        raise UsageError(f"reward={reward}: model {name} {why}, and rewards are scores of images with captions")
    for remark in remarks(model):
        warn(remark)
    return model


def reward_model(run: Run, scored: Scored, reward: str) -> RewardModel:
    """What a model says of the pairs of a task; it is loaded once for a run, and its scores may come from the cache.

    UsageError for a model that has no scores of pairs, DataError for weights out of reach.
    """
    name, arguments = _read(reward)
    model, groups = run.once("reward model", reward, lambda: _loaded(run, reward)), scored.data.groups
    off: Record = {"methods": [], "method_args": {}, "also": []}
    asked = {"model": name, "model_args": arguments, "limit": None, "samples": None, **off}
    config: RunConfig = run.config.model_copy(update=asked)
    helper = replace(Run.of(run.registry, config, model), cache=run.cache, key=run.key, helpers=run.helpers)
    plan = replace(plan_task(helper, scored.spec), metrics=[], all_pairs=False)
    raw = score(plan, helper, helper.load(TaskFile(scored.spec, None, tuple(groups)))).raw
    values, are_cosines = torch.from_numpy(raw.groups), False
    rows = Inputs(groups).rows
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
    registry: Registry,
    config: RunConfig,
    tasks: Mapping[str, TaskFile],
    settings: Mapping[str, TTMConfig],
    model: Model | None = None,
) -> None:
    """UsageError for an unknown method or setting (TTM's on each task are ``settings``), or what no task allows."""
    for key in config.method_args:
        if key.partition(".")[0] not in config.methods:
            raise UsageError(f"--method_args {key}: must be METHOD.KEY with a method of the run; add it to --methods")
    specs = [registry.methods[name] for name in config.methods]
    if (config.also or config.save_adapted is not None) and not any(spec.reset == "never" for spec in specs):
        whose = "; ".join(f"method '{spec.name}' {_left_out(spec)}" for spec in specs)
        raise UsageError(f"--also and --save_adapted need a method that leaves a trained model, such as ttm: {whose}")
    if config.save_adapted is not None and model is not None and not model.savable:
        raise UsageError(f"model {config.model} cannot be saved (it has no save); omit --save_adapted")
    if config.also and isinstance(model, StoredFeatures):
        raise UsageError(f"model {config.model} reads stored features of one task; omit --also")
    for spec in specs:
        why = list[str | None]()
        for name, task in tasks.items():
            checked = checked_settings(spec, settings_for(config, spec.name), settings[name])
            why.append(refusal(spec, task.spec, model, recorded(checked)))
            if why[-1] is None and isinstance(checked, TTMConfig):
                _check_ttm(registry, config, spec, task.spec, checked, model)
            elif why[-1] is None:
                _check_settings(registry, config, spec, recorded(checked), model)
        if None not in why:  # where another task allows it, this one has a note
            whose = "" if model is None else f" with model {config.model}"
            raise UsageError(f"method '{spec.name}' cannot be run on task '{next(iter(tasks))}'{whose}: {why[0]}")


def _left_out(spec: MethodSpec) -> str:
    """Why a method leaves no trained model."""
    return f"restores the model before each {spec.reset}" if spec.trains else "trains nothing"


def _check_ttm(
    registry: Registry, config: RunConfig, spec: MethodSpec, task: TaskSpec, settings: TTMConfig, model: Model | None
) -> None:
    """UsageError for parts that cannot be used together, and for what the model cannot be trained with or by."""
    settings.by_share(task.is_global)
    parts = load_parts(registry, settings)
    if parts != DEFAULT_PARTS:
        check_parts(parts, settings, task.shape, task.is_global)
    if {"augment", "augment_scale"} & settings_for(config, spec.name).keys():
        raise UsageError(f"--method_args {spec.name}.augment: images are prepared once for a run; use --ttm_args")
    if model is None:
        return
    if settings.loss != "own" and not (isinstance(model, DualEncoder) and model.gives_gradients):
        why = f"model {config.model} does not give (it has no train_images and train_captions)"
        raise UsageError(f"loss={settings.loss} (--ttm_args) needs features with gradients, which {why}")
    if settings.loss != "own" and config.dtype == "fp16":
        raise UsageError(f"loss={settings.loss} needs gradients, which underflow in fp16; use --dtype bf16 or fp32")
    trained = list(model.parameters()) if settings.train == "all" else _trained(config, spec, settings.train, model)
    if model.device.type == "cuda":
        _check_memory(model, trained)


def _check_settings(
    registry: Registry, config: RunConfig, spec: MethodSpec, settings: Record, model: Model | None
) -> None:
    """UsageError for what the model lacks, or a model or task that no one has registered, for other methods."""
    name, train, reward, wrappers = spec.name, *(settings.get(key) for key in ("train", "reward", "wrappers"))
    if "references" in spec.needs:
        reference_tasks(registry, config)
    if "reward_model" in spec.needs and isinstance(reward, str) and reward != "self":
        registry.adapters[_read(reward)[0]]
    if model is None:
        return
    if config.dtype == "fp16" and (train is not None or "caption_embeddings" in spec.needs):
        raise UsageError(f"method '{name}' needs gradients, which underflow in fp16; use --dtype bf16 or fp32")
    if "caption_texts" in spec.needs and isinstance(wrappers, tuple) and isinstance(model, DualEncoder):
        if unknown := unknown_wrappers(model, wrappers):
            raise UsageError(f"method '{name}' cannot be run with model {config.model}: {unknown}")
    if isinstance(train, str) and (train in SETS or is_added(train)):  # a method may call something else ``train``
        _trained(config, spec, train, model)


def _trained(config: RunConfig, spec: MethodSpec, train: str, model: Model) -> list[torch.nn.Parameter]:
    """The parameters that a setting names; UsageError for a model that lacks them, or if they cannot be saved."""
    if spec.reset == "never" and config.save_adapted is not None and is_added(train):
        what = f"method '{spec.name}': --save_adapted cannot save what train={train} adds"
        raise UsageError(f"{what}; train a set of weights")
    try:
        with low_rank_removed(model):
            return list(parameters_of(model, train).values())
    except UsageError as error:
        raise UsageError(f"method '{spec.name}': {error}") from None


def _check_memory(model: Model, trained: Sequence[torch.nn.Parameter]) -> None:
    """UsageError unless a GPU has room for a gradient and AdamW's two means of each parameter."""
    need, free = 3 * sum(parameter.nbytes for parameter in trained), torch.cuda.mem_get_info(model.device)[0]
    if need > free:
        raise UsageError(
            f"training needs {need / 1e9:.0f} GB of memory for gradients and the optimizer, and {model.device} has "
            f"{free / 1e9:.0f} GB free; train fewer parameters: --ttm_args train=norm or train=lora:16, or for chat "
            "models --model_args lora=16,weights_dtype=bf16"
        )


def refusal(spec: MethodSpec, task: TaskSpec, model: Model | None, settings: Mapping[str, object]) -> str | None:
    """Why a method with these settings cannot be run on a task, and with a model if one is given; None if it can."""
    if task.kind != "groups":
        return "it works on groups, but the task has no groups"
    needs, several, encoder = spec.needs, task.shape.true_captions, model if isinstance(model, DualEncoder) else None
    references = read_references(settings.get("references")) if "references" in needs else None
    if spec.track == "supervised":
        return "'ttmbench finetune' trains on labels; evaluate the weights it writes"
    if task.is_global and not spec.needs_model:
        return "it works inside groups, and the task is matched globally"
    if several > 1 and (spec.assumes_matching or spec.trains):
        return f"{several} captions are true for each image, and it is defined for one"
    if "views" in needs and (task.shape.captions == 1 or task.video is not None):
        return "it chooses views of images by their answers among captions, and the task has one caption or videos"
    if references is not None and references[0] == task.task:
        return "its references are the task itself; name another task, or give references=task"
    if model is None:
        return None
    gives_gradients = encoder is not None and encoder.gives_gradients
    if spec.needs_model and (not model.trainable or model.untrainable is not None):
        return f"the model cannot be adapted: {model.untrainable or 'it has no matching_loss or pair_loss'}"
    if spec.needs_model and task.is_global and encoder is None:
        return "the model learns which pairs inside a group match, and the task is matched globally"
    if spec.needs_model and task.video is not None and not gives_gradients:
        return "the items are videos, and the model has no train_images and train_captions"
    if spec.needs_model:
        return None
    if spec.takes_features and (encoder is None or encoder.vectors == "many"):
        return "it needs the features of a dual encoder, one vector for each image and caption"
    if isinstance(model, StoredFeatures) and (references is not None or {"views", "caption_texts"} & {*needs}):
        return "it encodes references, views or other words, and the model reads stored features"
    if spec.trains and not (encoder is not None and gives_gradients and encoder.trains_in_parts):
        return "it needs gradients of image and caption features, which the model does not give"
    if "caption_embeddings" in needs and (encoder is None or encoder.caption_width is None):
        return "it shifts the token embeddings of captions, and the model's cannot be shifted"
    return None


STAGE = "also"


def measured(result: TaskResult) -> tuple[Tensors, Metadata]:
    """What is stored of another task with an adapted model: its scores, if it has any, and its numbers."""
    entries = as_entries(result.numbers)
    about = {"results": entries["results"], "ties": entries["ties"], "seconds": math.fsum(result.seconds.values())}
    return score_tensors(result.raw) if isinstance(result, Scored) else {}, about


def transfer_of(name: str, raw: TaskResult, columns: Sequence[MethodScores], config: RunConfig) -> TransferResult:
    """Another task with the original model (``raw``) and with that of every seed of methods, which have measured it."""
    made = {column.name: [left[name] for left in column.left] for column in columns}
    result: TaskResult
    if isinstance(raw, Scored):
        scores = {method: [scores_of(dict(tensors)) for tensors, _ in each] for method, each in made.items()}
        every = [raw.columns[0], *(MethodScores(method, each) for method, each in scores.items())]
        result = replace(raw, columns=every).summarised((config.bootstrap_iters, config.seed, config.interval))
        gains = {method: gains_of(raw, each, config) for method, each in scores.items()}
    else:  # means over seeds, without intervals over groups
        gains, numbers = {}, list(raw.numbers)
        for method, each in made.items():
            of_method, gains[method] = _numbers_over_seeds(raw, method, [about for _, about in each])
            numbers += of_method
        result = replace(raw, numbers=numbers)
    seconds = math.fsum(about["seconds"] for each in made.values() for _, about in each)
    return TransferResult(result, dict.fromkeys(made, config.run_seeds), gains, seconds)


def gains_of(raw: Scored, adapted: Sequence[Scores], config: RunConfig) -> Mapping[str, Record]:
    """Every metric after adaptation minus before it, group by group."""
    return differences(raw.metrics, raw.raw, adapted, raw.data.clusters, config.bootstrap_iters, config.seed)


def _numbers_over_seeds(
    raw: TaskResult, method: str, made: Sequence[Mapping[str, Any]]
) -> tuple[list[Number], Mapping[str, Record]]:
    """A method's numbers on a task whose single groups are not kept, and its differences."""
    numbers, gains = list[Number](), dict[str, Any]()
    for before in (number for number in raw.numbers if number.method == RAW):
        by_seed = [about["results"].get(before.key) for about in made]
        ties = [about["ties"].get(before.key) for about in made]
        known: dict[str, Any] = {"value": None, "chance": before.chance}
        if None not in by_seed:
            known["value"], known["seed_std"] = over_seeds(np.array(by_seed))
        known["ties"] = None if None in ties else float(np.mean([tie or 0 for tie in ties]))
        numbers.append(Number(before.task, before.metric, method, **known))
        gains[before.metric] = difference_of(before.value, by_seed)
    return numbers, {metric: gain for metric, gain in gains.items() if gain is not None}


def check_folder(config: RunConfig, is_resumed: bool) -> None:
    """Makes the folder of ``--save_adapted``; UsageError if that fails, or if it is to be new and is not empty."""
    folder = Path(config.save_adapted or "")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not is_resumed and any(folder.iterdir()):
            raise UsageError(f"--save_adapted {folder} is not empty; name a new folder")
    except OSError as error:
        raise UsageError(f"--save_adapted {folder} cannot be written to: {error.strerror or error}") from None


@dataclass(frozen=True)
class Methods:
    """The test-time methods of a run, and what follows each finished seed while the model is adapted."""

    is_one: bool  # whether one model is saved, which has the folder to itself
    others: Mapping[str, TaskFile]  # on which adapted models are measured, too
    score: Callable[[Run, TaskFile], TaskResult]  # scores one of them with the model as it is

    def defined_on(self, run: Run, task: TaskSpec) -> tuple[list[MethodSpec], list[str]]:
        """The methods of the run that are defined on a task, and a sentence for each of the others."""
        config, defined, notes = run.config, list[MethodSpec](), list[str]()
        wanted = {"measured on other tasks": config.also, "saved": config.save_adapted}
        what = " or ".join(words for words, is_wanted in wanted.items() if is_wanted)
        for spec in (run.registry.methods[name] for name in config.methods):
            why = refusal(spec, task, run.model, settings_for(config, spec.name))
            if why is not None:
                notes.append(f"method '{spec.name}' was not run: {why}")
                continue
            defined.append(spec)
            if what and spec.reset != "never":
                notes.append(f"what method '{spec.name}' does is not {what}: it {_left_out(spec)}")
        return defined, notes

    def applied_to(
        self, run: Run, scored: Scored, specs: Sequence[MethodSpec], settings: TTMConfig, state: Path | None
    ) -> Scored:
        """The task with the columns of methods; if some fail, with those of the others and the first failure."""
        columns, seconds, failures = list(scored.columns), dict(scored.seconds), dict[str, Exception]()
        others = dict[str, TaskResult]()  # with the original model, once a run
        try:
            for name in self.others if any(spec.reset == "never" for spec in specs) else ():
                if name != scored.spec.task:
                    others[name] = run.once(STAGE, name, partial(self._score_elsewhere, run, name, run.cache))
            for column in self.columns(run, scored, settings, state, specs, failures, others):
                if any(column.left):
                    gains = gains_of(scored, column.scores, run.config)
                    column = replace(column, record={**column.record, "differences": gains})
                columns.append(column)
                seconds |= {column.name: column.seconds} if column.seconds else {}
                if run.registry.manager.hook.ttmbench_task_scored.get_hookimpls():
                    notify_scored(run, scored, column)
        except Exception as error:
            failures[""] = error
        left = [column for column in columns if any(column.left)]
        first, *further = failures.values() or [None]
        failed = [f"a further method failed: {error_line(error)}" for error in further if error]
        return replace(
            scored,
            columns=columns,
            seconds=seconds,
            notes=[*scored.notes, *failed],
            elsewhere={name: transfer_of(name, raw, left, run.config) for name, raw in others.items() if left},
            failure=first,
        )

    def run_seeds(self, run: Run, seeds: Sequence[int], scored: Scored, settings: TTMConfig, state: Path) -> None:
        """Runs some seeds of what is trained, and leaves their checkpoints for the run that does the whole task.

        A failure of one of ``--methods`` is left to that run, unless the model is no longer what it was.
        """
        # The audit compares all seeds, and no later run finds its scores or those of held-out groups.
        changes = {"seeds": list(seeds), "audit_labels": False, "holdout": None}
        part, failures = replace(run, config=run.config.model_copy(update=changes)), dict[str, Exception]()
        specs = [spec for spec in self.defined_on(part, scored.spec)[0] if spec.trains]
        for _ in self.columns(part, scored, settings, state, specs, failures):
            pass
        for error in failures.values():
            if isinstance(error, NotRestoredError):
                raise error

    def columns(
        self,
        run: Run,
        scored: Scored,
        settings: TTMConfig,
        state: Path | None,
        specs: Sequence[MethodSpec],
        failures: dict[str, Exception],
        others: Mapping[str, TaskResult] = {},
    ) -> Iterator[MethodScores]:
        """The columns of methods on a task; adapted models are measured on ``others``.

        A failure is added to ``failures``; other methods go on, unless the model is no longer what it was.
        """
        stage, config, task, data = scored.stage, run.config, scored.spec, scored.data
        inputs = Inputs(data.groups)
        rows = inputs.rows if stage is None else stage.prepared.rows
        with_features = any(spec.takes_features for spec in specs)

        def after(method: str, seed: int, about: Record) -> Left:
            if config.save_adapted is not None:
                self._save(run, scored, method, seed, about)
            with phase(STAGE):
                return {name: measured(self._score_elsewhere(run, name)) for name in others}

        digests = ":".join([data.fingerprint, *(other.data.fingerprint for other in others.values())])
        runner = MethodRun(
            raw=scored.raw,
            shape=task.shape,
            metrics=scored.metrics,
            seeds=config.run_seeds,
            registry=run.registry,
            settings=settings,
            stage=stage,
            items=(len(np.unique(rows.images)), len(np.unique(rows.captions))),
            is_global=task.is_global,
            views=views_of(cast("DualEncoder", run.model), inputs, run.sizer) if with_features else None,
            checkpoint=TaskCheckpoint(state, digests, run.key),
            texts=() if isinstance(run.model, StoredFeatures) else inputs.captions,
            audit=config.audit_labels,
            holdout=config.holdout,
            clusters=None if data.clusters is None else data.clusters.groups,
            seed=config.seed,
            references=lambda name: run.once("references", name, lambda: reference_set(run, name)),
            rewards=lambda name: run.once("reward model", name + task.task, lambda: reward_model(run, scored, name)),
            iterated=lambda method, record: run.registry.notify(
                "ttmbench_iteration_finished", task=task.task, method=method, record=record
            ),
            divided="," in config.device,
        )
        for spec in specs:
            clock, leaves = time.perf_counter(), {"after": partial(after, spec.name)} if spec.reset == "never" else {}
            try:
                with phase(spec.name):
                    made = runner.column(spec, settings_for(config, spec.name), **leaves)
            except Exception as error:
                if isinstance(error, DivergedError):
                    error.usual = usual_rate(run.registry, config, task)
                failures[spec.name] = error
                if isinstance(error, NotRestoredError):
                    return
            else:
                yield replace(made, seconds=time.perf_counter() - clock)

    def _score_elsewhere(self, run: Run, name: str, cache: ScoreCache | None = None) -> TaskResult:
        """Scores another task with the model as it is now; scores of an adapted one are not cached."""
        off: Record = {"methods": [], "method_args": {}, "samples": None, "also": [], "save_adapted": None}
        config = run.config.model_copy(update=off)
        return self.score(replace(run, config=config, samples=None, cache=cache), self.others[name])

    def _save(self, run: Run, scored: Scored, name: str, seed: int, about: Record) -> None:
        """Writes the model as it is now: into the folder itself for one task, seed and method, else one for each."""
        spec, config, folder = scored.spec, run.config, Path(run.config.save_adapted or "")
        leaving = [method for method in config.methods if run.registry.methods[method].reset == "never"]
        folder = folder / name if len(leaving) > 1 else folder
        folder = folder if self.is_one else folder / spec.task / f"seed_{seed}"
        card = {
            "model": config.model_name,
            "task": spec.task,
            "task_version": spec.version,
            "data_sha256": scored.data.fingerprint,
            "seed": seed,
            "ttmbench": __version__,
            "method": name,
            **about,
        }
        finetuning = finetuned(run.model)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            run.model.save(folder)
            if finetuning is not None:
                write_record(folder, finetuning)  # adapted or not, the weights stay those of a finetuned model
        except OSError as error:
            why = error.strerror or error
            raise TtmbenchError(f"the adapted model cannot be written to {folder}: {why}") from None
        write_text(folder / "ttmbench.json", to_json(card))
