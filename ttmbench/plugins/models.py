"""Named models: what each is built with, and the files that its weights are read from."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ttmbench.plugins.registry import load_target
from ttmbench.types import AdapterSpec, ModelFiles

WEIGHTS_ARE_NAMED_BY = ("pretrained", "model", "path")


def arguments_of(spec: AdapterSpec, model_args: Mapping[str, Any]) -> dict[str, Any]:
    """What a model is built with: what its name fixes, and over it what the user says.

    A revision belongs to the weights that it was pinned for, so other weights leave it behind.

    >>> spec = AdapterSpec("x", "m:load", model_args={"pretrained": "a/b", "revision": "c0ffee"})
    >>> arguments_of(spec, {"pretrained": "./mine"})
    {'pretrained': './mine'}
    """
    fixed = dict(spec.model_args)
    if any(model_args.get(name, fixed.get(name)) != fixed.get(name) for name in WEIGHTS_ARE_NAMED_BY):
        fixed.pop("revision", None)
    return {**fixed, **model_args}


def locate_files(spec: AdapterSpec, model_args: Mapping[str, Any], offline: bool) -> list[ModelFiles] | None:
    """The files that a model's weights are read from, fetched unless ``offline``.

    A kind of model tells them by a function ``locate`` beside its ``load``, which takes those of its arguments that
    name weights, and ``offline``.

    Args:
        spec: the model.
        model_args: the user's arguments.
        offline: do not touch the network.

    Returns:
        The files; None if the kind of model does not tell, or if no weights are named.

    Raises:
        DataError: weights are out of reach, or there only in part.
        UsageError: a wrong argument.
    """
    module, _, _ = spec.target.partition(":")
    load_target(spec.target, spec.needs)
    locate = getattr(import_module(module), "locate", None)
    if locate is None:
        return None
    parameters = inspect.signature(locate).parameters
    arguments = {**arguments_of(spec, model_args), "offline": offline}
    needed = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    if any(name not in arguments for name in needed):
        return None
    found: list[ModelFiles] = locate(**{name: value for name, value in arguments.items() if name in parameters})
    return found
