"""One task of a run for a model that answers in words: forced choices instead of scores."""

from __future__ import annotations

import time

from ttmbench.evaluator.plan import Run, TaskPlan
from ttmbench.evaluator.score_task import load_data
from ttmbench.evaluator.task_result import Answered, Data
from ttmbench.protocols import ChoiceStyle
from ttmbench.scoring.forced_choice.arrays import choice_values, unread_notes
from ttmbench.scoring.forced_choice.ask import Given, ask_choices
from ttmbench.scoring.forced_choice.prompts import image_prompt, text_prompt
from ttmbench.types import Record


def ask_task(plan: TaskPlan, run: Run) -> Answered:
    """Asks a task's forced choices; errors as for `ttmbench.evaluator.task.run_task`."""
    config, clock = run.config, time.perf_counter()
    adapter = run.capabilities.choice_scorer
    assert adapter is not None, "the plan says so"
    loaded = load_data(run.registry, config, plan.task, run.samples)
    groups, started = loaded.groups, time.perf_counter()
    answered = ask_choices(run.capabilities, groups, run.sizer, config.seed)
    seconds = {"load": started - clock, "score": time.perf_counter() - started}
    orders = 1 if adapter.choice_style.order == "random" else 2
    record = {**_questions(plan, adapter.choice_style, orders, config.seed), "unread": []}
    answers: list[list[Record]] = [[] for _ in groups]
    for given in answered.given:
        asked = given.asked
        answers[asked.group].append(
            {
                "question": _name(given),
                "order": list(asked.order),
                "prompt": asked.prompt,
                "answer": given.answer,
                "chosen": given.chosen,
                "right": given.right,
            }
        )
        if given.chosen is None:
            unread = {"group_id": groups[asked.group].group_id, "question": _name(given), "answer": given.answer}
            record["unread"].append(unread)
    notes = unread_notes([(row["group_id"], row["question"], row["answer"]) for row in record["unread"]])
    if config.adapts:
        notes.append(
            f"model {config.model} answers in words and has no scores, so it can be neither matched nor adapted"
        )
    if config.save_scores:
        notes.append("forced choices have no scores, so --save_scores wrote none; --log_samples writes the answers")
    return Answered(
        spec=plan.spec,
        metrics=[run.registry.metric(name) for name in choice_values(answered.choices)],
        data=Data(groups, loaded.source, answered.fingerprint, answered.clusters),
        notes=notes,
        seconds=seconds,
        choices=answered.choices,
        record=record,
        answers=answers,
    )


def _questions(plan: TaskPlan, style: ChoiceStyle, orders: int, seed: int) -> Record:
    """The results document's record of the questions."""
    shape = plan.spec.shape
    prompts = {} if shape.more_images else {"text": text_prompt(["{caption}"] * shape.captions)}
    if shape.images > 1:
        prompts["image"] = image_prompt("{caption}", shape.images)
    return {
        "asked": list(prompts),
        "orders": orders,
        "order": style.order,
        "seed": seed,
        "side_by_side": style.side_by_side,
        "prompts": prompts,
    }


def _name(given: Given) -> str:
    """The question, counted from 1: which caption fits image 1, which image fits caption 2."""
    return f"{'image' if given.asked.side == 'text' else 'caption'} {given.asked.subject + 1}"
