"""Names of models and settings, by which every table tells runs apart.

A model is its fingerprint (weights, preprocessing, prompts, precision), whatever its folder and machine. A sweep's cell
has the setting that its plan names; other runs are named by the arguments in which they differ.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from ttmbench._util.console import one_line
from ttmbench._util.digests import json_digest
from ttmbench.config import RunConfig
from ttmbench.results.document import ResultsDocument, mapping

MACHINE = frozenset({"device", "attn_implementation", "compiled", "engine", "n_parameters", "quick_gelu"})
"""Keys of fingerprints that do not say which model it is (the activation is part of ``config_sha256``)."""

PLACES = frozenset({"pretrained", "file"})
"""Keys that name where weights came from: they count only where no digest of the weights does."""

UNKNOWN = "unknown"
"""What numbers and tables state as the training data of a model that says nothing of them."""

_DIGITS = 8
_SCHEMES = ("local-dir:", "hf-hub:")
_ARGUMENTS = ("model", "pretrained", "path")
SWEEP_FILE = "sweep.json"
_NO_ARGUMENTS = frozenset({"lr_note"})
_OF_THE_SENDER = frozenset(
    {
        *("output_path", "data_dir", "include_path", "use_cache", "offline", "overwrite", "on_error", "assertions"),
        *("baseline", "track", "track_args", "save_adapted", "log_samples", "save_scores", "samples"),
    }
)
"""Settings that change no number, or name files of whoever ran the command."""
_LONGEST = 120  # characters of a setting in a table


@dataclass(frozen=True)
class StatedModel:
    """What a results document says of its model."""

    name: str  # as the run calls it
    given: bool  # by the user (``--name``, ``model_name=``), and not made of the model's arguments
    path: tuple[str, ...]  # parts of the path or id of its weights; empty without such an argument
    fingerprint: str | None  # `fingerprint_of`; None for older documents and stored scores
    dtype: str | None  # compute dtype, where it is given
    date: float  # of the run


def stated_model(document: ResultsDocument) -> StatedModel:
    """What a results document says of its model; older documents lack most of it."""
    config, declared, name = document.config, document.fingerprint, document.model_name or "unnamed"
    words = [str(value) for value in (mapping(config.get("model_args")).get(key) for key in _ARGUMENTS) if value]
    dtype = declared.get("dtype") or config.get("dtype")
    base = name.partition("+")[0] if "peft" in mapping(config.get("model_args")) else name
    return StatedModel(
        name,
        "model" in config and not _is_made_of(base, str(config["model"]), words),
        _parts(words[-1]) if words else (),
        fingerprint_of(declared),
        None if dtype is None else str(dtype),
        document.date,
    )


def fingerprint_of(declared: Mapping[str, object]) -> str | None:
    """sha256 of what ``model_info.fingerprint`` states except the machine, and paths of weights that have a digest.

    None if nothing is stated.
    """
    has_digest = any(key in declared for key in ("weights_sha256", "features_sha256"))
    identity = {
        key: value
        for key, value in declared.items()
        if key not in MACHINE and not (has_digest and (key in PLACES or str(value).startswith(_SCHEMES[0])))
    }
    return json_digest(identity, default=str) if identity else None


def checkpoint_of(declared: Mapping[str, object]) -> str:
    """What says which weights a fingerprint is of: their digest, else where they come from."""
    digest = declared.get("weights_sha256")
    named = [declared.get(key) for key in ("pretrained", "model", "file", "revision", "features_sha256")]
    return str(digest) if digest else json.dumps(named, default=str)


def tell_apart(models: Sequence[StatedModel]) -> list[str]:
    """The names of some models in a table: equal for the same model, different for different ones.

    The name that a user gave, else the newest; where two models share it, with the shortest distinguishing end of their
    paths, else with their precision, else with digits of their fingerprints.
    """
    keys = _keys(models)
    first: dict[str, StatedModel] = {}
    for key, model in zip(keys, models, strict=True):
        if key not in first or (model.given, model.date) >= (first[key].given, first[key].date):
            first[key] = model
    names: dict[str, str] = {}
    for same in _grouped(first, {key: model.name for key, model in first.items()}):
        names |= _by_path(same) if len(same) > 1 else {key: model.name for key, model in same.items()}
    for same in _grouped(first, names):
        kinds = {model.dtype for model in same.values()}
        if len(same) > 1 and len(kinds) > 1:
            names |= {key: f"{names[key]} ({model.dtype})" for key, model in same.items() if model.dtype is not None}
    for same in _grouped(first, names):
        if len(same) > 1:
            names |= {
                key: f"{names[key]} ({key[:_DIGITS] if model.fingerprint else 'unknown'})"
                for key, model in same.items()
            }
    return [names[key] for key in keys]


def _keys(models: Sequence[StatedModel]) -> list[str]:
    """A key for each document, equal for documents of one model.

    It is the fingerprint, with the name where users gave a checkpoint several. A document without a fingerprint is of
    the one model that has its name, else of a separate model.
    """
    pairs = {(model.fingerprint, model.name) for model in models if model.given}
    names_given = Counter(fingerprint for fingerprint, _ in pairs)
    keys = [
        f"{model.fingerprint} {model.name}" if model.given and names_given[model.fingerprint] > 1 else model.fingerprint
        for model in models
    ]
    named: dict[str, set[str]] = {}
    for model, key in zip(models, keys, strict=True):
        if model.fingerprint and key:
            named.setdefault(model.name, set()).add(key)
    identities = []
    for model, key in zip(models, keys, strict=True):
        alike = named.get(model.name, set())
        by_name = next(iter(alike)) if len(alike) == 1 else f"name {model.name}"
        identities.append(key if model.fingerprint and key else by_name)
    return identities


def _grouped(models: Mapping[str, StatedModel], names: Mapping[str, str]) -> Iterator[dict[str, StatedModel]]:
    """The models that share a name, name by name."""
    for name in Counter(names.values()):
        yield {key: model for key, model in models.items() if names[key] == name}


def _by_path(models: Mapping[str, StatedModel]) -> dict[str, str]:
    """Names of models that share one, by as much of their paths as tells the paths apart."""
    paths = {model.path for model in models.values()}
    longest = max(map(len, paths))
    depth = next((n for n in range(1, longest + 1) if len({path[-n:] for path in paths}) == len(paths)), longest)
    if len(paths) == 1:
        return {key: model.name for key, model in models.items()}
    return {key: _with_path(model, depth) for key, model in models.items()}


def _with_path(model: StatedModel, depth: int) -> str:
    """A name with at least so many parts of the path: in place of those that it has, else in brackets."""
    end = "/".join(model.path[-depth:])
    for length in range(len(model.path), 0, -1):
        suffix = "/".join(model.path[-length:])
        if model.name == suffix or (model.name.endswith(f"/{suffix}") and not model.given):
            return model.name if length >= depth else model.name.removesuffix(suffix) + end
    return f"{model.name} ({end})" if end else model.name


def _without_scheme(path: str) -> str:
    return path.removeprefix(_SCHEMES[0]).removeprefix(_SCHEMES[1])


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in re.split(r"[/\\]+", _without_scheme(path)) if part not in ("", "."))


def _is_made_of(name: str, model: str, words: Iterable[str]) -> bool:
    """Whether a run made the name itself: of the model, of its arguments, or of an object, its class and digits."""
    if name == model or re.fullmatch(rf"{re.escape(model)}-[0-9a-f]{{8}}", name):
        return True
    choices = [{_without_scheme(word), *_parts(word)[-1:]} for word in words]
    made = {"/".join(parts) for parts in product(*choices)}
    return bool(choices) and (name in made or name.removeprefix(f"{model}/") in made)


def training_data(document: ResultsDocument) -> str:
    """The image collections that a document's model was trained on, separated by commas; ``none``, or ``unknown``."""
    collections = document.model_info.get("trained_on")
    return ", ".join(map(str, collections)) or "none" if isinstance(collections, list) else UNKNOWN


