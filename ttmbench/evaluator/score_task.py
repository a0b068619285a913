"""From a task to its raw scores: asks what the model can do, prepares data, and scores, from the cache if it can."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import features

from ttmbench._util.console import warn
from ttmbench._util.file_io import (
    OWN,
    Unreadable,
    digests_of_modules,
    json_digest,
    load_sealed,
    modules_of,
    replace_sealed,
    tensors_digest,
)
from ttmbench._util.machine import conditions, hardware, installed_version, matmul_precision
from ttmbench._util.third_party import phase
from ttmbench._version import __version__
from ttmbench.config import RunConfig, TTMConfig, groups_of
from ttmbench.data.loader import check_count, load_task_data
from ttmbench.data.paths import cache_folder
from ttmbench.data.task_file import TaskFile, TaskSpec
from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.adapters import finetuned
from ttmbench.evaluator.eval_results import Answered, Data, Scored, TaskResult
from ttmbench.evaluator.output import DataNow, groups_digest
from ttmbench.evaluator.stored_ranks import stored_pool
from ttmbench.model import ChoiceModel, DualEncoder, Model, PairScorer, StoredFeatures, overrides
from ttmbench.plugins.registry import Registry, metric_for
from ttmbench.results.document import MOST_UNDECIDED
from ttmbench.results.numbers import CHOICE, RAW, as_entries, supervised_tracks
from ttmbench.results.summary import MethodScores, refuse_unless_logits, summarise
from ttmbench.scoring.batches import BatchSizer, BlockStore
from ttmbench.scoring.choice_arrays import choice_values, unread_notes
from ttmbench.scoring.debiasing import Likelihoods, Prior, likelihoods, prior_for
from ttmbench.scoring.dual_encoder import PreparedTask, caption_pairs, encode, score_features
from ttmbench.scoring.forced_choice import ask_choices, choices_of, image_prompt, text_prompt
from ttmbench.scoring.inputs import DECODED, Inputs, check_captions, images_on_device, prepare, stored, usable_scores
from ttmbench.scoring.pairs import PairTable, pair_table
from ttmbench.types import Group, MethodSpec, MetricSpec, Record, Scores

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """What the tasks of a run share."""

    registry: Registry  # metrics, sources and hooks
    config: RunConfig  # what was asked for
    model: Model  # as the task takes it
    sizer: BatchSizer  # how much the model takes at a time, learnt from one task to the next
    cache: ScoreCache | None = None  # of raw scores; None for a run without one
    key: str = ""  # digest of the command (`ttmbench.evaluator.output.ConfigKey`); checkpoints are for it alone
    samples: set[str] | None = None  # ids of the groups to use; None for all
    helpers: dict[tuple[str, str], Any] = field(default_factory=dict)  # see `once`
    loaded: Model | None = None  # the model as it takes images, where the task has videos

    @classmethod
    def of(cls, registry: Registry, config: RunConfig, model: Model, as_loaded: bool = False, **more: Any) -> Run:
        """A run with its cache; ``as_loaded``: nothing has touched the model's weights since they were loaded."""
        folder, exact = cache_folder(config.use_cache), conditions(config.batch_size) if config.deterministic else None
        cache = None if folder is None else ScoreCache(folder, exact, model if as_loaded else None)
        sizer = BatchSizer.for_run(config.batch_size, model.device, config.deterministic)
        return cls(registry, config, model, sizer, cache, **more)

    def once(self, stage: str, name: str, make: Callable[[], T]) -> T:
        """What a method needs beside the model, made in a stage of the run where it does not have it yet."""
        if (stage, name) not in self.helpers:
            with phase(stage):
                self.helpers[stage, name] = make()
        made: T = self.helpers[stage, name]
        return made

    def on(self, spec: TaskSpec) -> Run:
        """The run with the model as it takes a task's images or videos; UsageError if it takes no videos."""
        model = loaded = self.model if self.loaded is None else self.loaded  # a task before may have given it videos
        if spec.video is not None:
            from ttmbench.scoring.videos import on_videos

            model = on_videos(model, spec.task, spec.video.frames, spec.video.pooling)
        return self if model is self.model else replace(self, model=model, loaded=loaded)

    def load(self, task: TaskFile) -> Inputs:
        """The groups that the run uses of a task, or features from a file; errors as of `load_task_data`."""
        config = self.config
        with phase("load"):
            if isinstance(self.model, StoredFeatures) and task.spec.kind == "groups":
                limit = feature_limit(self, task.spec, "groups")
                inputs = stored(self.model, task.spec.shape, limit)
                if limit is None or len(inputs.groups) < limit:
                    check_count(task.spec, len(inputs.groups), "the file of features")
                return inputs
            loaded = load_task_data(self.registry, task, config.limit, config.offline, config.data_dir, self.samples)
            return Inputs(loaded.groups, loaded.source)


