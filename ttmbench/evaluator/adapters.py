"""Builds the adapter of a model's name, or of a model that a program has loaded, and reports what it states of itself.

A folder of weights that `ttmbench finetune` wrote holds a record, by which later runs know that their model is
supervised.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ttmbench._util.file_io import Unreadable, json_digest, read_json, to_json, write_atomically
from ttmbench._util.third_party import foreign_errors
from ttmbench.config import RunConfig
from ttmbench.errors import DataError, UsageError
from ttmbench.model import ChoiceModel, DualEncoder, Model, PairScorer, StoredFeatures, as_model
from ttmbench.plugins.registry import Registry, load_target, model_arguments, name_what_fits
from ttmbench.types import Record

RECORD = "ttmbench_finetune.json"
KIND = "finetuning"


def make_adapter(
    registry: Registry, name: str, model_args: Mapping[str, object], config: RunConfig, first_device: bool = False
) -> Model:
    """Imports and calls a registered adapter; device (maybe the first of several), dtype and the like as it takes them.

    UsageError for an unknown model or argument and for an object that cannot score; DataError for unreachable weights.
    """
    spec = registry.adapters[name]
    factory = load_target(spec.target, spec.needs)
    whose = f"model '{name}' of plugin '{registry.adapters.plugins[name]}'"
    with foreign_errors(whose):
        signature = inspect.signature(factory)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    settings = {key: getattr(config, key) for key in ("device", "dtype", "offline", "trust_remote_code")}
    if first_device:
        settings["device"] = config.device.partition(",")[0]
    passed = {key: value for key, value in settings.items() if key in signature.parameters or takes_any}
    if config.compile:
        if "compile" not in signature.parameters and not takes_any:
            raise UsageError(f"model '{name}' cannot be compiled; run without --compile")
        passed["compile"] = True
    given = passed | model_arguments(spec, model_args)
    try:
        signature.bind(**given)
    except TypeError as error:
        known = ", ".join(key for key in signature.parameters if key not in (*settings, "compile")) or "none"
        raise UsageError(f"model '{name}': {error} (--model_args); it has: {known}") from None
    try:
        with foreign_errors(whose):
            adapter = factory(**given)
    except (UsageError, DataError) as error:
        name_what_fits(error, spec, model_args, config.tasks, config.offline)
        raise
    return checked(f"model '{name}'", adapter)


def needs_data(registry: Registry, name: str) -> bool:
    """Whether a model looks at images, as the type says that its factory returns; not known of others."""
    spec = registry.adapters[name]
    factory = inspect.unwrap(load_target(spec.target, spec.needs))
    try:
        kind = factory if isinstance(factory, type) else get_type_hints(factory).get("return")
    except Exception:  # annotations are text, which nothing else reads
        return False
    kinds = get_args(kind) or (kind,)
    return all(
        isinstance(one, type) and issubclass(one, Model) and not issubclass(one, StoredFeatures) for one in kinds
    )


def checked(what: str, adapter: object) -> Model:
    """The model; UsageError, which ``what`` begins, for what can neither score nor answer, or has no base class."""
    if isinstance(adapter, type):
        raise UsageError(f"{what}: {adapter.__name__} is a class; give an object of it: {adapter.__name__}(...)")
    try:
        return as_model(adapter)
    except UsageError as error:
        raise UsageError(f"{what}: {_instead_of(adapter) or error}") from None


def _instead_of(model: object) -> str | None:
    """What to do with a model or a part of one that a library made; None for anything else."""
    name, path = type(model).__name__, getattr(model, "name_or_path", "") or "FOLDER"
    kind = "hf" if hasattr(model, "get_image_features") else "vqascore"
    ways = {
        "transformers": f"simple_evaluate(model, ..., processor=AutoProcessor.from_pretrained('{path}')), or save both "
        f"to a folder and give simple_evaluate('{kind}', ..., model_args={{'pretrained': '{path}'}})",
        "open_clip": "simple_evaluate((model, preprocess, tokenizer), ...)",
        "sentence_transformers": "an adapter: docs/add-an-adapter.md shows how to wrap a model",
    }
    how = ways.get(type(model).__module__.partition(".")[0])
    return how and f"{name} is no adapter, since it comes without its preprocessing; give {how}"


def name_of_adapter(adapter: Model, written: bool) -> str:
    """The name of a model given as an object: its ``model_name``, else its class and 8 digits of its fingerprint.

    UsageError where results are ``written`` and nothing distinguishes it from another checkpoint of its class.
    """
    kind, name = type(adapter).__name__, adapter.model_name
    if name is not None and name.strip():
        return name
    declared = model_info(adapter)["fingerprint"]
    if declared:
        return f"{kind}-{json_digest(declared)[:8]}"
    if written:
        raise UsageError(
            f"{kind} states no fingerprint, so its results would be taken for those of any other {kind}; give "
            "simple_evaluate a model_name, or the adapter a fingerprint() that distinguishes checkpoints"
        )
    return kind


def model_info(model: Model) -> Record:
    """What a model states about itself, for the record."""
    with foreign_errors(f"fingerprint() of {type(model).__name__}"):
        declared = model.fingerprint()
        shown = dict(declared) if isinstance(declared, Mapping) else {"fingerprint": str(declared)} if declared else {}
        shown = json.loads(json.dumps(shown, allow_nan=False))  # keys that are numbers are texts in files
    kinds = [base.__name__ for base in (DualEncoder, PairScorer, ChoiceModel) if isinstance(model, base)]
    info: Record = {"capabilities": [*kinds, *(["trainable"] if model.trainable else [])], "fingerprint": shown}
    return info if model.files is None else {**info, "source": model.files.provenance()}


def trained_on(registry: Registry, model: str, model_args: Mapping[str, object], adapter: Model) -> list[str] | None:
    """The image collections that a model was trained on; None if unknown, UsageError for a wrong attribute.

    The record of a finetuning wins over the adapter's attribute ``trained_on``, and that over the registered card.
    """
    record = finetuned(adapter)
    if record is not None:
        return record.get("trained_on") or None  # an empty list is what older versions wrote for unknown
    declared = adapter.trained_on
    if declared is not None:
        if isinstance(declared, str) or not all(isinstance(name, str) for name in declared):
            raise UsageError(f"trained_on of {type(adapter).__name__} must be a list of names, got {declared!r:.80}")
        return list(declared)
    card = registry.adapters[model].card if model in registry.adapters else None
    if card is None or card.trained_on is None:
        return None
    own = {"model", "path", "weights", *(() if card.page else ("pretrained",))}  # which names the file of a page
    return None if own & set(model_args) else list(card.trained_on)


def remarks(model: Model) -> list[str]:
    """What is printed when a model was loaded: its notes, and a line if its weights could hold more than tensors."""
    files = model.files
    if files is None or not files.are_pickles:
        return model.notes()
    return [
        f"{files.name}: {files.weights[0]} is a pickle; loaded with weights_only=True, which runs no code",
        *model.notes(),
    ]


def finetuned(place: Model | Path) -> Record | None:
    """The record of a folder, or of that of a model's weights; None if there is none, DataError if it is damaged."""
    folder = place if isinstance(place, Path) else None if place.files is None else place.files.folder
    if folder is None or not (folder / RECORD).is_file():
        return None
    path = folder / RECORD
    try:
        content = dict(read_json(path))
        names = [*(task["task"] for task in content["tasks"]), *(content.get("trained_on") or ())]
        if content["kind"] == KIND and all(isinstance(name, str) for name in names):
            return content
        why = "is not a fine-tuning record"
    except (Unreadable, KeyError, TypeError, ValueError) as error:
        why = f"is damaged ({error})"
    raise DataError(f"{path} {why}; it records what the weights next to it were fine-tuned on")


