"""Which model a name and its arguments load, so that two ways to name it are one model."""

from __future__ import annotations

from collections.abc import Mapping

from ttmbench.errors import UsageError
from ttmbench.plugins.registry import Registry
from ttmbench.results.document import mapping

# Arguments of a model behind a server that change no answer.
_HOW_ASKED = frozenset(
    ("api_key_env", "backoff", "cache", "concurrency", "max_cost", "price_in", "price_out", "retries", "timeout")
)


def model_identity(config: Mapping[str, object], registry: Registry) -> tuple[str, dict[str, object]] | None:
    """What loads a model, and with which arguments: the same for a name, an alias, and the weights' own name."""
    name = config.get("model")
    if not isinstance(name, str):
        return None
    arguments = {key: value for key, value in mapping(config.get("model_args")).items() if key not in _HOW_ASKED}
    if not is_known_model(name, registry):
        return name, arguments
    spec = registry.adapter(name)
    if spec.card is not None and spec.card.page:  # weights that are downloaded by hand: any file, under this name alone
        arguments.pop("pretrained", None)
        return f"{spec.target} {spec.name}", {**spec.model_args, **arguments}
    return spec.target, {**spec.model_args, **arguments}


def is_known_model(name: str, registry: Registry) -> bool:
    """Whether a model of this name is registered."""
    try:
        registry.adapter(name)
    except UsageError:
        return False
    return True