@dataclass(frozen=True)
class TaskPlan:
    """One task of a run, as this model can do it."""

    spec: TaskSpec  # the task
    metrics: list[MetricSpec]  # to compute
    all_pairs: bool  # whether every image meets every caption
    in_memory: bool  # whether inputs are prepared once and held, for methods or to be scored again
    prior: Prior | None  # where log P(t) comes from; None if it is not taken off
    enlarge: float | None  # also keep the images so many times as large, for augmentation


def plan_task(
    run: Run, spec: TaskSpec, methods: Sequence[MethodSpec] = (), settings: TTMConfig | None = None
) -> TaskPlan:
    """How a task is scored for ``methods``, TTM with ``settings``; UsageError for a metric that needs logits."""
    model, registry = run.model, run.registry
    metrics = [metric_for(registry.metrics[name], spec.shape) for name in dict.fromkeys(spec.metrics)]
    has_scores, is_encoder = isinstance(model, DualEncoder | PairScorer), isinstance(model, DualEncoder)
    answers = None if has_scores else f"model {run.config.model} answers in words; omit it"
    if why := model.not_logits or answers:
        refuse_unless_logits(metrics, why)
    adapts = any(method.needs_model for method in methods)
    prior = None
    if isinstance(model, PairScorer) and not is_encoder and not adapts:
        prior = prior_for(model, spec.noise_images)
    return TaskPlan(
        spec=spec,
        metrics=metrics,
        all_pairs=spec.is_global or any(metric.scope == "global" for metric in metrics),
        in_memory=has_scores and any(method.takes_features or method.needs_model for method in methods),
        prior=prior,
        enlarge=settings.augment_scale if adapts and settings is not None and settings.augment else None,
    )


def score(plan: TaskPlan, run: Run, inputs: Inputs) -> Scored:
    """Scores a task by the model, or takes cached scores; no metrics yet. Inputs that are held are prepared once.

    Raises DataError for images that cannot be read, TtmbenchError for unusable scores, UsageError for a model without
    scores.
    """
    model, spec, seconds, parts, clock = run.model, plan.spec, dict[str, float](), None, time.perf_counter()
    if not isinstance(model, DualEncoder | PairScorer):
        raise UsageError(f"model {run.config.model} answers in words and has no scores; only `run` can evaluate it")
    if inputs.prepared is None:
        with phase("load"):
            check_captions(model, inputs)
    cache, expected = _cache(plan, run, inputs)
    if plan.in_memory and inputs.prepared is None:
        with phase("prepare"):  # which opens all images, so that the look into the cache opens none
            prepared = prepare(model, inputs, DECODED, plan.enlarge)
            inputs.prepared = images_on_device(model, prepared) if run.config.methods else prepared
        seconds["prepare"], clock = time.perf_counter() - clock, time.perf_counter()
    with phase("score"):
        found = cache.find(expected)
        if found is not None:
            scores = Scores(found["groups"], found.get("all_pairs"))
            parts = Likelihoods(scores, found["prior"]) if "prior" in found else None
        elif isinstance(model, DualEncoder):
            # Inputs that are not held are prepared, encoded in batches, and dropped.
            scores = score_features(model, encode(model, inputs.prepared or inputs, run.sizer), plan.all_pairs)
            if inputs.prepared is None:
                seconds["prepare"], clock = inputs.waited, clock + inputs.waited
        else:
            table = _score_pairs(plan, run, model, inputs, cache)
            parts = None if plan.prior is None else likelihoods(plan.prior, inputs.captions, table, plan.all_pairs)
            scores = table.scores(plan.all_pairs) if parts is None else parts.conditional
        if parts is not None and plan.prior is not None:
            scores = parts.debiased(plan.prior.model.alpha)
        seconds["score"] = time.perf_counter() - clock
        raw, notes = usable_scores(model, scores, inputs.groups)
        raw = replace(raw, are_logits=model.not_logits is None)
        if isinstance(model, DualEncoder) and any(metric.scope == "captions" for metric in plan.metrics):
            stored = inputs.prepared.captions if isinstance(model, StoredFeatures) and inputs.prepared else None
            raw = replace(raw, caption_pairs=caption_pairs(model, inputs.groups, run.sizer, stored))
    kept, prior = (raw, None) if parts is None else (parts.conditional, parts.prior)
    arrays = {"groups": kept.groups, "all_pairs": kept.all_pairs, "prior": prior}
    stage = None
    if inputs.prepared is not None:
        stage = PreparedTask(model, inputs.prepared, run.sizer, spec.is_global, plan.all_pairs)
    return Scored(
        spec=spec,
        metrics=plan.metrics,
        data=Data.of(inputs),
        columns=[MethodScores(RAW, [raw])],
        stage=stage,
        parts=parts,
        truncated=inputs.truncated,
        notes=notes,
        from_store=cache.keep(arrays, run.config.model_name),
        seconds=seconds,
    )


