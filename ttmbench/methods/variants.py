"""The test-time stage of one task: TTM, SimpleMatch's overfitting step, the oracle, the controls, the label audit.

Here TTM's choices meet the labels, for the report alone. Every variant starts from the same model and restores it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from ttmbench._annotations import Int
from ttmbench._arrays import chosen_positions
from ttmbench.config import DEFAULT_LEARNING_RATE, NO_LEARNING_RATE, RunConfig, TTMConfig
from ttmbench.data.task_file import TaskSpec
from ttmbench.errors import AssertionNotMet, UsageError
from ttmbench.methods.audit import held_out_record
from ttmbench.methods.checkpoint import AFTER_SEED, AfterSeed, SeedProgress, TaskCheckpoint
from ttmbench.methods.parameters import trained_record
from ttmbench.methods.parts import CONTROLS, DEFAULT_PARTS, Parts, Supervision, algorithm1_selection, load_parts, oracle
from ttmbench.methods.training import Original, Step, TrainingState, cost_of, restored, trained_sizes
from ttmbench.methods.ttm import Kept, ShuffledTask, adapt, overfit
from ttmbench.plugins.registry import Registry
from ttmbench.results.summary import held_out, metric_mean
from ttmbench.scoring.dual_encoder import PreparedTask
from ttmbench.scoring.inputs import Rows, subset
from ttmbench.types import IterationRecord, MethodSpec, MetricSpec, Record, Scores


@dataclass(frozen=True)
class Adaptation:
    """A task, a model and the settings of the test-time stage."""

    registry: Registry  # schedules and hooks
    spec: TaskSpec  # the task
    stage: PreparedTask  # model and prepared inputs
    raw: Scores  # scores of the model as it is
    settings: TTMConfig  # hyperparameters
    metrics: Sequence[MetricSpec]  # what is reported of every iteration
    seeds: Sequence[int]  # one run each
    seed: int = 0  # of what all seeds share: the split of the holdout
    clusters: Int[np.ndarray, " groups"] | None = None  # equal where groups share an image; None if none do
    checkpoint: TaskCheckpoint = field(default_factory=TaskCheckpoint)  # where iterations are stored while it runs
    divided: bool = False  # whether processes on other devices ran the seeds, which are reported to plugins here

    @property
    def learning_rate(self) -> float:
        """The user's, the task's or the model's, or else the package's default."""
        return self.settings.lr or DEFAULT_LEARNING_RATE

    @property
    def parts(self) -> Parts:
        """The parts of TTM that the settings name."""
        return load_parts(self.registry, self.settings) if self.settings.other_parts else DEFAULT_PARTS

    @property
    def truth(self) -> np.ndarray:
        """True captions by their positions in the task's order, int [units, images of a unit], as `Step.captions`."""
        if self.spec.is_global:
            return self.raw.truth[:, None]
        fewer = min(self.raw.groups.shape[1:])
        return np.broadcast_to(np.arange(fewer), (len(self.raw.groups), fewer))

    def header(self, runs: Mapping[int, SeedProgress]) -> Record:
        """What the record of each method has: its seeds, what was trained at which cost, and the positions chosen."""
        record: Record = {"seeds": list(runs)}
        if not self.spec.is_global:
            shares = [
                chosen_positions(ShuffledTask(self.stage, seed).shuffled(run.final))
                for seed, run in runs.items()
                if run.final is not None
            ]
            record["positions"] = np.mean(shares, axis=0).tolist()
        rows, sizes = self.stage.prepared.rows, trained_sizes(self.stage.adapter, self.settings.train)
        images, captions = (len(np.unique(side)) for side in (rows.images, rows.captions))
        record["trained"] = trained_record(self.settings.train, sizes)
        record["cost"] = [
            cost_of(self.stage, self.settings, run.steps, sizes).record(
                images, captions, sum(step.seconds for step in run.steps)
            )
            for run in runs.values()
        ]
        return record

    def holdout(self, spec: MethodSpec, share: float) -> Record:
        """Trains on a part of the groups and scores the others before and after it: does the gain carry over?

        Groups that share an image are on the same side, so that no image that is scored was trained on. ``share`` is
        the fraction of groups that are held out; UsageError if it leaves one side without groups, or all groups share
        images.
        """
        clusters = np.arange(len(self.raw.groups)) if self.clusters is None else self.clusters
        is_held = held_out(clusters, share, self.seed)
        held, used = np.flatnonzero(is_held), np.flatnonzero(~is_held)
        apart = replace(self.stage, prepared=subset(self.stage.prepared, held))
        part = replace(self, stage=replace(self.stage, prepared=subset(self.stage.prepared, used)))
        raw_held = apart.score()
        part = replace(part, raw=part.stage.score())
        runs = part.runs(spec, name=f"{spec.name}_held_out", evaluate=apart.score)
        after = [run.final for run in runs.values() if run.final is not None]
        return held_out_record(share, len(used), clusters[held], self.metrics, raw_held, after)

    def steps(
        self,
        seed: int,
        supervision: Supervision = algorithm1_selection,
        resume: TrainingState | None = None,
        keep: Kept | None = None,
    ) -> Iterator[Step]:
        """One seed's iterations; the model is changed, and the caller restores it."""
        return adapt(
            self.stage,
            self.raw,
            config=self.settings,
            schedule=self.registry.schedules[self.settings.schedule],
            learning_rate=self.learning_rate,
            seed=seed,
            supervision=supervision,
            parts=self.parts,
            resume=resume,
            keep=keep,
        )

    def runs(
        self,
        spec: MethodSpec,
        after: AfterSeed = AFTER_SEED,
        *,
        name: str | None = None,
        evaluate: Callable[[], Scores] | None = None,
    ) -> dict[int, SeedProgress]:
        """Runs a method for every seed, from the same model, or from where an earlier run stopped.

        Args:
            spec: the method.
            after: what follows each seed.
            name: of its checkpoints, in place of the method's.
            evaluate: gives the final scores of the adapted model, by default those of the last iteration.
        """
        runs: dict[int, SeedProgress] = {}
        about = {"settings": {**self.settings.model_dump(mode="json"), "lr": self.learning_rate}}
        original: Original | None = None
        for seed in self.seeds:
            checkpoint = self.checkpoint.seed(name or spec.name, seed, self.raw)
            progress = checkpoint.read(partial(after.is_done, seed))
            steps, final = list(progress.steps), progress.final
            for step in steps if self.divided and evaluate is None else ():
                self._notify(spec, step, seed)
            if final is None:
                original = original or Original(self.stage)
                with original.adapted():
                    for step in self._iterations(spec, seed, progress.state, checkpoint.keep):
                        steps.append(step)
                        if evaluate is None:
                            self._notify(spec, step, seed)
                    after.do(seed, about)
                    final = steps[-1].scores if evaluate is None else evaluate()
                checkpoint.finish(final, len(steps))
            runs[seed] = SeedProgress(tuple(steps), None, final)
        return runs

    def _iterations(
        self, spec: MethodSpec, seed: int, resume: TrainingState | None = None, keep: Kept | None = None
    ) -> Iterator[Step]:
        """One seed's iterations, of TTM or of SimpleMatch's overfitting step (section 3.1)."""
        if not _overfits(spec):
            labels = oracle(self.truth) if "labels" in spec.needs else CONTROLS.get(spec.name, algorithm1_selection)
            return self.steps(seed, labels, resume, keep)
        return overfit(
            *(self.stage, self.raw),
            config=self.settings,
            learning_rate=self.learning_rate,
            seed=seed,
            parts=self.parts,
            resume=resume,
            keep=keep,
        )

    def _notify(self, spec: MethodSpec, step: Step, seed: int) -> None:
        about = {"task": self.spec.task, "method": spec.name, "record": self.record_of(step, seed)}
        self.registry.notify("ttmbench_iteration_finished", **about)

    def lines(self, runs: Mapping[int, SeedProgress]) -> list[dict[str, object]]:
        """Every iteration as the results document has it."""
        records = [self.record_of(step, seed) for seed, run in runs.items() for step in run.steps]
        return [{**vars(record), "loss": list(record.loss), "metrics": dict(record.metrics)} for record in records]

    def permuted(self, seed: int) -> tuple[Adaptation, np.ndarray]:
        """The same task with the captions of every group in another order, and that order, int [groups, captions].

        With more images than captions, the images are permuted.
        """
        rows = self.stage.prepared.rows
        of_images = rows.images.shape[1] > rows.captions.shape[1]
        options = rows.images if of_images else rows.captions
        rng = np.random.default_rng([seed, 4])
        order = rng.permuted(np.broadcast_to(np.arange(options.shape[1]), options.shape), axis=1)
        turned = np.take_along_axis(options, order, axis=1)
        again = Rows(turned, rows.captions) if of_images else Rows(rows.images, turned)
        stage = replace(self.stage, prepared=replace(self.stage.prepared, rows=again))
        return replace(self, stage=stage, raw=stage.score()), order

    def audit(self, spec: MethodSpec, first: Mapping[int, SeedProgress]) -> dict[str, object]:
        """Runs every seed again with the captions of each group in another order; every selection must map back."""
        for seed, run in first.items():
            other_run, order = self.permuted(seed)
            count = 0
            with restored(other_run.stage):
                for count, permuted_step in enumerate(other_run._iterations(spec, seed), start=1):
                    step = run.steps[min(count, len(run.steps)) - 1]
                    _compare(self.spec, seed, step, permuted_step, self._unpermuted(permuted_step.captions, order))
            if count != len(run.steps):
                raise AssertionNotMet(
                    f"task '{self.spec.task}', seed {seed}: with the captions of every group in another order, the run "
                    f"stops after iteration {count} and not {len(run.steps)}: its stopping rule reads positions"
                )
        groups = sum(len(run.steps[-1].selected) for run in first.values() if run.steps)
        return {"passed": True, "compared": groups, "of": groups}

    def _unpermuted(self, captions_found: np.ndarray, order: np.ndarray) -> np.ndarray:
        """Captions of a run on permuted groups by their positions in the task's own order."""
        if not self.spec.is_global:
            return np.take_along_axis(order, captions_found, axis=1)
        captions = order.shape[1]
        flat = np.arange(len(order))[:, None] * captions + order
        return np.asarray(flat.reshape(-1)[captions_found])

    def record_of(self, step: Step, seed: int) -> IterationRecord:
        """An iteration with what the labels say of it, for the report."""
        right = (step.captions == self.truth).all(axis=1)
        count = int(step.selected.sum())
        return IterationRecord(
            seed=seed,
            iteration=step.iteration,
            threshold=step.threshold,
            selected=count,
            candidates=len(step.selected),
            coverage=count / len(step.selected),
            tied=int(step.tie.sum()),
            pseudo_label_accuracy=int(right[step.selected].sum()) / count if count else None,
            loss=step.loss,
            learning_rate=step.learning_rate,
            metrics={metric.name: metric_mean(metric, step.scores) for metric in self.metrics},
            seconds=step.seconds,
        )

    def notes(self) -> list[str]:
        """The origin of the learning rate where nobody states it."""
        note = self.settings.lr_note or (None if self.settings.lr is not None else NO_LEARNING_RATE)
        return [] if note is None else [f"learning rate {self.learning_rate:g}: {note}"]


