"""Builds the adapter that ``--model`` and ``--model_args`` name, and says what it can do."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any

from ttmbench._util.foreign import blaming, said
from ttmbench.errors import UsageError
from ttmbench.plugins.models import arguments_of
from ttmbench.plugins.registry import Registry, load_target
from ttmbench.protocols import ChoiceScorer, DualEncoder, PairScorer, PairTrainable, PreparedPairScorer, Trainable
from ttmbench.types import ModelFiles


def make_adapter(registry: Registry, name: str, model_args: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    """Imports and calls a registered adapter.

    Args:
        registry: where names are looked up.
        name: of the model.
        model_args: the user's arguments; each must be a parameter of the adapter.
        settings: device, dtype, offline, trust_remote_code: passed on where the adapter takes them.

    Returns:
        The adapter.

    Raises:
        UsageError: unknown model or argument, or what was built has no way to score.
        DataError: weights out of reach or damaged.
    """
    spec = registry.adapter(name)
    factory = load_target(spec.target, spec.needs)
    arguments = arguments_of(spec, model_args)
    with blaming(_whose(registry, name)):
        parameters = inspect.signature(factory).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [key for key in arguments if key not in parameters and not takes_any]
    if unknown:
        known = ", ".join(key for key in parameters if key not in settings) or "none"
        raise UsageError(f"model '{name}' has no argument '{unknown[0]}' (--model_args); it has: {known}")
    if settings.get("compile") and "compile" not in parameters and not takes_any:
        raise UsageError(f"model '{name}' cannot be compiled; run without --compile")
    missing = [
        key
        for key, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and key not in arguments
        and key not in settings
    ]
    if missing:
        raise UsageError(f"model '{name}' needs --model_args {missing[0]}=...")
    passed = {
        key: value for key, value in settings.items() if (key in parameters or takes_any) and key not in arguments
    }
    with blaming(_whose(registry, name)):
        try:
            adapter = factory(**passed, **arguments)
        except TypeError as error:
            raise UsageError(f"model '{name}': {said(error).removeprefix('TypeError: ')}") from error
    if not isinstance(adapter, DualEncoder | PairScorer | ChoiceScorer):
        raise UsageError(
            f"model '{name}': {type(adapter).__name__} can neither score pairs (score_pairs) nor encode "
            "(prepare_images, prepare_captions, encode_images, encode_captions, logits) nor answer questions "
            "(answer, choice_style)"
        )
    return adapter


def _whose(registry: Registry, name: str) -> str:
    return f"model '{name}' of plugin '{registry.adapters[name][1]}'"


def can_adapt(adapter: Any) -> bool:
    """Whether TTM can adapt this model."""
    return (isinstance(adapter, DualEncoder) and isinstance(adapter, Trainable)) or learns_from_pairs(adapter)


def only_chooses(adapter: Any) -> bool:
    """Whether this model answers in words and gives no score."""
    return isinstance(adapter, ChoiceScorer) and not isinstance(adapter, DualEncoder | PairScorer)


def learns_from_pairs(adapter: Any) -> bool:
    """Whether TTM adapts this model by saying of pairs inside groups which of them match."""
    return (
        isinstance(adapter, PreparedPairScorer)
        and isinstance(adapter, PairTrainable)
        and not isinstance(adapter, DualEncoder)
    )


def capabilities(adapter: Any) -> list[str]:
    """Names of the protocols an adapter implements."""
    protocols = (DualEncoder, PairScorer, PreparedPairScorer, ChoiceScorer, Trainable, PairTrainable)
    return [protocol.__name__ for protocol in protocols if isinstance(adapter, protocol)]


def model_info(adapter: Any) -> dict[str, Any]:
    """What an adapter states about itself, for the record."""
    with blaming(f"fingerprint() of {type(adapter).__name__}"):
        stated = adapter.fingerprint() if hasattr(adapter, "fingerprint") else {}
        shown = dict(stated) if isinstance(stated, Mapping) else {"fingerprint": str(stated)}
        json.dumps(shown, allow_nan=False)
    info: dict[str, Any] = {"capabilities": capabilities(adapter), "fingerprint": shown}
    files = getattr(adapter, "files", None)
    return {**info, "source": files.provenance()} if isinstance(files, ModelFiles) else info


def remark_on_files(adapter: Any) -> str | None:
    """One line for weights that are in a format that could hold more than tensors; None for others."""
    files = getattr(adapter, "files", None)
    if not isinstance(files, ModelFiles) or not files.are_pickles:
        return None
    return (
        f"the weights of {files.name} are a pickle ({files.weights[0]}), of which tensors alone are read and nothing "
        "is run (torch.load, weights_only=True); --model_args weights=safetensors refuses such files"
    )