@dataclass(frozen=True)
class RunName:
    """Names of a run's model and setting that differ from those of the other runs shown."""

    model: str
    setting: str = ""  # empty where all runs have the same

    @property
    def words(self) -> str:
        """What tables call it."""
        return f"{self.model} [{self.setting}]" if self.setting else self.model


def names_of_runs(runs: Sequence[tuple[Path, ResultsDocument]]) -> list[RunName]:
    """What each of some runs is called beside the others: no two of other models or settings are called the same."""
    models = tell_apart([stated_model(document) for _, document in runs])
    sweeps = [setting_in_sweep(path) for path, _ in runs]
    arguments = [{task: _arguments(document, task) for task in document.results} for _, document in runs]
    values: dict[tuple[str, str, str, str], set[str]] = {}
    for model, sweep, by_task in zip(models, sweeps, arguments, strict=True):
        for task, by_name in by_task.items():
            for name, value in by_name.items():
                values.setdefault((sweep, name, model, task), set()).add(value)
    differing = dict.fromkeys((sweep, name) for (sweep, name, *_), choices in values.items() if len(choices) > 1)
    settings = []
    for sweep, by_task in zip(sweeps, arguments, strict=True):
        stated = []
        for name in (name for of_sweep, name in differing if of_sweep == sweep):
            several = dict.fromkeys(of_task[name] for of_task in by_task.values() if name in of_task)
            stated += [f"{name}={'/'.join(several)}"] if several else []
        settings.append(_short(", ".join([*([sweep] if sweep else []), *stated])))
    if len({*settings}) < 2:
        settings = [""] * len(runs)
    return [RunName(model, setting) for model, setting in zip(models, settings, strict=True)]