def _cache(plan: TaskPlan, run: Run, inputs: Inputs) -> tuple[TaskCache, dict[str, tuple[int, ...]]]:
    """The cache of a task's scores, and what it has of them: name -> shape."""
    shape, groups = plan.spec.shape, len(inputs.groups)
    expected: dict[str, tuple[int, ...]] = {"groups": (groups, shape.images, shape.captions)}
    if plan.all_pairs:
        expected["all_pairs"] = (groups * shape.images, groups * shape.captions)
    if plan.prior is not None:
        expected["prior"] = (groups, shape.captions)
    settings = {"all_pairs": plan.all_pairs, "debiasing": None if plan.prior is None else plan.prior.declared}
    return TaskCache(run.cache, run.model, plan.spec, inputs, settings), expected


def _score_pairs(plan: TaskPlan, run: Run, model: PairScorer, inputs: Inputs, cache: TaskCache) -> PairTable:
    every = plan.all_pairs or (plan.prior is not None and plan.prior.model.prior == "test_images")
    return pair_table(model, inputs.prepared or inputs, run.sizer, every, cache.blocks)


def ask(plan: TaskPlan, run: Run, model: ChoiceModel, inputs: Inputs) -> Answered:
    """Asks a task's forced choices; errors as for `score`."""
    config, spec, style, clock = run.config, plan.spec, model.choice_style, time.perf_counter()
    groups, frames = inputs.groups, 1 if spec.video is None else spec.video.frames
    if spec.shape.true_captions > 1:
        raise UsageError(
            f"model {config.model} chooses one caption, and in task '{spec.task}' {spec.shape.true_captions} captions "
            "are true for an image; omit the task"
        )
    check_captions(model, inputs)
    given = ask_choices(model, inputs, run.sizer, config.seed, frames)
    choices, seconds = choices_of(given, len(groups), spec.shape), {"score": time.perf_counter() - clock}
    answers: list[list[Record]] = [[] for _ in groups]
    unread: list[tuple[str, str, str | None]] = []
    for reply in given:
        asked = reply.asked
        # counted from 1: which caption fits image 1, which image fits caption 2
        question = f"{'image' if asked.side == 'text' else 'caption'} {asked.subject + 1}"
        line = {"question": question, "order": list(asked.order), "prompt": asked.prompt, "answer": reply.answer}
        answers[asked.group].append({**line, "chosen": reply.chosen, "right": reply.right})
        if reply.chosen is None:
            unread.append((groups[asked.group].group_id, question, reply.answer))
    notes = unread_notes(unread)
    if config.methods:
        notes.append(
            f"model {config.model} answers in words and has no scores, so it can be neither matched nor adapted"
        )
    if config.save_scores:
        notes.append("forced choices have no scores, so --save_scores wrote none; --log_samples writes the answers")
    prompts = {} if spec.shape.more_images else {"text": text_prompt(["{caption}"] * spec.shape.captions, frames)}
    if spec.shape.images > 1:
        prompts["image"] = image_prompt("{caption}", spec.shape.images, frames)
    return Answered(
        spec=spec,
        metrics=[run.registry.metrics[name] for name in choice_values(choices)],
        data=Data.of(inputs),
        notes=notes,
        seconds=seconds,
        choices=choices,
        record={
            "asked": list(prompts),
            "orders": 1 if style.order == "random" else 2,
            "order": style.order,
            "seed": config.seed,
            "side_by_side": style.side_by_side,
            "prompts": prompts,
            "unread": [dict(zip(("group_id", "question", "answer"), row, strict=True)) for row in unread],
        },
        answers=answers,
    )


