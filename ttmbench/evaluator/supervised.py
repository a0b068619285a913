"""``ttmbench finetune``: writes a folder of finetuned weights, which every other command takes, and their record."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import filelock
import numpy as np

from ttmbench._util import machine
from ttmbench._util.console import warn
from ttmbench._util.file_io import json_digest, take_lock, tensors_digest
from ttmbench._util.third_party import foreign_errors
from ttmbench._version import __version__
from ttmbench.config import RunConfig, TTMConfig, is_address, refuse_address
from ttmbench.data.loader import load_task_data
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import DataError, DivergedError, TtmbenchError, UsageError
from ttmbench.evaluator.adapters import (
    KIND,
    finetuned,
    make_adapter,
    model_info,
    trained_on,
    write_record,
)
from ttmbench.evaluator.evaluate import Chosen, read_samples, tasks_named
from ttmbench.methods.finetuned import PRESET_NOTES, PRESETS, course
from ttmbench.methods.runner import Left, MethodRun, TaskCheckpoint
from ttmbench.methods.settings import checked_settings, recorded
from ttmbench.model import DualEncoder, Model, PairScorer, StoredFeatures
from ttmbench.plugins.registry import Registry, build_registry
from ttmbench.results.document import SCHEMA_VERSION
from ttmbench.scoring.batches import BatchSizer
from ttmbench.scoring.dual_encoder import PreparedTask
from ttmbench.scoring.inputs import Inputs, images_on_device, prepare
from ttmbench.types import Group, Record, Scores

STATE, LOCK = ".finetune", "lock"
FINETUNED = "finetuned"  # the method


class Finetuned(NamedTuple):
    """The result of a finetuning."""

    folder: Path  # of the weights and the record
    record: Record
    was_done: bool = False  # whether an earlier run of the same command had finished it


def finetune_model(
    config: RunConfig, started: datetime, command: Sequence[str], *, preset: str | None, changes: Mapping[str, object]
) -> Finetuned:
    """Finetunes a model on the labelled groups of tasks and writes it to ``config.output_path``.

    The same command again resumes where an earlier one stopped, and does nothing if it was done. ``changes`` are
    hyperparameters that override those of the ``preset``; when it ``started`` and the ``command`` are for the record.
    UsageError if the model cannot be finetuned or saved, the tasks do not go together, or the folder is another's;
    DataError for data or weights out of reach; DivergedError if the loss is NaN or infinite.
    """
    if config.output_path is None or config.output_path.endswith(".json"):
        raise UsageError("finetune writes a folder of weights, so it needs --output_path DIR")
    if "," in config.device:
        raise UsageError(f"--device {config.device} names several devices, and only `run` divides its work; name one")
    if is_address(config.output_path):
        refuse_address("--output_path", config.output_path)
    folder = Path(config.output_path)
    with config.arithmetic(), _locked(folder):
        before = finetuned(folder)
        if before is None and any(inside.name != STATE for inside in folder.iterdir()):
            raise UsageError(f"--output_path {folder} is not empty and has no earlier fine-tuning; choose a new folder")
        registry = build_registry(config.include_path)
        tasks = tasks_named(registry, config, config.tasks)
        _check_tasks(tasks)
        model = make_adapter(registry, config.model, config.model_args, config)
        adapter = _check_model(config, model)
        loss = "contrastive" if isinstance(adapter, DualEncoder) else "matching"
        settings, usual = (settings_of(registry, preset, loss, given) for given in (changes, {}))
        groups, about = _load(registry, config, tasks)
        inputs = Inputs(groups)
        prepared, data = prepare(adapter, inputs), inputs.digest()
        content = {"run": Chosen(registry, tasks, {}, {}).key(config).sha256, "settings": settings}
        content |= {"model": model_info(model)["fingerprint"], "data": data}
        key = json_digest(content, default=str)
        if before is not None and before.get("key") != key:
            raise UsageError(
                f"{folder} holds another finetuning ({', '.join(entry['task'] for entry in before['tasks'])}, status "
                f"{before.get('status')}): other settings, weights, data, packages or source code; name a new folder"
            )
        if before is not None and before.get("status") == "done":
            return Finetuned(folder, before, was_done=True)
        m, k = len(groups[0].images), len(groups[0].captions)
        pairs = len(groups) * (min(m, k) if loss == "contrastive" else m * k)
        training = {"loss": loss, "pairs": pairs, "hyperparameters": settings, "preset": preset}
        record = _record(config, registry, model, about, training)
        record |= {"date": started.timestamp(), "command": " ".join(command), "data_sha256": data, "key": key}
        if any((folder / STATE).rglob("*.safetensors")):
            warn(f"resuming {folder}")
        write_record(folder, record)
        sizer = BatchSizer.for_run(config.batch_size, adapter.device, config.deterministic)
        method = MethodRun(
            raw=Scores(np.zeros((0, m, k), np.float32)),  # it trains on all groups, and scores none
            shape=next(iter(tasks.values())).spec.shape,
            metrics=[],
            seeds=[config.seed],
            registry=registry,
            settings=TTMConfig(),
            stage=PreparedTask(adapter, images_on_device(adapter, prepared), sizer, is_global=False, all_pairs=False),
            checkpoint=TaskCheckpoint(folder / STATE, data, key),
            restores=False,
        )

        def save(seed: int, about: Record) -> Left:
            try:
                adapter.save(folder)
            except OSError as error:
                raise TtmbenchError(f"the model cannot be written to {folder}: {error.strerror or error}") from None
            return {"weights": ({}, {"sha256": tensors_digest(adapter.state_dict())})}

        spec = registry.methods[FINETUNED]
        with foreign_errors(f"finetuning of model '{config.model}'"):
            try:
                trained = method.seed_run(spec, settings, config.seed, after=save)
            except DivergedError as error:
                error.option, error.usual = "--finetune_args", usual["lr"]
                raise
        rates = [course(settings["schedule"], len(trained.losses), epoch) for epoch in range(len(trained.losses))]
        epochs = [
            {"epoch": epoch, "loss": loss, "learning_rate": settings["lr"] * rate}
            for epoch, (loss, rate) in enumerate(zip(trained.losses, rates, strict=True), start=1)
        ]
        record |= {"status": "done", "epochs": epochs, "weights_sha256": trained.left["weights"][1]["sha256"]}
        write_record(folder, record)
        return Finetuned(folder, record)


def settings_of(registry: Registry, preset: str | None, loss: str, changes: Mapping[str, object]) -> Record:
    """The package's defaults, changed by a preset and by ``--finetune_args``, as the record has them.

    UsageError for an unknown preset, an unknown setting, or a value out of range.
    """
    if preset is not None and preset not in PRESETS:
        raise UsageError(f"unknown preset '{preset}' (--preset); known: {', '.join(PRESETS)}")
    given = {**({} if preset is None else PRESETS[preset][loss]), **changes}
    settings = recorded(checked_settings(registry.methods[FINETUNED], given, option="--finetune_args "))
    return {**settings, "betas": [*settings["betas"]]}


def _record(config: RunConfig, registry: Registry, model: Model, tasks: list[Record], training: Record) -> Record:
    earlier = finetuned(model)
    seen = [*(trained_on(registry, config.model, config.model_args, model) or ())]
    seen += [name for task in tasks for name in task.pop("images_from")]
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "status": "running",
        "track": registry.methods[FINETUNED].track,
        "tasks": [*([] if earlier is None else earlier["tasks"]), *tasks],
        "trained_on": list(dict.fromkeys(seen)) or None,
        **training,
        "notes": [*model.notes(), *([] if training["preset"] is None else [PRESET_NOTES[training["preset"]]])],
        "seed": config.seed,
        "base": {
            "model": config.model,
            "model_args": dict(config.model_args),
            "model_name": config.model_name,
            **model_info(model),
        },
        "epochs": [],
        "config": config.model_dump(mode="json"),
        "deterministic": config.deterministic,
        "ttmbench": __version__,
        "git_hash": machine.git_hash(),
        "packages": machine.packages(),
        "hardware": machine.hardware(),
    }


def _check_tasks(tasks: Mapping[str, TaskFile]) -> None:
    shapes = {name: task.spec.shape for name, task in tasks.items()}
    first = next(iter(shapes))
    for name, shape in shapes.items():
        if tasks[name].spec.video is not None:
            raise UsageError(f"the items of task '{name}' are videos; finetune on a task with images")
        if tasks[name].spec.is_global:
            raise UsageError(f"task '{name}' is matched globally; finetune on a task with groups")
        if shape != shapes[first]:
            raise UsageError(
                f"groups of task '{first}' are {shapes[first]} and of '{name}' {shape}; finetune on tasks of one shape"
            )


def _check_model(config: RunConfig, model: Model) -> DualEncoder | PairScorer:
    if isinstance(model, StoredFeatures):
        raise UsageError(f"model {config.model} reads precomputed embeddings of one task and cannot be finetuned")
    if not (model.trainable and isinstance(model, DualEncoder | PairScorer)):
        raise UsageError(f"model {config.model} cannot be finetuned (it has no matching_loss or pair_loss)")
    if not model.savable:
        raise UsageError(f"model {config.model} cannot be saved (it has no save), so it is not finetuned")
    return model


def _load(registry: Registry, config: RunConfig, tasks: Mapping[str, TaskFile]) -> tuple[list[Group], list[Record]]:
    """The groups of all tasks, with task names in their images' names, and each task's entry in the record."""
    samples = read_samples(config.samples) if config.samples else None
    groups: list[Group] = []
    about = []
    for name, task in tasks.items():
        loaded = load_task_data(registry, task, config.limit, config.offline, config.data_dir, samples)
        if not loaded.groups:
            raise DataError(f"task '{name}' has no groups to finetune on")
        for group in loaded.groups:
            images = tuple(replace(image, name=f"{name}/{image.name}") for image in group.images)
            groups.append(replace(group, images=images))
        spec = task.spec
        about.append(
            {
                "task": name,
                "version": spec.version,
                "groups": len(loaded.groups),
                "shape": list(spec.group.shape or ()),
                "source": loaded.source,
                "license": spec.license,
                "images_from": spec.images_from,
            }
        )
    return groups, about


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Makes the folder if it does not exist, and locks it against other writers."""
    state = folder / STATE
    try:
        lock = take_lock(state / LOCK)
    except filelock.Timeout:
        raise UsageError(f"another finetuning is writing to {folder}; name another --output_path") from None
    except OSError as error:
        raise UsageError(f"--output_path {folder} cannot be written to: {error.strerror or error}") from None
    try:
        yield
    finally:
        with suppress(DataError):
            if (finetuned(folder) or {}).get("status") != "running":
                shutil.rmtree(state, ignore_errors=True)
        lock.release()
        with suppress(OSError):
            folder.rmdir()  # made for nothing, if it is empty
