"""One task of a run for a model that answers in words: forced choices instead of scores."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ttmbench.evaluator.outcome import TaskOutcome
from ttmbench.evaluator.plan import RunContext, TaskPlan
from ttmbench.evaluator.score_task import load_data
from ttmbench.protocols import ChoiceStyle
from ttmbench.results.labels import split_key
from ttmbench.results.tag_means import tag_means_of_values
from ttmbench.scoring.forced_choice.arrays import CHOICE, choice_values
from ttmbench.scoring.forced_choice.ask import Answered, Given, ask_choices
from ttmbench.scoring.forced_choice.prompts import image_prompt, text_prompt
from ttmbench.scoring.forced_choice.summary import summarise_choices, unread_notes
from ttmbench.types import Group, GroupShape


def run_choice_task(plan: TaskPlan, context: RunContext) -> TaskOutcome:
    """Asks a task's forced choices; errors as for `ttmbench.evaluator.task.run_task`.

    Returns:
        Numbers under the filter ``choice``, the answers as samples lines, and no score arrays.
    """
    spec, config, clock = plan.spec, context.config, time.perf_counter()
    adapter = context.capabilities.choice_scorer
    assert adapter is not None, "the plan says so"
    groups, source = load_data(context.registry, config, plan.task, context.samples)
    loaded = time.perf_counter()
    answered = ask_choices(context.capabilities, groups, context.batch_sizer, config.seed)
    asked = time.perf_counter()
    style = adapter.choice_style
    orders = 1 if style.order == "random" else 2
    summary = summarise_choices(
        answered.choices,
        spec.shape,
        orders,
        config.bootstrap_iters,
        config.seed,
        config.interval,
        answered.clusters,
    )
    record = _record(answered.given, groups, style, orders, spec.shape, config.seed)
    notes = unread_notes([(row["group_id"], row["question"], row["answer"]) for row in record["unread"]])
    if config.adapts:
        notes.append(
            f"model {config.model} answers in words and has no scores, so it can be neither matched nor adapted"
        )
    if config.save_scores:
        notes.append("forced choices have no scores, so --save_scores wrote none; --log_samples writes the answers")
    return TaskOutcome(
        spec=spec,
        metrics=[context.registry.metric(split_key(key)[0]) for key in summary.tracks],
        groups=groups,
        source=source,
        fingerprint=answered.fingerprint,
        scores={},
        summary=summary,
        records={CHOICE: record},
        notes=notes,
        seconds={"load": loaded - clock, "score": asked - loaded},
        choices=answered.choices,
        own_lines=_lines(answered, groups),
        clusters=answered.clusters,
        tag_means=tag_means_of_values(
            groups,
            choice_values(answered.choices),
            CHOICE,
            spec.means,
            answered.clusters,
            (config.bootstrap_iters, config.seed, config.interval),
        ),
    )


def _record(
    given: Sequence[Given], groups: Sequence[Group], style: ChoiceStyle, orders: int, shape: GroupShape, seed: int
) -> dict[str, Any]:
    sides = [*([] if shape.more_images else ["text"]), *(["image"] if shape.images > 1 else [])]
    prompts = {
        "text": None if shape.more_images else text_prompt(["{caption}"] * shape.captions),
        "image": image_prompt("{caption}", shape.images) if shape.images > 1 else None,
    }
    return {
        "asked": sides,
        "orders": orders,
        "order": style.order,
        "seed": seed,
        "side_by_side": style.side_by_side,
        "prompts": {side: prompts[side] for side in sides},
        "unread": [
            {"group_id": groups[one.asked.group].group_id, "question": _name(one), "answer": one.answer}
            for one in given
            if one.chosen is None
        ],
    }


def _lines(answered: Answered, groups: Sequence[Group]) -> list[dict[str, Any]]:
    """One samples line a group."""
    values = choice_values(answered.choices)
    answers: list[list[dict[str, Any]]] = [[] for _ in groups]
    for one in answered.given:
        answers[one.asked.group].append(
            {
                "question": _name(one),
                "order": list(one.asked.order),
                "prompt": one.asked.prompt,
                "answer": one.answer,
                "chosen": one.chosen,
                "right": one.right,
            }
        )
    cluster_of = answered.clusters.names([group.group_id for group in groups])
    return [
        {
            "group_id": group.group_id,
            "cluster": cluster_of[position],
            "filter": CHOICE,
            "seed_index": 0,
            "seed": None,
            "captions": list(group.captions),
            "images": [image.name for image in group.images],
            "answers": answers[position],
            "metrics": {metric: float(right[position]) for metric, right in values.items()},
            "tags": dict(group.tags),
        }
        for position, group in enumerate(groups)
    ]


def _name(one: Given) -> str:
    """The question as people count: which caption fits image 1, which image fits caption 2."""
    return f"{'image' if one.asked.side == 'text' else 'caption'} {one.asked.subject + 1}"
