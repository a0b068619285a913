"""The contract of a part of TTM, checked on a small task; used by `ttmbench.testing.check_method`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ttmbench.config import TTMConfig
from ttmbench.methods.contract import CAPTION_TEXTS, Outcome, random_images
from ttmbench.schedules import SCHEDULES
from ttmbench.scoring.capabilities import TrainableDualEncoder
from ttmbench.scoring.inputs import Prepared, Rows
from ttmbench.scoring.prepare import PreparedTask
from ttmbench.ttm.algorithm import adapt
from ttmbench.ttm.other_parts import cross_entropy
from ttmbench.ttm.parts import Parts, load_part
from ttmbench.ttm.trainer import Step, TrainingState, restored
from ttmbench.types import MethodPart

GROUPS = 6
CONFIG = TTMConfig(iterations=3, epochs=1, batch_groups=2, coverage=0.5)


def outcomes_of_part(
    spec: MethodPart, adapter: TrainableDualEncoder, settings: Mapping[str, object]
) -> Iterator[Outcome]:
    """Yields the outcome of every check of a part with a model; UsageError for a part that cannot be run."""
    parts = replace(Parts(), **{spec.kind: load_part(spec, settings)})
    if spec.kind == "pseudo_labels":
        parts = replace(parts, loss=cross_entropy)  # works with soft and hard labels
    yield "settings can be read", True, ""
    rows = np.arange(2 * GROUPS).reshape(GROUPS, 2)
    images = adapter.prepare_images(random_images(2 * GROUPS))
    prepared = Prepared(images, adapter.prepare_captions(list(CAPTION_TEXTS[: 2 * GROUPS])), Rows(rows, rows))
    trial = _Trial(PreparedTask(adapter, prepared, 64, False, False), parts)
    whole, states = trial.run()
    yield "three iterations, or fewer with a stopping rule, are run", len(whole) in (3, *range(1, 3)), f"{len(whole)}"
    again, _ = trial.run()
    yield "the same seed gives the same scores", _same(whole, again), "they differ"
    order = np.random.default_rng(4).permuted(np.broadcast_to(np.arange(2), (GROUPS, 2)), axis=1)
    there = Rows(rows, np.take_along_axis(rows, order, axis=1))
    turned, _ = _Trial(replace(trial.stage, prepared=replace(prepared, rows=there)), parts).run()
    equal = len(turned) == len(whole) and all(
        np.array_equal(step.selected, turned_step.selected)
        and np.array_equal(
            step.captions[step.selected], np.take_along_axis(order, turned_step.captions, 1)[step.selected]
        )
        for step, turned_step in zip(whole, turned, strict=True)
    )
    yield "captions in another order are selected alike", equal, "a selection or a pseudo-label differs"
    rest, _ = trial.run(states[0])
    yield "a stopped run is resumed with equal bits", _same(whole, [whole[0], *rest]), "its scores differ"


@dataclass(frozen=True)
class _Trial:
    """TTM with a part on a small task."""

    stage: PreparedTask
    parts: Parts

    def run(self, resume: TrainingState | None = None) -> tuple[list[Step], list[TrainingState]]:
        """All iterations and the state after each; the model is restored."""
        states: list[TrainingState] = []

        def keep(step: Step, state: TrainingState) -> None:
            model = {name: tensor.detach().clone() for name, tensor in state.model.items()}
            teacher = {name: value.clone() for name, value in state.extra.items()}
            states.append(replace(state, model=model, extra=teacher))

        with restored(self.stage):
            steps = adapt(
                *(self.stage, self.stage.score()),
                config=CONFIG,
                schedule=SCHEDULES[0],
                learning_rate=1e-3,
                seed=0,
                parts=self.parts,
                resume=resume,
                keep=keep,
            )
            return list(steps), states


def _same(left: list[Step], right: list[Step]) -> bool:
    return len(left) == len(right) and all(
        np.array_equal(a.scores.groups, b.scores.groups) for a, b in zip(left, right, strict=True)
    )
