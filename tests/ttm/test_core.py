"""The parts of TTM one by one, on a model of two layers: batches, random streams, thresholds, resumed runs."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from support.small_models import USUAL, Towers, adapt, overfit, stage_of, task_of

from ttmbench import schedules
from ttmbench.config import TTMConfig
from ttmbench.errors import DivergedError, TtmbenchError
from ttmbench.methods import model_task as trainer
from ttmbench.methods import parts as algorithm
from ttmbench.methods import training
from ttmbench.methods.controls import exchanged
from ttmbench.methods.model_task import ModelTask, PseudoLabels, Selection
from ttmbench.methods.training import Iteration, TrainingPairs
from ttmbench.methods.ttm import select, thresholds
from ttmbench.metrics import group_match, group_score
from ttmbench.scoring.dual_encoder import PreparedTask
from ttmbench.types import ScheduleSpec, Scores

LINEAR = ScheduleSpec("linear", schedules.linear)


def same_steps(one: Iteration, other: Iteration) -> bool:
    arrays = ("captions", "selected", "tie")
    return (
        all(np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays)
        and np.array_equal(one.scores.groups, other.scores.groups)
        and (one.iteration, one.threshold, one.loss, one.learning_rate)
        == (other.iteration, other.threshold, other.loss, other.learning_rate)
    )


# --- batches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("images", "captions", "is_global", "units", "batch"),
    [
        (1, 4, False, 1000, 100),
        (1, 4, False, 408, 102),
        (1, 4, False, 99, 99),
        (2, 1, False, 1000, 100),  # each caption chooses an image
        (2, 2, False, 1000, 50),
        (2, 3, False, 1000, 50),
        (2, 2, True, 1000, 100),  # pairs of fifty groups
        (1, 2, True, 1000, 100),
        (4, 4, True, 1000, 200),
    ],
)
def test_the_default_batch_is_fifty_groups_or_a_hundred_with_one_image(images, captions, is_global, units, batch):
    stage = stage_of(units // images if is_global else units, images, captions, is_global)
    own = 7 * (min(images, captions) if is_global else 1)
    for config, expected in ((TTMConfig(), batch), (TTMConfig(batch_groups=7), own)):
        task = ModelTask(stage, None, config, 0, *USUAL)
        next(task.iterations())
        assert task._batch == expected


@pytest.mark.parametrize(
    ("groups", "shape", "batches"),
    [(205, (1, 3), [103, 102]), (230, (1, 3), [100, 100, 30]), (102, (2, 2), [102, 102]), (60, (2, 2), [100, 20])],
)
def test_a_default_run_takes_batches_of_that_size(groups, shape, batches):
    """A batch of 51 groups with two images holds 102 pairs; 230 is more than 15 % above 200, so 30 groups are left."""
    stage = stage_of(groups, *shape)
    config = TTMConfig(iterations=1, epochs=2, tau_start=0.0)
    (step,) = adapt(stage, stage.score(), config=config, schedule=LINEAR, learning_rate=1e-4, seed=0)
    assert step.selected.all() and stage.adapter.seen == 2 * batches


def test_batches_a_little_larger_at_the_very_limit():
    """At most 15 % of a batch may be left over to make batches larger."""
    found = [training.batch_units(total, 100) for total in (0, 1, 100, 101, 115, 116, 200, 215, 216)]
    assert found == [1, 1, 100, 101, 115, 100, 100, 108, 100]
    assert [training.batch_units(total, 20) for total in (23, 24, 43)] == [23, 20, 22]


# --- the optimiser and random streams -----------------------------------------------------------------------------


def test_an_iteration_begins_with_a_new_optimiser_unless_its_state_is_kept(monkeypatch):
    used, pairs, stage = [], TrainingPairs(*np.arange(3).reshape(1, 3, 1).repeat(2, 0)), stage_of(3)
    monkeypatch.setattr(trainer, "gradient", lambda *given: used.append(given[1:5]) or torch.zeros(()))
    for keep, distinct in ((True, 1), (False, 3)):
        used.clear()
        one = ModelTask(stage, None, TTMConfig(keep_optimizer_state=keep, epochs=1, lr=1e-3), 5, *USUAL)
        turns = one.iterations()
        assert next(turns) == 1
        assert torch.initial_seed() == 5, "dropout is drawn by the seed"
        for iteration in (1, 2, 3):
            assert one.fit(iteration, pairs) == (0.0,)
        assert len({id(optimizer) for *_, optimizer in used}) == distinct
        for t, (images, *_) in enumerate(used, start=1):
            assert torch.equal(images, stage.prepared.images[np.random.default_rng([5, t]).permutation(3)])
        assert [one.rate(t) for t in (1, 2, 3)] == pytest.approx([1e-3, 0.95e-3, 0.95**2 * 1e-3])
        assert one.fit(4, TrainingPairs(np.zeros((0, 1), int), np.zeros((0, 1), int))) == ()


def test_seeds_are_those_of_their_streams():
    """The order of captions, of batches and of a control's draws: other streams would be other numbers."""
    stage = stage_of(5, 2, 3)
    expected = np.random.default_rng([9, 0]).permuted(np.tile(np.arange(3), (5, 1)), axis=1)
    assert np.array_equal(ModelTask(stage, None, TTMConfig(), 9, *USUAL)._order, expected)
    whole = ModelTask(stage_of(5, is_global=True), None, TTMConfig(), 9, *USUAL)._order
    assert np.array_equal(whole, np.random.default_rng([9, 0]).permutation(10))
    drawn = []

    def control(task, choice, tie):
        drawn.append(task.draws().random())
        return choice

    config = TTMConfig(iterations=2, epochs=1, tau_start=0.0)
    options = {"config": config, "schedule": LINEAR, "learning_rate": 1e-4, "seed": 9}
    list(adapt(stage, stage.score(), supervision=control, **options))
    assert drawn == [np.random.default_rng([9, t, 2]).random() for t in (1, 2)]


