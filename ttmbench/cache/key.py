"""The key of cached scores: everything that changes a score, and nothing that does not."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ttmbench._util.digests import OWN, digests_of_object, json_digest, tensors_digest
from ttmbench._util.machine import installed_version, matmul_precision
from ttmbench._version import __version__
from ttmbench.data.task_file import TaskSpec
from ttmbench.model import Model, PairScorer, StoredFeatures
from ttmbench.types import Record

SCORING_VERSION = 4
"""Version of this package's own part in a score. Raise it whenever a change can move a score: see CONTRIBUTING.md."""

PACKAGES = ("torch", "transformers", "tokenizers", "open_clip_torch", "peft")
"""Packages that tokenise or compute; a new minor version of one may round in another way."""
READERS = ("pillow", "torchvision", "av")
"""Packages that decode and resize; any version of one may give other pixels."""


def why_not_kept(model: Model) -> str | None:
    """Why scores of this model are not cached, for the user; empty if that needs no word; None if they are cached.

    Models behind servers store their answers themselves. The remarks and refusals of others would be lost. Precomputed
    embeddings are scored faster than looked up.
    """
    is_served = model.pairs_at_once is not None or type(model).usage is not Model.usage
    if is_served or isinstance(model, StoredFeatures):
        return ""
    if isinstance(model, PairScorer) and model.refusals_are_wrong is not None:
        return ""
    if not model.fingerprint():
        return f"{type(model).__name__} has no fingerprint, so its scores are not cached"
    if code_digest(model) is None:
        return f"the source of {type(model).__name__} is in no file, so its scores are not cached"
    return None


def model_description(model: Model, as_loaded: bool = False) -> Record:
    """What a model's scores depend on, for JSON, with secrets: what it states, its weights as they are, its code.

    ``as_loaded``: nothing has touched the weights since they were loaded, so that a digest from then is theirs. Those
    of a large model would come back from its device, and be read for minutes.
    """
    kind = type(model)
    declared = model.fingerprint()
    description: Record = {
        "adapter": f"{kind.__module__}:{kind.__qualname__}",
        "fingerprint": dict(declared) if isinstance(declared, Mapping) else str(declared),
        "code": code_digest(model),
    }
    if model.trainable or isinstance(model, torch.nn.Module) or type(model).state_dict is not Model.state_dict:
        known = model.state_sha256 if as_loaded else None
        description["state_sha256"] = known or tensors_digest(model.state_dict())
    return description


def score_key(model: Record, spec: TaskSpec, settings: Record, exact: Record | None = None) -> str:
    """sha256 of what the scores of a task depend on beside its data.

    ``model`` is of `model_description`; ``settings`` is what else the arrays depend on; ``exact`` is what bits depend
    on beside all that (``--deterministic``).
    """
    description = {
        "model": model,
        "task": spec.task,
        "task_version": spec.version,
        "shape": list(spec.group.shape or ()),
        "settings": settings,
        "ttmbench": __version__,
        "score_code": SCORING_VERSION,
        "packages": versions(),
        "matmul_precision": matmul_precision(),
        **({} if exact is None else {"deterministic": exact}),
    }
    return json_digest(_plain(description))


def versions() -> dict[str, str | None]:
    """Package -> its version, of `PACKAGES` up to the minor one; None if it is absent, which can change preprocessing.

    Pillow's library for JPEG is one of them: it need not be the one of Pillow's own wheel.
    """
    from PIL import features

    found = {name: installed_version(name) for name in (*PACKAGES, *READERS)}
    minor = {name: re.sub(r"^(\d+(?:\.\d+)?).*", r"\1", text) for name in PACKAGES if (text := found[name])}
    return found | minor | {"jpeg": features.version("libjpeg_turbo")}


def code_digest(model: Model) -> str | None:
    """sha256 of the source of the packages that a model's class is made of; None if it cannot be read.

    Models of this package have its version and `SCORING_VERSION` instead, and the empty digest.
    """
    digests = digests_of_object(model)
    if None in digests.values():
        return None
    foreign = "".join(f"{name}:{digest};" for name, digest in digests.items() if name != OWN)
    return hashlib.sha256(foreign.encode()).hexdigest()


def _plain(value: object) -> Any:
    """A fingerprint's values as JSON; arrays by their digest, since their text leaves numbers out."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted(str(_plain(inner)) for inner in value)
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    return tensors_digest({"": value}) if isinstance(value, torch.Tensor) else str(value)