def write_record(folder: Path, record: Mapping[str, object]) -> None:
    """Writes a record into a folder of weights, in one step."""
    write_atomically(folder / RECORD, lambda path: path.write_text(to_json(record), encoding="utf-8"))


def finetuning_shown(record: Mapping[str, object]) -> Record:
    """What results say of a finetuning (``model_info.finetuned``): on what, how, and from which weights."""
    return {key: record.get(key) for key in ("tasks", "loss", "hyperparameters", "preset", "seed", "base")}


def loads_as(target: str, model: str, folder: str) -> tuple[str, Record]:
    """The model name and arguments that load finetuned weights from ``folder``; ``target`` is ``module:Class``."""
    kind = target.partition(":")[0].rpartition(".")[2]
    name = kind if kind in ("open_clip", "hf") else model
    return name, {"model": f"local-dir:{folder}"} if kind == "open_clip" else {"pretrained": folder}


def library_of(model: object) -> str:
    """The library that a model's class comes from, or one that it is derived from; empty for others."""
    modules = {base.__module__.partition(".")[0] for base in type(model).__mro__}
    return next((name for name in ("transformers", "open_clip") if name in modules), "")


def as_adapter(model: object, processor: object, settings: dict[str, str | bool]) -> object:
    """An adapter for a model with its ``processor``, or for open_clip's three objects; anything else as it is.

    ``settings``: ``device`` (``auto``: the model's device), ``dtype`` and ``compile``. UsageError for objects that do
    not belong together, and for weights that are not float32.
    """
    if isinstance(model, Sequence) and not isinstance(model, str):
        return _of_open_clip(list(model), processor, settings)
    if processor is None:
        return model
    parts = "get_image_features", "get_text_features", "logit_scale"
    if library_of(model) != "transformers" or not all(hasattr(model, part) for part in parts):
        raise UsageError(
            f"processor is for a contrastive dual encoder of transformers, and {_kind(model)} is not one; omit it (a "
            "model that writes text: simple_evaluate('vqascore', ..., model_args={'pretrained': FOLDER}))"
        )
    if not all(hasattr(processor, part) for part in ("tokenizer", "image_processor")):
        raise UsageError(
            f"processor must have a tokenizer and an image_processor, got {_kind(processor)}; give that of "
            "AutoProcessor.from_pretrained"
        )
    return load_target("ttmbench.model_adapters.hf:wrap")(model, processor, **_placed(model, settings))