def _overfits(spec: MethodSpec) -> bool:
    return spec.target.endswith(":overfit")


def _compare(spec: TaskSpec, seed: int, step: Step, other: Step, captions: np.ndarray) -> None:
    """Raises AssertionNotMet unless both runs selected the same units with the same captions.

    Of a tied unit, which is selected only where ties are included, another caption is as good.
    """
    differs = step.selected != other.selected
    differs |= step.selected & ~step.tie & (step.captions != captions).any(axis=1)
    if differs.any():
        unit = int(np.argmax(differs))
        raise AssertionNotMet(
            f"task '{spec.task}', seed {seed}: with the captions of every group in another order, iteration "
            f"{step.iteration} selects otherwise ({int(differs.sum())} of {len(differs)} units, the first is {unit}; "
            f"thresholds {step.threshold:.6g} and {other.threshold:.6g}): something reads positions, or the model's "
            "scores depend on what stands beside them"
        )


def adapted_folders(config: RunConfig, tasks: Sequence[str], new: bool) -> dict[tuple[str, int], Path]:
    """(task, seed) -> folder of ``--save_adapted``: the folder itself for one task and seed, else a folder for each.

    None of them is made but the first; empty if nothing is to be saved. UsageError if the folder cannot be made, or if
    it is to be ``new`` (no run is resumed) and is not empty.
    """
    if config.save_adapted is None:
        return {}
    folder, seeds = Path(config.save_adapted), config.run_seeds
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if new and any(folder.iterdir()):
            raise UsageError(f"--save_adapted {folder} is not empty; name a new folder")
    except OSError as error:
        raise UsageError(f"--save_adapted {folder} cannot be written to: {error.strerror or error}") from None
    if len(tasks) == 1 and len(seeds) == 1:
        return {(tasks[0], seeds[0]): folder}
    return {(task, seed): folder / task / f"seed_{seed}" for task in tasks for seed in seeds}