def score_share(plan: TaskPlan, run: Run, inputs: Inputs, share: slice) -> None:
    """Scores a share of the spans of a task's pairs into the cache."""
    if isinstance(run.model, PairScorer):
        check_captions(run.model, inputs)
        cache, expected = _cache(plan, run, inputs)
        cache.share = share
        if cache.find(expected) is None and cache.blocks is not None:
            with phase("score"):
                _score_pairs(plan, run, run.model, inputs, cache)


def notify_scored(run: Run, result: TaskResult, column: MethodScores | None = None) -> None:
    """Tells plugins of a finished task, or of one of its columns."""
    numbers, name = result.numbers, CHOICE if isinstance(result, Answered) else RAW
    if column is not None:
        numbers, name = summarise([column], result.metrics, (0, run.config.seed, "wilson")), column.name
    entries = as_entries(numbers)
    tracks = entries["tracks"] if finetuned(run.model) is None else supervised_tracks(entries["tracks"])
    about = {"task": result.spec.task, "results": entries["results"], "tracks": tracks}
    run.registry.notify("ttmbench_task_scored", method=name, **about)


ASKED_AGAIN = 8  # pairs, where all scores came from the cache


def undecided(scorer: PairScorer, groups: Sequence[Group]) -> tuple[Record | None, list[str]]:
    """Pairs that the model left undecided since it was last asked (None where it was not asked, or never says), a note.

    Scores from the cache or another device say nothing: some of the ``groups`` are then asked about again.
    """
    taken = scorer.take_undecided()
    if taken is not None and not taken.of and groups:
        for group in groups[:: max(1, len(groups) // ASKED_AGAIN)][:ASKED_AGAIN]:
            scorer.score_pairs([group.images[0].open()], [group.captions[0]])
        taken = scorer.take_undecided() or taken
    if taken is None or not taken.of:
        return None, []
    found = {name: value for name, value in taken._asdict().items() if value is not None}
    mass = found.get("mass", 1.0)
    is_mentioned = mass >= 0.5 or found["pairs"] > MOST_UNDECIDED * found["of"]  # as undecided, with a remedy
    return found, [] if is_mentioned else [f"P(yes) + P(no) is {mass:.2g} on average: often something else is said"]


def blind_note(result: Scored) -> str:
    """How far the captions alone give the answer, measured by a scorer that never sees the image."""
    if result.spec.shape.images > 1:
        return (
            "the scorer never sees an image: images of a group get equal scores, so text, image and group score and "
            "group match are 0 by construction"
        )
    known = {one.metric: one for one in result.numbers if one.method == RAW}
    one = known.get("text_score", known.get("group_match"))
    if one is None or one.value is None or one.chance is None:
        return "the scorer never sees an image"
    return (
        f"the scorer never sees an image, and is right in {100 * one.value:.2f} % of the groups, "
        f"{100 * (one.value - one.chance):+z.2f} points from chance: so much do the captions alone give away"
    )


def feature_limit(run: Run, spec: TaskSpec, unit: str) -> int | None:
    """How many groups or images (``unit``) of precomputed features are used; None for all. UsageError for ids."""
    config = run.config
    if config.samples is not None:
        raise UsageError(f"--samples names {unit} by id, and stored features have none; use --limit")
    limit = groups_of(config.limit, spec.group.n_groups)
    if limit is None and config.limit is not None:
        raise UsageError(
            f"--limit {config.limit}: task '{spec.task}' does not state its number of {unit}, which a fraction needs"
        )
    return limit


def data_now(run: Run, task: TaskFile) -> DataNow | None:
    """Digests of a task's data as they are now, without calling the model; None, with a warning, if out of reach."""
    model, config = run.model, run.config
    try:
        if isinstance(model, StoredFeatures) and task.spec.kind != "groups":
            limit = groups_of(config.limit, task.spec.group.n_groups)
            return DataNow(stored_pool(model, task.spec, limit)[-1])
        inputs = run.load(task)
        return DataNow(inputs.digest(), None if isinstance(model, StoredFeatures) else groups_digest(inputs.groups))
    except DataError as error:
        warn(f"the numbers of task {task.spec.task} stay, but its data cannot be looked at: {error}")
        return None


SCORING_VERSION = 4
"""Version of this package's own part in a score. Raise it whenever a change can move a score: see CONTRIBUTING.md."""

PACKAGES = ("torch", "transformers", "tokenizers", "open_clip_torch", "peft", "pillow", "torchvision", "av")
"""Packages that tokenise, compute, decode or resize; another version of one may give other scores."""
SCORES, ENDING = "scores", ".safetensors"
Shapes = Mapping[str, tuple[int, ...] | None]
"""Name of an array -> its shape; None for any."""


def model_description(model: Model, as_loaded: bool = False) -> Record | str:
    """What a model's scores depend on: what it states, with secrets, its weights as they are, its code; for JSON.

    Else why they are not cached, for the user; empty for models behind servers, which store their answers themselves,
    for those that refuse, and for stored features. ``as_loaded``: no weight has changed since they were loaded.
    """
    kind, declared = type(model), model.fingerprint()
    refuses = isinstance(model, PairScorer) and model.refusals_are_wrong is not None
    if refuses or isinstance(model, StoredFeatures) or model.pairs_at_once is not None or overrides(model, "usage"):
        return ""
    code = digests_of_modules(modules_of(model))
    if not declared:
        return f"{kind.__name__} has no fingerprint, so its scores are not cached"
    if None in code.values():
        return f"the source of {kind.__name__} is in no file, so its scores are not cached"
    description: Record = {
        "adapter": f"{kind.__module__}:{kind.__qualname__}",
        "fingerprint": json.loads(json.dumps(dict(declared) if isinstance(declared, Mapping) else str(declared))),
        "code": {name: digest for name, digest in code.items() if name != OWN},
    }
    is_own = isinstance(model, torch.nn.Module) or overrides(model, "state_dict")
    if is_own or (model.trainable and model.torch_module is not None):
        known = model.state_sha256 if as_loaded else None
        description["state_sha256"] = known or tensors_digest(model.state_dict())
    return description


@dataclass
class ScoreCache:
    """The cache of one run, in a folder that need not exist; warns about a problem and goes on without it."""

    folder: Path
    exact: Record | None = None  # what bits depend on beside model, data and settings, if they are to be repeated
    as_loaded: Model | None = None  # a model that the run has loaded itself and not trained yet
    is_writable: bool = True  # until a file could not be written
    described: tuple[Model | None, Record | str] = (None, "")  # the last model


class TaskCache:
    """The cache of one task of a run: recognises the data, and stores what was computed of them.

    Without a cache it finds and stores nothing. It is a `ttmbench.scoring.batches.BlockStore`, too. ``settings`` is
    what else the arrays depend on, for JSON: all pairs, debiasing, classes, candidates; ``what`` is cached, for users.
    ``key`` is a digest of all that the arrays depend on beside the data, with the library for JPEG that Pillow uses.
    """

    def __init__(
        self,
        cache: ScoreCache | None,
        model: Model,
        spec: TaskSpec,
        inputs: Inputs,
        settings: Record,
        what: str = "raw scores",
    ) -> None:
        self._cache, self.key, self._inputs, self.share = cache, "", inputs, slice(None)
        self._task, self._what, self._blind = spec.task, what, isinstance(model, PairScorer) and model.blind
        self._date: str | None = None  # of the scores that were found
        self._hardware: list[Record] = []  # of the runs that computed what was found
        self._found: set[int] = set()  # blocks of an interrupted run that were used
        if cache is None:
            return
        if cache.described[0] is not model:
            cache.described = model, model_description(model, model is cache.as_loaded)
        described = cache.described[1]
        if isinstance(described, str):
            self._cache = None
            if described:
                warn(described)
            return
        versions = {name: installed_version(name) for name in PACKAGES} | {"jpeg": features.version("libjpeg_turbo")}
        asked = {"task": [spec.task, spec.version, spec.group.shape], "settings": settings, "exact": cache.exact}
        code = {"ttmbench": [__version__, SCORING_VERSION], "packages": versions, "matmul": matmul_precision()}
        self.key = json_digest({"model": described, **asked, **code})

    @cached_property
    def _folder(self) -> Path:
        """Of these data; all images are taken in that were not opened yet."""
        assert self._cache is not None, "nothing is read or written without"
        return self._cache.folder / SCORES / self.key[:32] / self._inputs.digest()

    @property
    def blocks(self) -> BlockStore | None:
        """Where finished blocks go; blind scorers would lose what they remember of captions."""
        return None if self._blind or self._cache is None else self

    def find(self, expected: Shapes) -> dict[str, np.ndarray] | None:
        """Arrays of an earlier run on these data, float32 and finite; opens no image if there are none on any data."""
        if self._cache is None or not (self._cache.folder / SCORES / self.key[:32]).is_dir():
            return None
        arrays, about = self._read(SCORES, expected) or (None, {})
        if arrays is not None:
            self._date = str(about["date"])
            with suppress(OSError):
                (self._folder / f"{SCORES}{ENDING}").touch()  # so that the least recently used go first
        return arrays

    def keep(self, arrays: Mapping[str, np.ndarray | None], model_name: str) -> Record | None:
        """Stores float32 arrays that are new; returns what an earlier run stored, and on which hardware, or None."""
        if self._cache is None:
            return None
        known: Record = {"key": self.key, "hardware": self._hardware}
        if self._date is not None:
            warn(f"{self._what} come from the cache in {self._cache.folder}; --use_cache off computes them again")
            return {**known, "date": self._date}
        made = {name: array for name, array in arrays.items() if array is not None}
        if self._write(SCORES, made, {"model_name": model_name}):
            for path in self._folder.glob(f"block-*{ENDING}"):
                path.unlink(missing_ok=True)
        if not self._found:
            return None
        warn(f"{self._task}: {len(self._found)} blocks of scores were cached by an interrupted run")
        return {**known, "blocks": len(self._found)}

    def get(self, block: int) -> np.ndarray | None:
        """A finished block, float32 [pairs]."""
        read = self._read(f"block-{block:06d}", {"values": None})
        if read is None:
            return None
        self._found.add(block)
        return read[0]["values"]

    def put(self, block: int, values: np.ndarray) -> None:
        """Stores a finished block."""
        self._found.discard(block)
        self._write(f"block-{block:06d}", {"values": values}, {})

    def _read(self, name: str, expected: Shapes) -> tuple[dict[str, np.ndarray], Record] | None:
        """A file's arrays and header; None if it does not exist, or (with a warning) if it cannot be used."""
        path, why = self._folder / f"{name}{ENDING}", "it holds something else"
        try:
            tensors, about = load_sealed(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, Unreadable) as error:
            why = str(error)
        else:
            arrays = {array: np.array(tensor.numpy()) for array, tensor in tensors.items()}
            # Its whole key and name are stored in the file, so that a moved one is not used.
            if about.get("place") == f"{self.key}/{path.parent.name}/{path.name}" and arrays.keys() == expected.keys():
                shapes = {array: expected[array] or values.shape for array, values in arrays.items()}
                if all(
                    values.dtype == np.float32 and values.shape == shapes[array] and np.isfinite(values).all()
                    for array, values in arrays.items()
                ):
                    self._hardware += [computer for computer in about["hardware"] if computer not in self._hardware]
                    return arrays, about
        warn(f"{path} cannot be used ({why}) and is computed again")
        return None

    def _write(self, name: str, arrays: Mapping[str, np.ndarray], more: Record) -> bool:
        """Writes a file and returns whether that worked; warns the first time that it does not."""
        cache, this, path = self._cache, hardware(), self._folder / f"{name}{ENDING}"
        if cache is None or not cache.is_writable:
            return False
        about = {
            "place": f"{self.key}/{path.parent.name}/{path.name}",
            "task": self._task,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "hardware": [*(host for host in self._hardware if host != this and name == SCORES), this],
        }
        tensors = {array: torch.from_numpy(np.ascontiguousarray(values)) for array, values in arrays.items()}
        # The digest finds half a file, so there is no need to wait for the disk.
        if (why := replace_sealed(path, tensors, about | more, to_disk=False)) is not None:
            cache.is_writable = False
            warn(f"the cache in {cache.folder} cannot be written to ({why}); nothing is cached")
        return cache.is_writable
