"""One task of a run: planned, scored, adapted to by the methods that the run asks for, and summed up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ttmbench.config import TTMConfig
from ttmbench.data.task_file import TaskFile
from ttmbench.evaluator.adapters import finetuned
from ttmbench.evaluator.ranking_task import rank_task
from ttmbench.evaluator.score_task import Run, ask, plan_task, score
from ttmbench.evaluator.task_result import Answered, Scored, TaskResult
from ttmbench.model import ChoiceModel, DualEncoder, PairScorer
from ttmbench.results.document import MOST_UNDECIDED
from ttmbench.results.numbers import CHOICE, RAW, Number, as_entries, supervised_tracks
from ttmbench.results.summary import MethodScores, breakdowns, summarise
from ttmbench.types import Group, Record

ASKED_AGAIN = 8  # pairs, where all scores came from the cache


def run_task(
    run: Run, task: TaskFile, settings: TTMConfig, adapt: Callable[[Run, Scored], Scored] | None = None
) -> TaskResult:
    """Scores a task and adapts the model to it as ``adapt`` does; the model is restored afterwards.

    Without ``adapt``, where an adapted model is only measured, plugins hear of nothing. The failure of a method becomes
    part of the result; errors before it are those of `score`.
    """
    run = run.on(task.spec)
    run.model.notes()  # those of a task that failed are not this one's
    scorer = run.model if isinstance(run.model, PairScorer) else None
    if scorer is not None:
        scorer.take_undecided()
    result: TaskResult
    read = run.model.tokens_read
    if task.spec.kind != "groups":
        result = rank_task(run, task)
    else:
        plan, clock = plan_task(run, task, settings), time.perf_counter()
        inputs = run.load(task)
        loading = time.perf_counter() - clock
        if isinstance(run.model, ChoiceModel) and not isinstance(run.model, DualEncoder | PairScorer):
            result = ask(plan, run, run.model, inputs)
        else:
            result = score(plan, run, inputs)
        result = replace(result, seconds={"load": loading, **result.seconds})
    tokens = run.model.tokens_read - read
    undecided = None if scorer is None else _undecided(scorer, result.data.groups)
    found = {"pairs": 0, "of": 1, "mass": 1.0, **(undecided or {})}
    is_mentioned = found["mass"] >= 0.5 or found["pairs"] > MOST_UNDECIDED * found["of"]  # as undecided, with a remedy
    said = [] if is_mentioned else [f"P(yes) + P(no) is {found['mass']:.2g} on average: often something else is said"]
    result = replace(result, notes=[*result.notes, *said, *run.model.notes()], undecided=undecided, tokens=tokens)
    if isinstance(result, Scored):
        result = replace(result, notes=[*result.notes, *inputs.notes])
        if adapt is not None:
            notify_scored(run, result, result.columns[0])
            result = adapt(run, result)
        by_tag = breakdowns(result.data.groups, result.scores, result.metrics, result.spec.means)
        result = replace(result, breakdowns=by_tag, stage=None, parts=None)  # prepared inputs are not needed any more
    result = result.summarised((run.config.bootstrap_iters, run.config.seed, run.config.interval))
    if isinstance(result, Scored):
        is_blind = scorer is not None and scorer.blind
        return replace(result, notes=[*result.notes, *_blind_notes(result)]) if is_blind else result
    if adapt is not None:
        _notify(run, result.spec.task, CHOICE if isinstance(result, Answered) else RAW, result.numbers)
    return result


def notify_scored(run: Run, scored: Scored, column: MethodScores) -> None:
    """Tells plugins of a finished column."""
    if run.registry.manager.hook.ttmbench_task_scored.get_hookimpls():
        _notify(run, scored.spec.task, column.name, summarise([column], scored.metrics, 0, run.config.seed))


def _undecided(scorer: PairScorer, groups: Sequence[Group]) -> Record | None:
    """Pairs that the model left undecided since it was last asked; None where it was not asked, or never says.

    Scores from the cache or another device say nothing: some of the ``groups`` are then asked about again.
    """
    taken = scorer.take_undecided()
    if taken is None:
        return None
    if not taken.of and groups:
        for group in groups[:: max(1, len(groups) // ASKED_AGAIN)][:ASKED_AGAIN]:
            scorer.score_pairs([group.images[0].open()], [group.captions[0]])
        taken = scorer.take_undecided() or taken
    return {name: value for name, value in taken._asdict().items() if value is not None} if taken.of else None


def _notify(run: Run, task: str, name: str, numbers: Sequence[Number]) -> None:
    entries = as_entries(numbers)
    tracks = entries["tracks"] if finetuned(run.model) is None else supervised_tracks(entries["tracks"])
    run.registry.notify("ttmbench_task_scored", task=task, method=name, results=entries["results"], tracks=tracks)


def _blind_notes(result: Scored) -> list[str]:
    """How far the captions alone give the answer, measured by a scorer that never sees the image."""
    shape = result.spec.shape
    if shape.images > 1:
        return [
            f"the scorer never sees an image: in {shape} groups all images get equal scores, so text, image and group "
            "score and group match are 0 by construction; a task of this shape cannot be solved by its captions alone"
        ]
    for metric in ("text_score", "group_match"):
        number = next((one for one in result.numbers if (one.metric, one.method) == (metric, RAW)), None)
        if number is not None and number.value is not None and number.chance is not None:
            return [
                f"the scorer never sees an image, and is right in {100 * number.value:.2f} % of the groups, "
                f"{100 * (number.value - number.chance):+z.2f} points from chance: so much do the captions alone give "
                "away"
            ]
    return ["the scorer never sees an image"]
