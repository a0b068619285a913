"""With which setting each of some runs was made, so that no table mixes runs of one model and task that differ in it.

Of a sweep's cell it is the name that the plan gives; of other runs it is what differs among the arguments of runs of
one model and task.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ttmbench._util.console import one_line
from ttmbench.config import RunConfig
from ttmbench.results.document import ResultsDocument, mapping
from ttmbench.results.models import stated_model, tell_apart

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
class RunName:
    """What tells a run from the others that it is shown with.

    Attributes:
        model: name of the model.
        setting: of the run; empty where all runs have the same.
    """

    model: str
    setting: str = ""

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
        for task, given in by_task.items():
            for name, value in given.items():
                values.setdefault((sweep, name, model, task), set()).add(value)
    differing = dict.fromkeys((sweep, name) for (sweep, name, *_), given in values.items() if len(given) > 1)
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
    """The command that repeats a run, made of its configuration and never of the text in the document.

    It is quoted for a shell and leaves out where results, data and caches were. Empty where no command makes the run.
    """
    stated = document.config
    files = stated.get("scores") or stated.get("answers")
    if files and "model" not in stated:
        names = str(files).split("+") if isinstance(files, str) else map(str, files)
        given = [word for key in ("task", "limit") if stated.get(key) for word in (f"--{key}", str(stated[key]))]
        return shlex.join(["ttmbench", "score", *names, *given])
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
    """A command and its options, quoted for a shell; what is false, empty or None is left out.

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
            line += [f"--{name}", ",".join(f"{key}={_word(one)}" for key, one in value.items())]
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
    given: dict[str, object] = {
        **mapping(config.get("task_args")),
        **_prefixed("rerank", mapping(config.get("rerank"))),
    }
    overfitted, adapted, oracle = document.simple_match.get(task), document.ttm.get(task), document.oracle.get(task)
    if overfitted is not None:
        given |= {**_prefixed("simple_match", overfitted.hyperparameters), "seeds": overfitted.seeds}
    if oracle is not None:
        given |= {**mapping(config.get("ttm_args")), "seeds": oracle.seeds}
    if adapted is not None:
        given |= {**adapted.hyperparameters, "seeds": adapted.seeds}
        given |= {} if adapted.learning_rate is None else {"lr": adapted.learning_rate.value}
        given |= {} if adapted.holdout is None else {"ttm_holdout": config.get("ttm_holdout")}
    return {str(name): _text(value) for name, value in given.items() if name not in _NO_ARGUMENTS}


def _prefixed(prefix: str, given: Mapping[str, object]) -> dict[str, object]:
    return {f"{prefix}.{name}": value for name, value in given.items()}


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
