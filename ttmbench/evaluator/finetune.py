"""``ttmbench finetune``: from options to a folder of weights that every other command takes, and their record."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import filelock

from ttmbench._util import digests
from ttmbench._util.console import progress_bar, warn
from ttmbench._util.digests import SealError, load_sealed, save_sealed, separated, tensors_digest
from ttmbench._util.files import take_lock, write_atomically
from ttmbench._util.option_values import read_place
from ttmbench._util.redact import redact, redact_values, scrub_values, secrets_of
from ttmbench._util.third_party_errors import foreign_errors
from ttmbench._version import __version__
from ttmbench.config import RunConfig
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import DataError, DivergedError, TtmbenchError, UsageError
from ttmbench.evaluator.adapters import (
    KIND,
    finetuned,
    make_adapter,
    model_info,
    model_notes,
    read_record,
    trained_on,
    write_record,
)
from ttmbench.evaluator.determinism import deterministic, naming_what_cannot
from ttmbench.evaluator.run_key import RunKey, code_of
from ttmbench.evaluator.score_task import load_data
from ttmbench.evaluator.settings import cache_of, check_config, model_settings, read_samples, tasks_of
from ttmbench.plugins.registry import Registry, build_registry
from ttmbench.protocols import Savable
from ttmbench.results.files import SCHEMA_VERSION
from ttmbench.scoring.batches import BatchSizer
from ttmbench.scoring.capabilities import Capabilities, Trained
from ttmbench.scoring.inputs import DECODED
from ttmbench.scoring.prepare import prepare
from ttmbench.ttm.checkpoint import training_parts, training_tensors
from ttmbench.ttm.supervised import (
    PRESET_NOTES,
    EpochRecord,
    FinetuneConfig,
    FinetuneState,
    loss_of,
    settings_of,
    train,
    true_pairs,
)
from ttmbench.types import Group

STATE, TRAINING, LOCK = ".finetune", "training.safetensors", "lock"
SHARE_OF_SAVING = 0.1  # of the time, at most, goes into writing down where training stands


@dataclass(frozen=True)
class Finetuned:
    """What a finetuning left.

    Attributes:
        folder: weights and record.
        record: the record.
        was_done: an earlier run of the same command had finished it.
    """

    folder: Path
    record: dict[str, Any]
    was_done: bool = False


def finetune_model(
    config: RunConfig,
    started: datetime,
    command: Sequence[str] = (),
    *,
    preset: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Finetuned:
    """Finetunes a model on the labelled groups of tasks and writes it where ``config.output_path`` says.

    The same command again goes on where an earlier one stopped, and does nothing where it was done.

    Args:
        config: model, tasks, device, seed and the rest of a run's settings.
        started: when it began, for the record.
        command: the command line, for the record.
        preset: name of a preset.
        changes: hyperparameters that win over it.

    Returns:
        The folder and its record.

    Raises:
        UsageError: the model cannot be finetuned or saved, the tasks do not go together, or the folder is another's.
        DataError: data or weights out of reach.
        DivergedError: the loss is not a finite number.
    """
    check_config(config)
    if config.output_path is None or config.output_path.endswith(".json"):
        raise UsageError("finetune writes a folder of weights, so it needs --output_path DIR")
    folder = Path(read_place("--output_path", config.output_path))
    bits = deterministic(config.seed) if config.deterministic else nullcontext()
    with bits, naming_what_cannot(), _held(folder):
        return _Work(config, folder, started, command, preset, changes or {}).do()


@dataclass
class _Work:
    """A finetuning under way."""

    config: RunConfig
    folder: Path
    started: datetime
    command: Sequence[str]
    preset: str | None
    changes: Mapping[str, Any]
    saving: float = 0.0
    saved: float = field(default_factory=time.perf_counter)

    def do(self) -> Finetuned:
        config = self.config
        before = read_record(self.folder)
        if before is None and any(inside.name != STATE for inside in self.folder.iterdir()):
            raise UsageError(f"--output_path {self.folder} is not empty and holds no finetuning; name a new folder")
        registry = build_registry(config.include_path)
        tasks = tasks_of(registry, config)
        _check_tasks(tasks)
        model = Capabilities(make_adapter(registry, config.model, config.model_args, model_settings(config)))
        adapter, savable = _check_model(config, model)
        loss = loss_of(adapter)
        settings = settings_of(self.preset, loss, self.changes)
        groups, about = _load(registry, config, tasks)
        cache = cache_of(config)
        prepared, data = prepare(adapter, groups, DECODED, kept=None if cache is None else cache.prepared(adapter))
        code = code_of(registry, config, list(tasks.values()), {})
        run = RunKey.of(config, tasks, {}, {}, code).sha256
        key = self._key(run, settings, model, data)
        if before is not None and before.get("key") != key:
            raise UsageError(
                f"{self.folder} holds another finetuning ({', '.join(one['task'] for one in before['tasks'])}, status "
                f"{before.get('status')}): other settings, weights, data, packages or source code; name a new folder"
            )
        if before is not None and before.get("status") == "done":
            return Finetuned(self.folder, before, was_done=True)
        pairs = len(true_pairs(prepared, loss).images)
        record = {**self._record(registry, model, about, settings, loss, pairs), "data_sha256": data, "key": key}
        state = self._resumed(key)
        if state is not None:
            warn(f"going on with {self.folder}: {len(state.epochs)} of {settings.epochs} epochs done")
        write_record(self.folder, record)
        sizer = BatchSizer.for_run(config.batch_size, adapter, config.deterministic)
        with foreign_errors(f"finetuning of model '{config.model}'"):
            with progress_bar(settings.epochs, "finetuning", "epochs") as bar:
                bar.update(0 if state is None else len(state.epochs))
                try:
                    for now in train(adapter, prepared, settings, config.seed, resume=state, part_size=sizer):
                        self._keep(now, key, is_last=len(now.epochs) == settings.epochs)
                        bar.set_postfix_str(f"loss {now.epochs[-1].loss:.3f}")
                        bar.update()
                        state = now
                except DivergedError as error:
                    error.usual = settings_of(self.preset, loss, {}).lr
                    raise
            assert state is not None, "there is at least one epoch"
            self._save(savable)
            epochs, digest = [asdict(one) for one in state.epochs], tensors_digest(adapter.state_dict())
            done = {**record, "status": "done", "epochs": epochs, "weights_sha256": digest}
            write_record(self.folder, done)
            (self.folder / STATE / TRAINING).unlink(missing_ok=True)
        return Finetuned(self.folder, done)

    def _key(self, run: str, settings: FinetuneConfig, model: Capabilities, data: str) -> str:
        """What makes two finetunings the same: settings, code, weights and data."""
        content = {
            "run": run,
            "settings": settings.model_dump(mode="json"),
            "model": model_info(model)["fingerprint"],
            "data": data,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()

    def _record(
        self,
        registry: Registry,
        model: Capabilities,
        about: list[dict[str, Any]],
        settings: FinetuneConfig,
        loss: str,
        pairs: int,
    ) -> dict[str, Any]:
        config, adapter = self.config, model.adapter
        earlier = finetuned(adapter)
        seen = [*(trained_on(registry, config.model, config.model_args, adapter) or ())]
        seen += [name for one in about for name in one.pop("images_from")]
        record = {
            "schema_version": SCHEMA_VERSION,
            "kind": KIND,
            "status": "running",
            "track": "supervised",
            "tasks": [*([] if earlier is None else earlier["tasks"]), *about],
            "trained_on": list(dict.fromkeys(seen)) or None,
            "loss": loss,
            "pairs": pairs,
            "hyperparameters": settings.model_dump(mode="json"),
            "preset": self.preset,
            "notes": [*model_notes(adapter), *([] if self.preset is None else [PRESET_NOTES[self.preset]])],
            "seed": config.seed,
            "base": {
                "model": config.model,
                "model_args": redact_values(dict(config.model_args)),
                "model_name": config.model_name,
                **model_info(model),
            },
            "epochs": [],
            "config": redact_values(config.model_dump(mode="json")),
            "date": self.started.timestamp(),
            "deterministic": config.deterministic,
            "ttmbench": __version__,
            "git_hash": digests.git_hash(),
            "packages": digests.packages(),
            "hardware": digests.hardware(),
            "command": redact(self.command),
        }
        scrubbed: dict[str, Any] = scrub_values(record, secrets_of(config.model_args))
        return scrubbed

    def _resumed(self, key: str) -> FinetuneState | None:
        """Where an earlier run of the same command stopped; None for the beginning."""
        path = self.folder / STATE / TRAINING
        try:
            tensors, about = load_sealed(path)
        except FileNotFoundError:
            return None
        except (SealError, OSError) as error:
            warn(f"{path} cannot be gone on from ({error}); finetuning starts again")
            return None
        if about.get("key") != key:
            return None
        model, optimizer, random = training_parts(tensors)
        return FinetuneState(tuple(EpochRecord(**one) for one in about["epochs"]), model, optimizer, random)

    def _keep(self, state: FinetuneState, key: str, is_last: bool) -> None:
        """Writes down where training stands, as often as that costs little."""
        now = time.perf_counter()
        if not is_last and now - self.saved < self.saving / SHARE_OF_SAVING:
            return
        tensors = separated(training_tensors(state.model, state.optimizer, state.random))
        about = {"key": key, "epochs": [asdict(epoch) for epoch in state.epochs]}
        try:
            write_atomically(self.folder / STATE / TRAINING, lambda path: save_sealed(path, tensors, about))
        except (OSError, TtmbenchError) as error:
            warn(f"{error}; finetuning goes on, but if it is stopped it continues from before this")
        self.saved = time.perf_counter()
        self.saving = self.saved - now

    def _save(self, adapter: Savable) -> None:
        try:
            adapter.save_pretrained(self.folder)
        except OSError as error:
            raise TtmbenchError(f"the model cannot be written to {self.folder}: {error.strerror or error}") from None


def _check_tasks(tasks: Mapping[str, TaskFile]) -> None:
    shapes = {name: task.spec.shape for name, task in tasks.items()}
    first = next(iter(shapes))
    for name, shape in shapes.items():
        if tasks[name].spec.is_global:
            raise UsageError(f"task '{name}' is matched globally; finetune on a task with groups")
        if shape != shapes[first]:
            raise UsageError(
                f"groups of task '{first}' are {shapes[first]} and of '{name}' {shape}; finetune on tasks of one shape"
            )


def _check_model(config: RunConfig, model: Capabilities) -> tuple[Trained, Savable]:
    if model.stored_features is not None:
        raise UsageError(f"model {config.model} reads stored features of one task, so it cannot be finetuned on others")
    if model.trained is None:
        raise UsageError(f"model {config.model} cannot be finetuned (it has no matching_loss or pair_loss)")
    if model.savable is None:
        raise UsageError(f"model {config.model} cannot be saved (it has no save_pretrained), so it is not finetuned")
    return model.trained, model.savable


def _load(
    registry: Registry, config: RunConfig, tasks: Mapping[str, TaskFile]
) -> tuple[list[Group], list[dict[str, Any]]]:
    """The groups of all tasks, whose images go by the names of their tasks too, and what the record says of each."""
    samples = read_samples(config.samples) if config.samples else None
    groups: list[Group] = []
    about = []
    for name, task in tasks.items():
        loaded = load_data(registry, config, task, samples)
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
def _held(folder: Path) -> Iterator[None]:
    """The folder, made if need be and held against other writers."""
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
        if not (state / TRAINING).exists():
            shutil.rmtree(state, ignore_errors=True)
        lock.release()
        with suppress(OSError):
            folder.rmdir()  # made for nothing, if it is empty