def _of_open_clip(objects: list[object], processor: object, settings: dict[str, str | bool]) -> object:
    model, preprocess, tokenizer = objects if len(objects) == 3 else (None, None, None)
    fits = library_of(model) == library_of(tokenizer) == "open_clip" and library_of(preprocess) != "open_clip"
    if not fits or not callable(preprocess) or "Random" in repr(preprocess) or processor is not None:
        raise UsageError(
            "a model of open_clip is given without processor as (model, preprocess, tokenizer), with the transform for "
            "validation (the third object of open_clip.create_model_and_transforms) and open_clip.get_tokenizer(NAME), "
            f"got ({', '.join(map(_kind, objects))})"
        )
    wrap = load_target("ttmbench.model_adapters.open_clip:wrap", ("open_clip_torch",))
    return wrap(model, preprocess, tokenizer, **_placed(model, settings))


def _placed(model: Any, settings: dict[str, str | bool]) -> dict[str, str | bool]:
    """The settings with the device that the model is on in place of ``auto``."""
    first = next(model.parameters())
    others = {str(one.dtype).removeprefix("torch.") for one in model.parameters()} - {"float32"}
    if others:
        advice = "load it in float32, and give dtype='bf16' for faster arithmetic"
        raise UsageError(f"the weights of {type(model).__name__} are {', '.join(sorted(others))}; {advice}")
    return settings if settings["device"] != "auto" else {**settings, "device": str(first.device)}


def _kind(value: object) -> str:
    return value.__name__ if isinstance(value, type) else type(value).__name__
