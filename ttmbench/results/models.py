"""Names of models and settings, which distinguish runs in every table.

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
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path

from ttmbench._util.console import one_line
from ttmbench._util.file_io import json_digest
from ttmbench.config import UNSAID, RunConfig, TTMConfig
from ttmbench.results.document import LOCAL, ResultsDocument, fingerprint_of, mapping
from ttmbench.results.numbers import AT, RAW, STORED_SCORES, TTM, UNTRAINED

_DIGITS = 8
_SCHEMES = (LOCAL, "hf-hub:")
_ARGUMENTS = ("model", "pretrained", "path")
SWEEP_FILE = "sweep.json"
_NO_ARGUMENTS = frozenset({"lr_note"})
_DATA, _SCORES = "data", "scores"
_OF_TASK = ("kind", "matching", "classes", "rerank_k", "means", "noise_images")  # in task files, beside the data
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
    fingerprint: str | None  # `fingerprint_of`; None for stored scores
    dtype: str | None  # compute dtype, where it is given
    date: float  # of the run


def stated_model(document: ResultsDocument) -> StatedModel:
    """What a results document says of its model; of stored scores little."""
    config, declared, name = document.config, document.model_info.fingerprint, document.model_name or "unnamed"
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


@dataclass(frozen=True)
class ModelLabel:
    """Names of a run's model and setting that differ from those of the other runs shown."""

    model: str
    setting: str = ""  # of the whole run; empty where all runs have the same
    # task (or "" for others), method -> setting that its numbers depend on, as the newest run with the same has it
    of_numbers: dict[tuple[str, str], str] = field(default_factory=dict)

    def setting_of(self, task: str, method: str) -> str:
        """The setting of a number's row: the untrained model has one row, however many settings adapt it."""
        method = RAW if method in UNTRAINED else method
        return self.of_numbers.get((task, method), self.of_numbers.get(("", method), self.setting))

    @property
    def words(self) -> str:
        """What tables call it."""
        return with_setting(self.model, self.setting)


def with_setting(model: str, setting: str) -> str:
    """A model's name in tables."""
    return f"{model} [{setting}]" if setting else model


@dataclass(frozen=True)
class _TaskIdentity:
    """A task of a run: what its numbers depend on, and the words for it."""

    run: int
    where: tuple[str, str, str]  # sweep, model, task
    blocks: Mapping[str, Mapping[str, str]]  # "" or method -> setting -> value
    of_data: Mapping[str, str]  # what describes the data in labels
    date: float

    def of_method(self, method: str) -> _TaskIdentity:
        """What the numbers of a method depend on; those of the untrained model on no sweep."""
        blocks = {"": {**self.blocks[""], **self.blocks.get(method, {})}}
        if method == RAW:
            return replace(self, where=("", *self.where[1:]), blocks=blocks)
        elsewhere = {block: settings for block, settings in self.blocks.items() if block.startswith(AT)}
        return replace(self, blocks=blocks | elsewhere)

    @cached_property
    def identity(self) -> str:
        """A digest of everything that its numbers depend on."""
        return json_digest([*self.where, self.blocks])

    @cached_property
    def words(self) -> dict[str, str]:
        """Name of a setting in labels -> its value; digests have none."""
        words = dict(self.of_data)
        for block, settings in self.blocks.items():
            if "tau_end" in settings:  # of TTM, whose records omit some defaults
                settings = {**{key: _text(TTMConfig.model_fields[key].default) for key in UNSAID}, **settings}
            words |= {_name_of(block, key): value for key, value in settings.items()}
        unnamed = (_DATA, "rerank.fingerprint", "references.data", "reward.fingerprint")
        return {name: value for name, value in words.items() if not name.endswith(unnamed)}


def _differing(parts: Sequence[_TaskIdentity]) -> list[str]:
    """Names of the settings in which tasks of runs differ, as far as they ran the same methods."""
    names = []
    for block in dict.fromkeys(block for part in parts for block in part.blocks):
        of_block = [part.blocks[block] for part in parts if block in part.blocks]
        keys = dict.fromkeys(key for settings in of_block for key in settings)
        names += [_name_of(block, key) for key in keys if len({settings.get(key) for settings in of_block}) > 1]
    if _DATA in names:
        described = dict.fromkeys(name for part in parts for name in part.of_data)
        names += [name for name in described if len({part.of_data.get(name) for part in parts}) > 1]
    return names


def names_of_runs(runs: Sequence[tuple[Path, ResultsDocument]]) -> list[ModelLabel]:
    """What each of some runs is called beside the others: two of other models or configurations never share a name.

    A configuration is complete (`_blocks`): defaults count like stated values. The setting names what differs, that of
    a number what differs for its method.
    """
    models = tell_apart([stated_model(document) for _, document in runs])
    sweeps = [setting_in_sweep(path) for path, _ in runs]
    parts = [
        _TaskIdentity(
            run, (sweeps[run], models[run], task), _blocks(document, task), _of_data(document, task), document.date
        )
        for run, (_, document) in enumerate(runs)
        for task in document.results
    ]
    settings, _ = _settings(parts, sweeps)
    labels = [ModelLabel(*name, {}) for name in zip(models, settings, strict=True)]
    methods = dict.fromkeys(block for part in parts for block in part.blocks if block and not block.startswith(AT))
    for method in (RAW, *methods):
        own = [part.of_method(method) for part in parts if method == RAW or method in part.blocks]
        named, newest = _settings(own, [""] * len(runs) if method == RAW else sweeps)
        for part in own:
            of_numbers = labels[part.run].of_numbers
            of_numbers[part.where[2], method] = named[newest[part.identity].run]
            of_numbers["", method] = named[part.run]
    return labels


