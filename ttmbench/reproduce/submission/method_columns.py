"""The columns of a submission's test-time methods: what follows from command and scores is made again.

A method that needs scores alone is run again on the raw scores. The scores of other methods are as stored, since they
take the model; their settings, declarations, seeds and positions are made again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ttmbench._arrays.scores import fewer_first
from ttmbench.config import RunConfig, TTMConfig
from ttmbench.errors import DataError
from ttmbench.evaluator.methods import refusal, settings_for
from ttmbench.evaluator.plan import Run
from ttmbench.evaluator.task_result import Scored
from ttmbench.evaluator.ttm_method import recorded, settings_of
from ttmbench.matching import match_groups
from ttmbench.methods.audit import is_clear
from ttmbench.methods.chance import DISTRIBUTIONS, DRAWS, kind_of
from ttmbench.methods.run import MethodRun
from ttmbench.methods.settings import checked_settings
from ttmbench.plugins.registry import Registry
from ttmbench.reproduce.submission.replay import MOST_ITERATIONS
from ttmbench.results.clusters import held_out
from ttmbench.results.document import ResultsDocument
from ttmbench.results.labels import key_of
from ttmbench.results.method_record import MethodRecord
from ttmbench.results.score_lines import StoredScores
from ttmbench.results.summary import MethodScores
from ttmbench.types import MethodSpec, Record, Scores

ROUNDING = 1e-4
"""By how much scores that are computed again may differ, relative to the range of the raw scores and to 1."""
NEAR_CHANCE = 1e-3
"""By how much chance levels that are computed again may differ: rounding decides a few of the random groups."""


def method_columns(
    document: ResultsDocument,
    scored: Scored,
    run: Run,
    stored: StoredScores,
    can: Collection[str],
    of_ttm: TTMConfig,
) -> Iterator[MethodScores]:
    """The columns of the methods that the command names, in its order.

    Args:
        document: of results; what only the model gives is taken from it.
        scored: the task as the raw model scores it.
        run: the command and what its names stand for.
        stored: scores of every method.
        can: the model's capabilities.
        of_ttm: settings of TTM, which those of a method that is TTM begin with.

    Raises:
        DataError: a method has no scores or no record, or scores that it does not give.
    """
    task = scored.spec.task
    shared = MethodRun(scored.raw, scored.spec.shape, scored.metrics, run.config.run_seeds)
    for name in run.config.methods:
        spec, arguments = run.registry.method(name), settings_for(run.config, name)
        record, arrays = document.methods.get(task, {}).get(name), stored.scores.get(name)
        notes = document.notes.get(task, [])
        if record is None and arrays is None and _is_undefined(spec, arguments, scored, can, notes):
            continue
        if arrays is None:
            raise DataError(f"its scores lack method '{name}', which the command names (--save_scores stores them)")
        if record is None:
            raise DataError(f"methods.{task}.{name} is missing, and there are scores of this method")
        seeds = shared.seeds_of(spec)
        if len(arrays) != len(seeds):
            raise DataError(f"scores of method '{name}' are of {len(arrays)} seeds, the command gives {len(seeds)}")
        known = _Known(document, scored, run.config, shared, record, arrays)
        if set(spec.needs) == {"scores"}:
            yield known.again(spec, arguments)
        else:
            settings = (
                recorded(settings_of(spec, arguments, of_ttm)) if spec.is_ttm else checked_settings(spec, arguments)
            )
            yield known.as_stored(spec, _plain(settings))


def unaudited(columns: Sequence[MethodScores], config: RunConfig, registry: Registry) -> list[str]:
    """Methods that nothing shows to answer alike whatever the order of captions: neither a label audit nor a rerun."""
    if config.audit_labels:
        return []
    specs = [registry.method(column.name) for column in columns]
    return [spec.name for spec in specs if set(spec.needs) != {"scores"}]


def _is_undefined(
    spec: MethodSpec,
    arguments: Mapping[str, object],
    scored: Scored,
    can: Collection[str],
    notes: Collection[str],
) -> bool:
    """Whether a method may be omitted on this task; what a model's gradients and images allow, its notes say."""
    if refusal(spec, scored.spec, settings=arguments) is not None or (spec.takes_features and "DualEncoder" not in can):
        return True
    by_model = spec.trains or "views" in spec.needs
    return by_model and any(note.startswith(f"method '{spec.name}' was not run: ") for note in notes)