def setting_in_sweep(path: Path) -> str:
    """The setting of a sweep's cell by where its document lies (``[setting/]model/task/``); empty of other runs."""
    above = path.absolute().parents
    if len(above) < 4 or (above[2] / SWEEP_FILE).is_file() or not (above[3] / SWEEP_FILE).is_file():
        return ""
    return above[2].name


def command_of(document: ResultsDocument) -> str:
    """The shell command that repeats a run, made of its configuration, never of the text in the document.

    It has no paths of results, data and caches. Empty where no command makes the run.
    """
    stated = document.config
    files = stated.get("scores") or stated.get("answers")
    if files and "model" not in stated:
        names = str(files).split("+") if isinstance(files, str) else map(str, files)
        options = [word for key in ("task", "limit") if stated.get(key) for word in (f"--{key}", str(stated[key]))]
        return shlex.join(["ttmbench", "score", *names, *options])
    if not isinstance(stated.get("model"), str) or not stated.keys() <= RunConfig.model_fields.keys():
        return ""
    by_default = {"model_name": stated["model"]}
    chosen = {
        "name" if name == "model_name" else name: stated.get(name)
        for name, field in RunConfig.model_fields.items()
        if name not in _OF_THE_SENDER and stated.get(name) != by_default.get(name, field.get_default())
    }
    return command_line(["ttmbench"], chosen)


def command_line(words: Sequence[str], settings: Mapping[str, object]) -> str:
    """A command and its options, quoted for a shell; what is false, empty or None is omitted.

    >>> command_line(["ttmbench"], {"tasks": ["a", "b"], "ttm": True, "ttm_args": {"lr": 0.5}, "include_path": ["x"]})
    'ttmbench --tasks a,b --ttm --ttm_args lr=0.5 --include_path x'
    """
    line = list(words)
    for name, value in settings.items():
        if value is True:
            line.append(f"--{name}")
        elif name == "include_path" and isinstance(value, list | tuple):
            line += [word for folder in value for word in ("--include_path", str(folder))]
        elif isinstance(value, Mapping) and value:
            line += [f"--{name}", ",".join(f"{key}={_word(item)}" for key, item in value.items())]
        elif isinstance(value, list) and value:
            line += [f"--{name}", ",".join(map(str, value))]
        elif isinstance(value, str | int | float) and value is not False:
            line += [f"--{name}", str(value)]
    return shlex.join(line)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _arguments(document: ResultsDocument, task: str) -> dict[str, str]:
    """What a user can set and the numbers of a task depend on, but for the model and the part of the groups."""
    config = document.config
    settings: dict[str, object] = {
        **mapping(config.get("task_args")),
        **_prefixed("rerank", mapping(config.get("rerank"))),
    }
    overfitted, adapted, oracle = document.simple_match.get(task), document.ttm.get(task), document.oracle.get(task)
    if overfitted is not None:
        settings |= {**_prefixed("simple_match", overfitted.hyperparameters), "seeds": overfitted.seeds}
    for name, record in document.methods.get(task, {}).items():
        settings |= {**_prefixed(name, record.settings), "seeds": record.seeds}
    if oracle is not None:
        settings |= {**mapping(config.get("ttm_args")), "seeds": oracle.seeds}
    if adapted is not None:
        settings |= {**adapted.hyperparameters, "seeds": adapted.seeds}
        settings |= {} if adapted.learning_rate is None else {"lr": adapted.learning_rate.value}
        settings |= {} if adapted.holdout is None else {"ttm_holdout": config.get("ttm_holdout")}
    return {str(name): _text(value) for name, value in settings.items() if name not in _NO_ARGUMENTS}


def _prefixed(prefix: str, settings: Mapping[str, object]) -> dict[str, object]:
    return {f"{prefix}.{name}": value for name, value in settings.items()}


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, (list, tuple)):
        return "+".join(map(_text, value))
    return json.dumps(value, sort_keys=True, default=str)


def _short(setting: str) -> str:
    """A setting as one line; what is cut off a long one stands as digits for it."""
    line = one_line(setting, 10 * len(setting) + 1)
    if len(line) <= _LONGEST:
        return line
    return f"{line[: _LONGEST - 9]} {hashlib.sha256(setting.encode()).hexdigest()[:8]}"