# --- thresholds ---------------------------------------------------------------------------------------------------


def labels(confidence, tie=None) -> PseudoLabels:
    tie = np.zeros(len(confidence), bool) if tie is None else np.array(tie)
    return PseudoLabels(np.zeros((len(confidence), 1), int), np.array(confidence, float), tie)


def test_the_first_threshold():
    def first_threshold(config, given, by_share):
        return thresholds(config, LINEAR, given, by_share)[0]

    ten = labels(np.arange(10.0), [False] * 6 + [True] * 4)
    assert first_threshold(TTMConfig(tau_start=0.0), ten, False) == 0.0
    assert first_threshold(TTMConfig(), ten, True) == 0.5
    assert first_threshold(TTMConfig(), ten, False) == 3.0, "three of ten, among those without a tie"
    assert first_threshold(TTMConfig(coverage=1.0), ten, False) == 0.0
    assert first_threshold(TTMConfig(), labels([5.0, 7.0], [True, True]), False) == 0.0, "nothing to choose from"
    assert first_threshold(TTMConfig(), labels([5.0, 7.0, 8.0, 9.0, 1.0], [False] + [True] * 4), False) == 5.0


@pytest.mark.parametrize(
    ("confidence", "tie", "threshold", "rule", "expected"),
    [
        ([3, 0, 2, 2], "0100", 2.0, {"by_share": False}, "1011"),
        ([3, 0, 2, 2], "0100", 0.0, {"by_share": False}, "1011"),
        ([3, 2], "10", 2.0, {"by_share": False}, "01"),
        ([3, 0, 2, 2], "0100", 0.75, {"by_share": True}, "1000"),
        ([3, 0, 2, 2], "0100", 0.0, {"by_share": True}, "1011"),
        ([3, 0, 2, 2], "0100", 1.0, {"by_share": True}, "0000"),
        ([9, 9, 1, 2], "1100", 0.5, {"by_share": True}, "0011"),  # tied units count for the number
        ([9, 9, 1, 2], "1100", 0.75, {"by_share": True}, "0001"),
        ([1, 5, 1, 1], "0000", 0.5, {"by_share": True}, "0101"),  # of equals at the end the later ones
        ([9, 9, 1, 2], "1100", 0.5, {"by_share": True, "ties": "include"}, "1100"),
        ([9, 9, 1, 2], "1100", 2.0, {"by_share": False, "ties": "include"}, "1101"),
    ],
)
def test_what_a_threshold_selects(confidence, tie, threshold, rule, expected):
    selected = select(labels(confidence, [one == "1" for one in tie]), threshold, **rule)
    assert "".join(str(int(one)) for one in selected) == expected


def test_the_share_rule_counts_as_the_authors_do():
    """Rounded down, of all assigned pairs; a share that is a whole number of them in decimals is that number."""
    for count, taus, selected in (
        (800, np.linspace(0.5, 0.0, 10), [400, 444, 488, 533, 577, 622, 666, 711, 755, 800]),
        (30, (0.9, 0.7, 0.4, 0.31), [3, 9, 18, 20]),
        (10, (0.7, 0.7 + 0.5e-11, 0.7 + 1.5e-11, 0.7 + 1e-7), [3, 3, 2, 2]),  # only rounding is forgiven
        (10, (1.2, -1.0), [0, 10]),
    ):
        units = labels(np.arange(float(count)))
        assert [int(select(units, tau, by_share=True).sum()) for tau in taus] == selected


def test_two_pseudo_labels_are_exchanged():
    task, given = task_of(stage_of(1)), Selection(np.array([[0], [1], [2]]), np.array([True, False, True]))
    moved = exchanged(task, given, given.selected)
    assert moved.captions.tolist() == [[2], [1], [0]] and moved.selected.tolist() == [True, False, True]
    given.selected[0] = False
    assert not exchanged(task, given, given.selected).selected.any(), "one pseudo-label cannot be moved"
    fifty = Selection(np.arange(50)[:, None], np.ones(50, bool))
    order = task.draws().permutation(50)
    assert exchanged(task, fifty, fifty.selected).captions[order, 0].tolist() == np.roll(order, 1).tolist()