@dataclass(frozen=True)
class _Known:
    """What a submission has of one method on one task."""

    document: ResultsDocument
    scored: Scored
    config: RunConfig
    shared: MethodRun
    record: MethodRecord
    arrays: list[Scores]

    def again(self, spec: MethodSpec, arguments: Mapping[str, object]) -> MethodScores:
        """The column of a method of scores, run again; DataError if the stored scores are not what it gives."""
        for name, value in checked_settings(spec, arguments).items():
            if isinstance(value, int) and value > MOST_ITERATIONS:
                raise DataError(f"method '{spec.name}' has {name}={value}, at most {MOST_ITERATIONS} are taken")
        column = self.shared.column(spec, arguments)
        most = ROUNDING * max(1.0, float(np.ptp(self.scored.raw.groups)))
        for stored, expected in zip(self.arrays, column.scores, strict=True):
            if not np.abs(stored.groups - expected.groups).max() <= most:
                raise DataError(f"scores of method '{spec.name}' are not those that it makes of the raw scores")
        record = {**column.record, "settings": _plain(column.record["settings"]), **self._checks(spec)}
        levels, stated = dict(column.chance or {}), self._stated_levels(spec)
        for metric, level in levels.items():
            value = stated.get(metric)
            levels[metric] = value if level and value and abs(value - level) <= NEAR_CHANCE else level
        made = MethodScores(spec.name, self.arrays, record, track=column.track, chance=levels)
        return self._with_stated_times(made)

    def as_stored(self, spec: MethodSpec, settings: Record) -> MethodScores:
        """The column of a method that takes the model: its scores as stored, and what follows from them."""
        kind = kind_of(spec)
        seeds = self.shared.seeds_of(spec)
        positions = [
            self.shared.positions(spec, scores.groups, seed) for scores, seed in zip(self.arrays, seeds, strict=True)
        ]
        trained = self.record.trained
        absent = {name for name in ("references", "reward_model") if getattr(self.record, name) is None}
        chance = {"distribution": DISTRIBUTIONS[kind], "draws": DRAWS[kind]}
        record = {
            **self.record.model_dump(mode="json", exclude={"audit_labels", "holdout", "differences", *absent}),
            **spec.declared,
            **self._checks(spec),
            "settings": settings,
            "seeds": list(seeds),
            "trained": None if trained is None else {**trained.model_dump(), "train": settings.get("train")},
            "chance": None if spec.trains else chance,
            "positions": np.mean(positions, axis=0).tolist(),
        }
        levels = None if spec.trains else self._stated_levels(spec)
        return MethodScores(spec.name, self.arrays, record, track=spec.track, chance=levels)

    def _checks(self, spec: MethodSpec) -> Record:
        """What the record has of the label audit and of held-out groups, whose numbers are as stated."""
        checks: Record = {}
        if self.config.audit_labels:
            clear = [is_clear(match_groups(fewer_first(scores.groups))) for scores in self.arrays]
            counts = {"compared": sum(int(mask.sum()) for mask in clear), "of": sum(map(len, clear))}
            checks["audit_labels"] = {"passed": True, **counts}
        if self.config.ttm_holdout is not None and spec.leaves_model:
            if self.record.holdout is None:
                raise DataError(f"method '{spec.name}' has no held-out groups, for which the command asks")
            data, groups = self.scored.data, len(self.scored.raw.groups)
            clusters = np.arange(groups) if data.clusters is None else data.clusters.groups
            held = int(held_out(clusters, self.config.ttm_holdout, self.config.seed).sum())
            parts = {"share": self.config.ttm_holdout, "adapted": groups - held, "scored": held}
            checks["holdout"] = {**self.record.holdout.model_dump(mode="json"), **parts}
        return checks

    def _stated_levels(self, spec: MethodSpec) -> dict[str, float | None]:
        """Chance levels as the document states them: those on random features take the model, which scores them."""
        stated, levels = self.document.chance.get(self.scored.spec.task, {}), {}
        for metric in self.scored.metrics:
            value = stated.get(key_of(metric.name, spec.name)) if metric.scope == "group" else None
            if value is not None and not 0 <= value <= 1:
                raise DataError(f"the chance level of {metric.name} after {spec.name} is {value}, no fraction")
            levels[metric.name] = value
        return levels

    def _with_stated_times(self, column: MethodScores) -> MethodScores:
        """The column with the seconds of the document."""
        for made, stated in zip(column.record["cost"], self.record.cost, strict=False):
            made["seconds"] = stated.seconds
        return column


def _plain(settings: Mapping[str, object]) -> Record:
    """Settings as JSON has them: lists for tuples."""
    return dict(json.loads(json.dumps(settings)))