def _settings(parts: Sequence[_TaskIdentity], sweeps: Sequence[str]) -> tuple[list[str], dict[str, _TaskIdentity]]:
    """The setting of each run, by its sweep and what differs; the newest task of a run with each identity."""
    newest: dict[str, _TaskIdentity] = {}
    for part in sorted(parts, key=lambda part: part.date):
        newest[part.identity] = part
    rivals: dict[tuple[str, str, str], list[_TaskIdentity]] = {}
    for part in newest.values():
        rivals.setdefault(part.where, []).append(part)
    differing = dict.fromkeys((where[0], name) for where, several in rivals.items() for name in _differing(several))
    settings, of_run = [], dict[int, list[dict[str, str]]]()
    for part in parts:
        of_run.setdefault(part.run, []).append(part.words)
    for run, sweep in enumerate(sweeps):
        stated = [sweep] if sweep else []
        for name in (name for of_sweep, name in differing if of_sweep == sweep):
            values = dict.fromkeys(words[name] for words in of_run.get(run, ()) if name in words)
            stated += [f"{name}={'/'.join(values)}"] if values else []
        settings.append(_short(" ".join(stated)))
    alike: dict[tuple[object, ...], list[_TaskIdentity]] = {}
    for part in newest.values():
        alike.setdefault((part.where, settings[part.run]), []).append(part)
    for run in {part.run for several in alike.values() if _differing(several) for part in several}:
        digits = json_digest([part.identity for part in parts if part.run == run])[:_DIGITS]
        settings[run] = " ".join(filter(None, [settings[run], digits]))
    if len({settings[part.run] for part in parts}) < 2:
        settings = [""] * len(sweeps)
    return settings, newest


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
    files = stated.get("scores")
    if files and "model" not in stated:
        names = str(files).split("+")
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
            spelt = (f"{k}={str(v).lower() if v in (None, True, False) else v}" for k, v in value.items())
            line += [f"--{name}", ",".join(spelt)]
        elif isinstance(value, list) and value:
            line += [f"--{name}", ",".join(map(str, value))]
        elif isinstance(value, str | int | float) and value is not False:
            line += [f"--{name}", str(value)]
    return shlex.join(line)


def _blocks(document: ResultsDocument, task: str) -> dict[str, dict[str, str]]:
    """What the numbers of a task depend on besides the model: of all of them (""), and of each method.

    Seeds are not in it, since they are averaged, nor what changes no number (devices, batch size, paths).
    """
    config, spec = document.config, document.configs[task]
    ranking, source = document.ranking.get(task), document.datasets[task].source
    blocks: dict[str, dict[str, object]] = {
        "": {
            _DATA: [
                *(document.task_hashes[task], document.versions[task], [spec.get(key) for key in _OF_TASK]),
                source.get("sha256") if source.get("kind") == STORED_SCORES else None,
            ],
            **{key: config.get(key) for key in ("interval", "bootstrap_iters")},
            "dtype": mapping(config.get("model_args")).get("dtype", config.get("dtype")),
        }
    }
    if ranking is not None and ranking.rerank is not None:
        rerank = ranking.rerank
        blocks[""] |= {"rerank.model": rerank.model, "rerank.k": rerank.k}
        blocks[""]["rerank.fingerprint"] = fingerprint_of(rerank.fingerprint)
    for name, record in document.methods.get(task, {}).items():
        blocks[name] = dict(record.settings)
        if record.references is not None:
            blocks[name]["references.data"] = record.references.data_sha256
        if record.reward_model is not None:
            blocks[name]["reward.fingerprint"] = fingerprint_of(record.reward_model.fingerprint)
    for other, also in document.also.get(task, {}).items():
        blocks[f"{AT}{other}"] = {_DATA: [also.fingerprint, also.version]}
    return {
        block: {str(key): _text(value) for key, value in settings.items() if key not in _NO_ARGUMENTS}
        for block, settings in blocks.items()
    }


def _name_of(block: str, key: str) -> str:
    """The name of a setting in labels: that of the option or argument."""
    return key if block in ("", TTM) or key == _DATA else f"{block}.{key}"


def _of_data(document: ResultsDocument, task: str) -> dict[str, str]:
    """What was given of a task's data."""
    config = document.config
    given = {key: config.get(key) for key in ("limit", "samples", _SCORES)}
    given |= {**mapping(config.get("task_args")), "version": document.versions[task]}
    return {str(key): _text(value) for key, value in given.items() if value is not None}


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