@pytest.mark.parametrize("values", [[1.0], [1.0, np.nan], [1.0, np.inf], [1.0, 2.0, 3.0]])
def test_a_schedule_gives_one_finite_threshold_an_iteration(values):
    stage = stage_of(4)
    bad = ScheduleSpec("bad", lambda *_: np.array(values))
    with pytest.raises(TtmbenchError, match="schedule 'bad' gave thresholds"):
        next(adapt(stage, stage.score(), config=TTMConfig(iterations=2), schedule=bad, learning_rate=1e-4, seed=0))


# --- iterations ---------------------------------------------------------------------------------------------------


def recorded(run, stage, config, **more):
    """Steps of a run, and copies of what it kept after each."""
    kept = []

    def keep(state):
        assert len(state.steps) == len(kept) + 1
        kept.append(copy.deepcopy(state))

    return list(run(stage, stage.score(), config=config, learning_rate=3e-2, seed=1, keep=keep, **more)), kept


@pytest.mark.parametrize("keep_state", [False, True])
@pytest.mark.parametrize("run", [adapt, overfit])
def test_a_resumed_run_is_the_run_that_never_stopped(run, keep_state):
    """Weights, scores, the optimiser's state and torch's own draws (dropout) go on where they were."""
    config = TTMConfig(iterations=4, epochs=3, batch_groups=4, keep_optimizer_state=keep_state, lr_restart=0.5)
    more = {"schedule": LINEAR} if run is adapt else {}
    stage = stage_of(12, 2, 3, model=Towers(dropout=0.5))
    raw = stage.score()
    steps, states = recorded(run, stage, config, **more)
    assert [step.iteration for step in steps] == [1, 2, 3, 4] == [state.turns for state in states]
    assert all(bool(state.optimizers) == keep_state for state in states)
    for done in (1, 3):
        again = stage_of(12, 2, 3, model=Towers(dropout=0.5))
        resumed = run(
            again, raw, config=config, learning_rate=3e-2, seed=1, resume=copy.deepcopy(states[done - 1]), **more
        )
        found = list(resumed)
        assert len(found) == 4 - done and all(map(same_steps, found, steps[done:]))
        if run is overfit:
            assert {step.threshold for step in found} == {0.0} and all(step.selected.all() for step in found)


def test_overfitting_ends_once_nothing_is_left_to_learn():
    flat = Scores(np.ones((6, 2, 2)))
    config = TTMConfig(iterations=3, epochs=1)
    steps = list(overfit(stage_of(6), flat, config=config, learning_rate=1e-3, seed=0))
    assert len(steps) == 1 and steps[0].loss == () and steps[0].scores is flat, "every group ties"
    stage = stage_of(6, is_global=True)
    steps = list(overfit(stage, stage.score(), config=config, learning_rate=1e-6, seed=0))
    assert len(steps) == 3 and steps[0].selected.all(), "pairs of one assignment have no group score"
    stage = stage_of(3)
    long = TTMConfig(iterations=30, epochs=20)
    raw = stage.score()
    steps, states = recorded(overfit, stage, long)
    assert 1 <= len(steps) < 30 and all(np.array_equal(step.captions, steps[0].captions) for step in steps)
    assert group_score(steps[-1].scores.groups).tolist() == group_match(raw.groups).tolist(), "SimpleMatch's claim"
    again = overfit(stage_of(3), raw, config=long, learning_rate=3e-2, seed=1, resume=states[-1])
    assert list(again) == [], "it had ended"


def test_a_group_fits_its_pseudo_label():
    wide = np.array([[[1.0, 5.0, 2.0], [4.0, 3.0, 0.0]]])
    assert algorithm.all_fit(wide, np.array([[1, 0]])) and not algorithm.all_fit(wide, np.array([[0, 1]]))
    assert not algorithm.all_fit(np.concatenate([wide, wide]), np.array([[1, 0], [2, 0]]))
    narrow = np.array([[[1.0, 4.0], [2.0, 0.0], [5.0, 3.0]]])
    assert algorithm.all_fit(narrow, np.array([[2, 0]])), "captions choose among three images"
    assert not algorithm.all_fit(narrow, np.array([[0, 2]]))


def test_scores_that_are_not_finite_end_a_run():
    stage = stage_of(4)

    class Broken(PreparedTask):
        def score(self, blocks=None):
            return Scores(np.array([[[1.0, np.nan], [0.0, 1.0]]]))

    broken = Broken(stage.adapter, stage.prepared, 64, False, False)
    config = TTMConfig(iterations=1, epochs=1, tau_start=0.0)
    for run, more in ((adapt, {"schedule": LINEAR}), (overfit, {})):
        with pytest.raises(DivergedError, match=r"after iteration 1 .*lr=1.0e-05"):
            list(run(broken, stage.score(), config=config, learning_rate=1e-4, seed=0, **more))
