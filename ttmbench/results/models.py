"""Which results are of one model, and what each model is called beside the others.

A model is what its fingerprint says (weights, preprocessing, prompts, precision), wherever its files lie and whatever
machine it ran on: two checkpoints in folders of one name are two models.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from ttmbench.results.document import ResultsDocument, mapping

MACHINE = frozenset({"device", "attn_implementation", "compiled", "n_parameters", "quick_gelu"})
"""Keys of fingerprints that say how a model was run, or repeat what others say: not which model it is.

The activation is part of ``config_sha256``.
"""

PLACES = frozenset({"pretrained", "file"})
"""Keys that name where weights came from: they count only where no digest of the weights does."""

UNKNOWN = "unknown"
"""What numbers and tables state as the training data of a model that says nothing of them."""

_DIGITS = 8
_SCHEMES = ("local-dir:", "hf-hub:")
_ARGUMENTS = ("model", "pretrained", "path")


@dataclass(frozen=True)
class StatedModel:
    """What a results document says of its model.

    Attributes:
        name: as the run calls it.
        given: the name was given (``--name``, ``model_name=``) and not made of the model's arguments.
        path: parts of the path or id of its weights; none if it has no argument of the kind.
        fingerprint: sha256 of what it states of itself; None of older documents, and of stored scores.
        dtype: of its arithmetic, as far as it is stated.
        date: of the run.
    """

    name: str
    given: bool
    path: tuple[str, ...]
    fingerprint: str | None
    dtype: str | None
    date: float


def stated_model(document: ResultsDocument) -> StatedModel:
    """What a results document says of its model; older documents lack most of it."""
    config, declared, name = document.config, document.fingerprint, document.model_name or "unnamed"
    words = [str(one) for one in (mapping(config.get("model_args")).get(key) for key in _ARGUMENTS) if one]
    dtype = declared.get("dtype") or config.get("dtype")
    return StatedModel(
        name,
        "model" in config and not _is_made_of(name, str(config["model"]), words),
        _parts(words[-1]) if words else (),
        fingerprint_of(declared),
        None if dtype is None else str(dtype),
        document.date,
    )


def fingerprint_of(declared: Mapping[str, object]) -> str | None:
    """The digest by which results of one model are known; None if nothing is declared (``model_info.fingerprint``).

    sha256 of all of it but the machine's part, and the name of weights whose digest is there.
    """
    has_digest = any(key in declared for key in ("weights_sha256", "features_sha256"))
    kept = {
        key: value
        for key, value in declared.items()
        if key not in MACHINE and not (has_digest and (key in PLACES or str(value).startswith(_SCHEMES[0])))
    }
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest() if kept else None


def checkpoint_of(declared: Mapping[str, object]) -> str:
    """What says which weights a fingerprint is of: their digest, else where they come from."""
    digest = declared.get("weights_sha256")
    named = [declared.get(key) for key in ("pretrained", "model", "file", "revision", "features_sha256")]
    return str(digest) if digest else json.dumps(named, default=str)


def tell_apart(models: Sequence[StatedModel]) -> list[str]:
    """What each of some models is called beside the others: the same for the same model, another for another one.

    It is the name that was given, else the newest; where two models have one name, the shortest end of their paths that
    tells them apart, else their precision, else digits of their fingerprints.
    """
    keys = _keys(models)
    first: dict[str, StatedModel] = {}
    for key, one in zip(keys, models, strict=True):
        if key not in first or (one.given, one.date) >= (first[key].given, first[key].date):
            first[key] = one
    names: dict[str, str] = {}
    for same in _grouped(first, {key: one.name for key, one in first.items()}):
        names |= _by_path(same) if len(same) > 1 else {key: one.name for key, one in same.items()}
    for same in _grouped(first, names):
        kinds = {one.dtype for one in same.values()}
        if len(same) > 1 and len(kinds) > 1:
            names |= {key: f"{names[key]} ({one.dtype})" for key, one in same.items() if one.dtype is not None}
    for same in _grouped(first, names):
        if len(same) > 1:
            names |= {
                key: f"{names[key]} ({key[:_DIGITS] if one.fingerprint else 'unknown'})" for key, one in same.items()
            }
    return [names[key] for key in keys]


def _keys(models: Sequence[StatedModel]) -> list[str]:
    """What makes documents those of one model.

    The fingerprint does. Whoever gives one checkpoint two names wants two rows. A document without a fingerprint is of
    the one model that has its name, else of a model of its own.
    """
    given: dict[str, set[str]] = {}
    for one in models:
        if one.fingerprint is not None:
            given.setdefault(one.fingerprint, set()).update([one.name] if one.given else [])

    def known(one: StatedModel) -> str:
        assert one.fingerprint is not None, "asked of those that have one"
        return f"{one.fingerprint} {one.name}" if one.given and len(given[one.fingerprint]) > 1 else one.fingerprint

    named: dict[str, set[str]] = {}
    for one in models:
        if one.fingerprint is not None:
            named.setdefault(one.name, set()).add(known(one))
    found = []
    for one in models:
        alike = named.get(one.name, set())
        found.append(known(one) if one.fingerprint else next(iter(alike)) if len(alike) == 1 else f"name {one.name}")
    return found


def _grouped(models: Mapping[str, StatedModel], names: Mapping[str, str]) -> Iterator[dict[str, StatedModel]]:
    """The models that share a name, name by name."""
    for name in Counter(names.values()):
        yield {key: one for key, one in models.items() if names[key] == name}


def _by_path(models: Mapping[str, StatedModel]) -> dict[str, str]:
    """Names of models that share one, by as much of their paths as tells the paths apart."""
    paths = {one.path for one in models.values()}
    longest = max(map(len, paths))
    told = next((n for n in range(1, longest + 1) if len({path[-n:] for path in paths}) == len(paths)), longest)
    if len(paths) == 1:
        return {key: one.name for key, one in models.items()}
    return {key: _with_path(one, told) for key, one in models.items()}


def _with_path(one: StatedModel, depth: int) -> str:
    """A name with at least so many parts of the path: in place of those that it has, else in brackets."""
    end = "/".join(one.path[-depth:])
    for length in range(len(one.path), 0, -1):
        own = "/".join(one.path[-length:])
        if one.name == own or (one.name.endswith(f"/{own}") and not one.given):
            return one.name if length >= depth else one.name.removesuffix(own) + end
    return f"{one.name} ({end})" if end else one.name


def _parts(path: str) -> tuple[str, ...]:
    for scheme in _SCHEMES:
        path = path.removeprefix(scheme)
    return tuple(part for part in re.split(r"[/\\]+", path) if part not in ("", "."))


def _is_made_of(name: str, model: str, words: Iterable[str]) -> bool:
    """Whether a run made the name itself: of the model, of its arguments, or of an object, its class and digits."""
    if name == model or re.fullmatch(rf"{re.escape(model)}-[0-9a-f]{{8}}", name):
        return True
    choices = []
    for word in words:
        plain = word
        for scheme in _SCHEMES:
            plain = plain.removeprefix(scheme)
        choices.append({plain, *_parts(word)[-1:]})
    made = {"/".join(parts) for parts in product(*choices)}
    return bool(choices) and (name in made or name.removeprefix(f"{model}/") in made)


def training_data(document: ResultsDocument) -> str:
    """The image collections that a document's model was trained on, separated by commas; ``none``, or ``unknown``."""
    collections = document.model_info.get("trained_on")
    return ", ".join(map(str, collections)) or "none" if isinstance(collections, list) else UNKNOWN
