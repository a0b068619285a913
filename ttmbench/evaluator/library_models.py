"""Models that a program has loaded with transformers or open_clip, with what prepares their inputs, as adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ttmbench.errors import UsageError
from ttmbench.plugins.registry import load_target

_TRIPLE = "(model, preprocess, tokenizer)"


def library_of(model: object) -> str:
    """The library that a model's class comes from, or one that it is derived from; empty for others."""
    modules = {base.__module__.partition(".")[0] for base in type(model).__mro__}
    return next((name for name in ("transformers", "open_clip") if name in modules), "")


def as_adapter(model: object, processor: object, settings: dict[str, str | bool]) -> object:
    """An adapter for a model with its ``processor``, or for open_clip's three objects; anything else as it is.

    Args:
        model: as a program gives it to `simple_evaluate`.
        processor: tokenizer and image processor of a model of transformers, or None.
        settings: ``device`` (``auto`` is where the model is), ``dtype`` and ``compile``.

    Raises:
        UsageError: objects that do not belong together, or weights that are not float32.
    """
    if isinstance(model, Sequence) and not isinstance(model, str):
        return _of_open_clip(list(model), processor, settings)
    if processor is None:
        return model
    name = type(model).__name__
    if isinstance(model, str):
        advice = "a name brings its own, and 'hf' takes model_args={'processor': ID}"
        raise UsageError(f"processor is for a model given as an object; {advice}")
    if library_of(model) != "transformers":
        raise UsageError(f"processor is for a model of transformers, but {name} is not one; omit it")
    if not all(hasattr(model, part) for part in ("get_image_features", "get_text_features", "logit_scale")):
        advice = "give simple_evaluate('vqascore', ..., model_args={'pretrained': FOLDER}) a model that writes text"
        raise UsageError(f"{name} is not a contrastive dual encoder with a temperature; {advice}")
    if not all(hasattr(processor, part) for part in ("tokenizer", "image_processor")):
        advice = "give that of AutoProcessor.from_pretrained"
        raise UsageError(f"processor must have a tokenizer and an image_processor, got {_kind(processor)}; {advice}")
    return load_target("ttmbench.model_adapters.hf:wrap", ())(model, processor, **_placed(model, settings))


def _of_open_clip(objects: list[object], processor: object, settings: dict[str, str | bool]) -> object:
    how = f"a model of open_clip is given as {_TRIPLE}"
    if len(objects) != 3 or library_of(objects[0]) != "open_clip":
        raise UsageError(f"{how}, got ({', '.join(map(_kind, objects))})")
    if processor is not None:
        raise UsageError(f"{how}, so leave processor out")
    model, preprocess, tokenizer = objects
    if library_of(tokenizer) != "open_clip":
        raise UsageError(f"{how}: the third must be open_clip.get_tokenizer(NAME), got {_kind(tokenizer)}")
    if not callable(preprocess) or library_of(preprocess) == "open_clip":
        raise UsageError(f"{how}: the second must turn an image into a tensor, got {_kind(preprocess)}")
    if "Random" in repr(preprocess):
        raise UsageError(
            f"{how}: the second is the transform for training; the one for validation is the third object "
            "that open_clip.create_model_and_transforms returns"
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
