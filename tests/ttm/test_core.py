"""The parts of TTM one by one, on a model of two layers: batches, random streams, thresholds, resumed runs."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ttmbench import schedules
from ttmbench.config import TTMConfig
from ttmbench.errors import AssertionNotMet, DivergedError, TtmbenchError, UsageError
from ttmbench.scoring.batch_size import BatchSizer
from ttmbench.scoring.inputs import Prepared, Rows
from ttmbench.scoring.prepared_task import PreparedTask
from ttmbench.ttm import algorithm, finetune, trainer, variants
from ttmbench.ttm.algorithm import Selection, ShuffledTask, Step, adapt, overfit
from ttmbench.ttm.finetune import TrainingPairs
from ttmbench.ttm.selection import PseudoLabels, first_threshold, select
from ttmbench.ttm.supervision import shuffle
from ttmbench.types import ScheduleSpec, Scores

LINEAR = ScheduleSpec("linear", schedules.linear)


class Towers(torch.nn.Module):
    """Two linear layers, dropout in training, and what each batch held."""

    trains_in_parts = True

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.image, self.caption = torch.nn.Linear(4, 5), torch.nn.Linear(4, 5)
        self.drop, self.seen = torch.nn.Dropout(dropout), []

    def prepare_images(self, images): ...

    def prepare_captions(self, captions): ...

    def encode_images(self, prepared):
        return self.image(prepared).detach()

    def encode_captions(self, prepared):
        return self.caption(prepared).detach()

    def logits(self, images, captions):
        return (images @ captions.T).detach()

    def train_images(self, prepared):
        return self.drop(self.image(prepared))

    def train_captions(self, prepared):
        return self.caption(prepared)

    def loss_of(self, images, captions):
        scores, own = images @ captions.T, torch.arange(len(images))
        return torch.nn.functional.cross_entropy(scores, own)

    def matching_loss(self, images, captions):
        self.seen.append(len(images))
        return self.loss_of(self.train_images(images), self.train_captions(captions))


def stage_of(groups, images=2, captions=2, is_global=False, model=None, size=64, enlarged=None) -> PreparedTask:
    rng = np.random.default_rng(1)
    sides = [torch.from_numpy(rng.normal(size=(groups * each, 4)).astype(np.float32)) for each in (images, captions)]
    rows = Rows(*(np.arange(groups * each).reshape(groups, each) for each in (images, captions)))
    prepared = Prepared(*sides, rows, enlarged)
    return PreparedTask(model or Towers(), prepared, size, is_global, is_global)


class Bar:
    """What a progress bar was told."""

    def __init__(self) -> None:
        self.moved, self.said = [], []

    def update(self, steps=1):
        self.moved.append(steps)

    def set_postfix_str(self, text):
        self.said.append(text)

    def __enter__(self):
        return self

    def __exit__(self, *error): ...


@pytest.fixture
def bars(monkeypatch):
    made = []

    def progress_bar(total, what, unit):
        made.append(Bar())
        made[-1].total = total
        return made[-1]

    monkeypatch.setattr(algorithm, "progress_bar", progress_bar)
    return made


def same_steps(one: Step, other: Step) -> bool:
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
    stage = stage_of(3, images, captions, is_global)
    assert trainer.Trainer(stage, TTMConfig(), 1e-3, 0, units)._batch == batch
    own = trainer.Trainer(stage, TTMConfig(batch_groups=7), 1e-3, 0, units)._batch
    assert own == 7 * (min(images, captions) if is_global else 1)


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
    found = [trainer.batch_units(total, 100) for total in (0, 1, 100, 101, 115, 116, 200, 215, 216)]
    assert found == [1, 1, 100, 101, 115, 100, 100, 108, 100]
    assert [trainer.batch_units(total, 20) for total in (23, 24, 43)] == [23, 20, 22]


# --- the optimiser and random streams -----------------------------------------------------------------------------


def test_an_iteration_begins_with_a_new_optimiser_unless_its_state_is_kept(monkeypatch):
    used, pairs = [], TrainingPairs(np.zeros((1, 1), int), np.zeros((1, 1), int))
    monkeypatch.setattr(trainer, "finetune", lambda *given, **more: used.append((given[3], more)) or (0.0,))
    for keep, distinct in ((True, 1), (False, 3)):
        used.clear()
        one = trainer.Trainer(stage_of(3), TTMConfig(keep_optimizer_state=keep), 1e-3, 5, 3)
        assert torch.initial_seed() == 5, "dropout is drawn by the seed"
        for iteration in (1, 2, 3):
            assert one.train(iteration, pairs, Bar()) == (0.0,)
        assert len({id(optimizer) for optimizer, _ in used}) == distinct
        draws = [[more[name].random() for name in ("rng", "crop_rng")] for _, more in used]
        assert draws == [
            [np.random.default_rng([5, t]).random(), np.random.default_rng([5, t, 1]).random()] for t in (1, 2, 3)
        ]
        assert [more["learning_rate"] for _, more in used] == pytest.approx([1e-3, 0.95e-3, 0.95**2 * 1e-3])
        assert one.train(4, TrainingPairs(np.zeros((0, 1), int), np.zeros((0, 1), int)), Bar()) == ()


def test_progress_counts_every_epoch(bars):
    stage = stage_of(6)
    config = TTMConfig(iterations=2, epochs=3, tau_start=0.0)
    list(adapt(stage, stage.score(), config=config, schedule=LINEAR, learning_rate=1e-4, seed=0))
    assert (
        bars[0].total == 6 and bars[0].moved == [0, 1, 1, 1, 1, 1, 1] and bars[0].said[-1].startswith("iteration 2/2")
    )
    flat = Scores(np.ones((6, 2, 2)))
    list(adapt(stage, flat, config=replace_config(config, iterations=1), schedule=LINEAR, learning_rate=1e-4, seed=0))
    assert bars[1].moved == [0, 3], "an iteration without training"


def replace_config(config, **changes):
    return config.model_copy(update=changes)


def test_seeds_are_those_of_their_streams():
    """The order of captions, of batches and of a control's draws: other streams would be other numbers."""
    stage = stage_of(5, 2, 3)
    expected = np.random.default_rng([9, 0]).permuted(np.tile(np.arange(3), (5, 1)), axis=1)
    assert np.array_equal(ShuffledTask(stage, 9)._order, expected)
    whole = ShuffledTask(stage_of(5, is_global=True), 9)._order
    assert np.array_equal(whole, np.random.default_rng([9, 0]).permutation(10))
    drawn = []

    def control(proposal):
        drawn.append((proposal.rng.random(), proposal.n_captions, proposal.is_global))
        return proposal.choice

    config = TTMConfig(iterations=2, epochs=1, tau_start=0.0)
    options = {"config": config, "schedule": LINEAR, "learning_rate": 1e-4, "seed": 9}
    list(adapt(stage, stage.score(), supervision=control, **options))
    assert drawn == [(np.random.default_rng([9, t, 2]).random(), 3, False) for t in (1, 2)]


def test_crops_are_drawn_by_seed_and_iteration():
    corners = []
    model = Towers()
    model.prepare_enlarged = lambda *_: None
    model.crop = lambda enlarged, given: corners.append(given) or enlarged[:, :4]
    enlarged = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
    stage = stage_of(6, model=model, enlarged=enlarged)
    config = TTMConfig(iterations=2, epochs=1, tau_start=0.0)
    list(adapt(stage, stage.score(), config=config, schedule=LINEAR, learning_rate=1e-4, seed=4))
    for t, given in enumerate(corners, 1):
        assert np.array_equal(given, np.random.default_rng([4, t, 1]).random((12, 2)))


def test_states_of_generators_come_back(monkeypatch):
    state, given = torch.get_rng_state(), []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.tensor([device]))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda value, device: given.append((value.tolist(), device)))
    states = trainer.random_state()
    assert set(states) == {"cpu", "cuda:1"} and torch.equal(states["cpu"], state)
    first = torch.rand(2)
    trainer.set_random_state(states)
    assert torch.equal(torch.rand(2), first) and given == [([1], "cuda:1")]


# --- thresholds ---------------------------------------------------------------------------------------------------


def labels(confidence, tie=None) -> PseudoLabels:
    tie = np.zeros(len(confidence), bool) if tie is None else np.array(tie)
    return PseudoLabels(np.zeros((len(confidence), 1), int), np.array(confidence, float), tie)


def test_the_first_threshold():
    ten = labels(np.arange(10.0), [False] * 6 + [True] * 4)
    assert first_threshold(TTMConfig(tau_start=0.0), ten, False) == 0.0
    assert first_threshold(TTMConfig(), ten, True) == 0.5
    assert first_threshold(TTMConfig(), ten, False) == 3.0, "three of ten, among those without a tie"
    assert first_threshold(TTMConfig(coverage=1.0), ten, False) == 0.0
    assert first_threshold(TTMConfig(), labels([5.0, 7.0], [True, True]), False) == 0.0, "nothing to choose from"
    assert first_threshold(TTMConfig(), labels([5.0, 7.0, 8.0, 9.0, 1.0], [False] + [True] * 4), False) == 5.0


def test_what_the_share_rule_keeps():
    ten = labels(np.arange(10.0))
    kept = [int(select(ten, 0.7 + lost / 10, by_share=True).sum()) for lost in (0, 0.5e-10, 1.5e-10, 1e-6)]
    assert kept == [3, 3, 2, 2], "only rounding is forgiven"
    assert not select(ten, 1.2, by_share=True).any() and select(ten, -1.0, by_share=True).all()
    assert select(labels([1.0, 2.0], [True, False]), 0.5, by_share=False).tolist() == [False, True]
    assert select(labels([3.0, 2.0], [True, False]), 2.0, by_share=False).tolist() == [False, True]


def test_two_pseudo_labels_are_exchanged():
    given = SimpleNamespace(
        choice=Selection(np.array([[0], [1], [2]]), np.array([True, False, True])), rng=np.random.default_rng(0)
    )
    assert shuffle(given).captions.tolist() == [[2], [1], [0]] and shuffle(given).selected.tolist() == [
        True,
        False,
        True,
    ]
    fifty = SimpleNamespace(choice=Selection(np.arange(50)[:, None], np.ones(50, bool)), rng=np.random.default_rng(7))
    order = np.random.default_rng(7).permutation(50)
    assert shuffle(fifty).captions[order, 0].tolist() == np.roll(order, 1).tolist()


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

    def keep(step, state):
        kept.append((step, copy.deepcopy(state)))

    steps = list(run(stage, stage.score(), config=config, learning_rate=3e-2, seed=1, keep=keep, **more))
    assert [one for one, _ in kept] == steps
    return steps, [state for _, state in kept]


@pytest.mark.parametrize("keep_state", [False, True])
@pytest.mark.parametrize("run", [adapt, overfit])
def test_a_resumed_run_is_the_run_that_never_stopped(run, keep_state, bars):
    """Weights, scores, the optimiser's state and torch's own draws (dropout) go on where they were."""
    config = TTMConfig(iterations=4, epochs=3, batch_groups=4, keep_optimizer_state=keep_state, lr_restart=0.5)
    more = {"schedule": LINEAR} if run is adapt else {}
    stage = stage_of(12, 2, 3, model=Towers(dropout=0.5))
    raw = stage.score()
    steps, states = recorded(run, stage, config, **more)
    assert [step.iteration for step in steps] == [1, 2, 3, 4] == [state.iteration for state in states]
    assert all((state.optimizer is not None) == keep_state for state in states)
    for done in (1, 3):
        again = stage_of(12, 2, 3, model=Towers(dropout=0.5))
        resumed = run(
            again, raw, config=config, learning_rate=3e-2, seed=1, resume=copy.deepcopy(states[done - 1]), **more
        )
        found = list(resumed)
        assert len(found) == 4 - done and all(map(same_steps, found, steps[done:]))
        assert bars[-1].total == 12 and bars[-1].moved == [3 * done] + [1] * (3 * (4 - done))
        if run is overfit:
            assert {step.threshold for step in found} == {0.0} and all(step.selected.all() for step in found)


def test_captions_are_matched_once_an_iteration(monkeypatch):
    calls, plain = [], ShuffledTask.propose
    monkeypatch.setattr(ShuffledTask, "propose", lambda self, scores: calls.append(1) or plain(self, scores))
    stage = stage_of(6)
    config = TTMConfig(iterations=3, epochs=1)
    list(adapt(stage, stage.score(), config=config, schedule=LINEAR, learning_rate=1e-3, seed=0))
    assert len(calls) == 3
    list(overfit(stage, stage.score(), config=config, learning_rate=1e-3, seed=0))
    assert len(calls) == 4, "its pseudo-labels never change"


def test_seconds_are_those_of_the_iteration(monkeypatch):
    ticks = iter(range(100, 1000, 3))
    monkeypatch.setattr(algorithm.time, "perf_counter", lambda: next(ticks))
    stage = stage_of(6)
    config = TTMConfig(iterations=2, epochs=1)
    steps = list(adapt(stage, stage.score(), config=config, schedule=LINEAR, learning_rate=1e-3, seed=0))
    steps += overfit(stage, stage.score(), config=config, learning_rate=1e-6, seed=0)
    assert [step.seconds for step in steps] == [3] * 4


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
    steps, states = recorded(overfit, stage, long)
    assert 1 <= len(steps) < 30
    again = overfit(stage_of(3), stage.score(), config=long, learning_rate=3e-2, seed=1, resume=states[-1])
    assert list(again) == [], "it had ended"


def test_a_group_fits_its_pseudo_label():
    wide = np.array([[[1.0, 5.0, 2.0], [4.0, 3.0, 0.0]]])
    assert algorithm._fits(wide, np.array([[1, 0]])) and not algorithm._fits(wide, np.array([[0, 1]]))
    assert not algorithm._fits(np.concatenate([wide, wide]), np.array([[1, 0], [2, 0]]))
    assert algorithm._fits(wide.swapaxes(1, 2), np.array([[1, 0]])), "captions choose among three images"


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


@pytest.mark.parametrize("shape", [(2, 2), (1, 3), (2, 3), (2, 1), (3, 2)])
def test_pairs_of_a_model_that_says_yes_or_no_are_all_of_a_group(shape):
    stage = replace(stage_of(5, *shape), adapter=SimpleNamespace())
    blind, rng = ShuffledTask(stage, 2), np.random.default_rng(0)
    fewer, more = sorted(shape)
    captions = np.array([rng.permutation(more)[:fewer] for _ in range(5)])
    chosen = np.array([True, False, True, True, False])
    found, own = blind.pairs(Selection(captions, chosen)), blind.unshuffle(captions)
    rows = stage.prepared.rows
    sides = (rows.captions, rows.images) if shape[0] > shape[1] else (rows.images, rows.captions)
    for place, group in enumerate(np.flatnonzero(chosen)):
        pairs = []
        for chooser in range(fewer):
            for option in blind._order[group]:
                pair = (sides[0][group, chooser], sides[1][group, option])
                pairs.append((*(pair[::-1] if shape[0] > shape[1] else pair), own[group, chooser] == option))
        columns = (found.images[place], found.captions[place], found.matched[place])
        assert list(zip(*(column.tolist() for column in columns), strict=True)) == pairs
    with pytest.raises(UsageError, match="the global variant has no groups"):
        ShuffledTask(replace(stage_of(5, is_global=True), adapter=SimpleNamespace()), 0).pairs(
            Selection(np.arange(10)[:, None], np.ones(10, bool))
        )


# --- training -----------------------------------------------------------------------------------------------------


def test_the_learning_rate_of_every_step(monkeypatch):
    stage, rates = stage_of(6), []
    optimizer = finetune.make_optimizer(stage.adapter, TTMConfig())
    assert optimizer.param_groups[0]["weight_decay"] == 0.05 and optimizer.param_groups[0]["betas"] == (0.9, 0.999)
    assert optimizer.param_groups[0]["fused"]
    monkeypatch.setattr(optimizer, "step", lambda: rates.append(optimizer.param_groups[0]["lr"]))
    pairs, said, beats = TrainingPairs(stage.prepared.rows.images, stage.prepared.rows.captions), [], []
    monkeypatch.setattr(finetune, "step_done", lambda: beats.append(1))
    options = {"learning_rate": 2.0, "batch": 4, "rng": np.random.default_rng(0)}
    losses = finetune.finetune(
        *(stage.adapter, stage.prepared, pairs, optimizer),
        config=TTMConfig(epochs=2),
        epoch_done=said.append,
        **options,
    )
    assert rates == pytest.approx([2 * (0.1 + 0.45 * (1 + math.cos(math.pi * step / 4))) for step in range(4)])
    assert said == list(losses) and len(losses) == 2 and len(beats) == 4
    rates.clear()
    finetune.finetune(
        *(stage.adapter, stage.prepared, pairs, optimizer),
        config=TTMConfig(epochs=2),
        factor=lambda step, steps: step + steps / 10,
        **options,
    )
    assert rates == pytest.approx([2 * (step + 0.4) for step in range(4)])


def test_the_optimiser_is_fused_where_it_can_be():
    whole = [torch.nn.Parameter(torch.zeros(2, dtype=torch.long), requires_grad=False)]
    other = [torch.nn.Parameter(torch.zeros(2, device="meta"))]
    for parameters in (whole, other):
        adapter = SimpleNamespace(parameters=lambda parameters=parameters: parameters)
        assert not finetune.make_optimizer(adapter, TTMConfig()).param_groups[0]["fused"]


@pytest.mark.parametrize("part", [1, 3, 4, 7])
def test_a_gradient_in_parts_is_that_of_the_whole_batch(part):
    """Up to the rounding of float32 in sums of seven rows of five numbers, relative to the largest gradient."""
    stage = stage_of(7, 1, 3)
    model, images, captions = stage.adapter, stage.prepared.images, stage.prepared.captions[:7]
    whole = model.matching_loss(images, captions)
    whole.backward()
    expected = {name: one.grad.clone() for name, one in model.named_parameters()}
    model.zero_grad()
    loss = finetune.contrastive_in_parts(model, images, captions, part)
    assert float(loss) == pytest.approx(float(whole.detach()), rel=64 * 2.0**-23)
    bound = 64 * 2.0**-23 * max(float(one.abs().max()) for one in expected.values())
    for name, one in model.named_parameters():
        assert torch.allclose(one.grad, expected[name], rtol=0, atol=bound), name
    sizer = BatchSizer(64)
    sizer.training = part
    before, optimizer = len(model.seen), finetune.make_optimizer(model, TTMConfig())
    batch = finetune._TrainingBatch(images, captions, None)
    finetune._gradient(model, batch, optimizer, sizer)
    assert len(model.seen) - before == (1 if part == 7 else 0), "in one piece where a part holds all of it"


class YesOrNo:
    """A pair model of one weight: says of a pair whether it matches."""

    def __init__(self) -> None:
        self.weight, self.sizes = torch.nn.Parameter(torch.tensor(0.3)), []

    def parameters(self):
        return [self.weight]

    def pair_loss(self, images, captions, matched):
        self.sizes.append(len(matched))
        wanted = torch.from_numpy(matched.astype(np.float32))
        return torch.nn.functional.binary_cross_entropy_with_logits((images * captions).sum(1) * self.weight, wanted)

    def state_dict(self):
        return {"weight": self.weight.data}

    def load_state_dict(self, state):
        self.weight.data.copy_(state["weight"])


def test_pairs_that_match_or_not_are_trained_in_parts():
    rng, model = np.random.default_rng(0), YesOrNo()
    images, captions = (torch.from_numpy(rng.normal(size=(7, 3)).astype(np.float32)) for _ in range(2))
    matched = rng.random(7) < 0.5
    whole = model.pair_loss(images, captions, matched)
    whole.backward()
    gradient = float(model.weight.grad)
    for part, sizes in ((3, [3, 3, 1]), (7, [7]), (64, [7])):
        model.weight.grad, model.sizes = None, []
        loss = finetune._pairs_in_parts(model, finetune._TrainingBatch(images, captions, matched), part)
        assert model.sizes == sizes and float(loss) == pytest.approx(float(whole.detach()), rel=64 * 2.0**-23)
        assert float(model.weight.grad) == pytest.approx(gradient, abs=64 * 2.0**-23)
    optimizer, sizer = finetune.make_optimizer(model, TTMConfig()), BatchSizer(4)
    for training, sizes in ((None, [4, 3]), (2, [2, 2, 2, 1])):
        sizer.training, model.sizes = training, []
        finetune._gradient(model, finetune._TrainingBatch(images, captions, matched), optimizer, sizer)
        assert model.sizes == sizes and float(model.weight.grad) == pytest.approx(gradient, abs=64 * 2.0**-23)


def out_of_memory_above(limit, plain):
    def work(*given):
        if len(given[-1]) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(*given)

    return work


def test_training_that_runs_out_of_memory_goes_on_in_parts(capsys):
    stage = stage_of(8, 1, 2)
    model, images, captions = stage.adapter, stage.prepared.images, stage.prepared.captions[:8]
    batch, optimizer = finetune._TrainingBatch(images, captions, None), finetune.make_optimizer(model, TTMConfig())
    expected = float(finetune._gradient(model, batch, optimizer, BatchSizer(64)))
    gradient = model.image.weight.grad.clone()
    model.train_captions = out_of_memory_above(2, model.train_captions)
    sizer = BatchSizer(64)
    assert float(finetune._gradient(model, batch, optimizer, sizer)) == pytest.approx(expected, rel=64 * 2.0**-23)
    assert sizer.training == 2 and "out of memory while training on 8 images" in capsys.readouterr().err
    assert torch.allclose(model.image.weight.grad, gradient, rtol=0, atol=float(gradient.abs().max()) * 64 * 2.0**-23)
    model.trains_in_parts = False
    with pytest.raises(TtmbenchError, match="cannot compute the gradient in parts"):
        finetune._gradient(model, batch, optimizer, BatchSizer(64))
    pairs = YesOrNo()
    pairs.pair_loss = out_of_memory_above(2, pairs.pair_loss)
    sizer = BatchSizer(5)
    matched = finetune._TrainingBatch(images, captions, np.arange(8) % 2 == 0)
    finetune._gradient(pairs, matched, finetune.make_optimizer(pairs, TTMConfig()), sizer)
    assert sizer.training == 2 and pairs.sizes == [2, 2, 2, 2], "half of five, rounded up, and half of three"


def test_images_stay_where_they_would_fill_the_device(monkeypatch):
    """A quarter of what is free on a GPU, and no byte more; another device does not say how much it has."""
    pixels = torch.zeros(2, 10, dtype=torch.uint8)
    for free, moves in ((80, True), (79, False), (400, True)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 10**9))
        moved = []

        class Bytes(torch.Tensor):
            def to(self, device, moved=moved):
                moved.append(device)
                return self

        given = pixels.as_subclass(Bytes)
        assert finetune._moved(given, torch.device("cuda", 0)) is given and bool(moved) == moves
        assert finetune._moved({"pixel_values": given}, torch.device("cuda", 0)).keys() == {"pixel_values"}
        assert len(moved) == 2 * moves
        finetune._moved(given, torch.device("meta"))
        assert len(moved) == 2 * moves + 1


# --- what is reported ---------------------------------------------------------------------------------------------


def step_of(selected, captions, tau=0.5) -> Step:
    selected, captions = np.array(selected), np.array(captions)
    return Step(1, tau, captions, selected, ~selected, (1.0,), 1e-3, Scores(np.zeros((len(selected), 2, 2))), 2.0)


def test_an_iteration_is_counted_against_the_truth():
    stage = stage_of(4)
    spec = SimpleNamespace(is_global=False, task="t", matching="group")
    one = variants.Adaptation(None, spec, stage, stage.score(), TTMConfig(), "auto", [], [0])
    record = one.record_of(step_of([True, True, True, False], [[0, 1], [1, 0], [0, 1], [0, 1]]), 3)
    assert (record.seed, record.selected, record.candidates, record.coverage, record.tied) == (3, 3, 4, 0.75, 1)
    assert record.pseudo_label_accuracy == 2 / 3 and record.seconds == 2.0
    assert one.record_of(step_of([False] * 4, [[0, 1]] * 4), 0).pseudo_label_accuracy is None
    assert one.seed == 0 and not one.silent and one.truth.tolist() == [[0, 1]] * 4
    wide, narrow = stage_of(3, 2, 4), stage_of(3, 3, 1)
    assert replace(one, raw=wide.score()).truth.tolist() == [[0, 1]] * 3
    assert replace(one, raw=narrow.score()).truth.tolist() == [[0]] * 3
    everywhere = stage_of(3, is_global=True)
    over_all = replace(one, raw=everywhere.score(), stage=everywhere, spec=SimpleNamespace(is_global=True))
    assert over_all.truth.tolist() == [[number] for number in range(6)]


def test_the_learning_rate_says_where_it_comes_from():
    for settings, value, source, noted in (
        (TTMConfig(), variants.DEFAULT_LEARNING_RATE, "default", True),
        (TTMConfig(lr=2e-5), 2e-5, "stated", False),
        (TTMConfig(lr=2e-5, lr_note="likely"), 2e-5, "stated", True),
    ):
        one = variants.Adaptation(None, None, None, None, settings, "auto", [], [0])
        assert one.learning_rate == value == one._hyperparameters()["lr"]
        record = one._rate_record()
        assert (record["value"], record["source"], record["note"] is not None) == (value, source, noted)
        assert len(one._notes()) == noted and (settings.lr_note is None or settings.lr_note in one._notes()[0])


def test_the_audit_compares_selections_and_their_captions():
    spec = SimpleNamespace(task="mine")
    one = step_of([True, False, True], [[0, 1], [0, 1], [1, 0]])
    variants._compare(spec, 0, one, one, one.captions)
    variants._compare(spec, 0, one, one, np.array([[0, 1], [1, 0], [1, 0]]))  # of what is not selected nothing is said
    others = (
        (step_of([True, True, True], one.captions), one.captions, "1 of 3 units, the first is 1"),
        (one, np.array([[0, 1], [0, 1], [1, 1]]), "1 of 3 units, the first is 2"),
        (step_of([False, True, True], one.captions), one.captions, "2 of 3 units, the first is 0"),
    )
    for other, captions, said in others:
        with pytest.raises(AssertionNotMet, match=said):
            variants._compare(spec, 0, one, other, captions)


def test_captions_of_permuted_groups_are_named_as_they_were():
    order = np.array([[2, 0, 1], [1, 2, 0]])
    one = variants.Adaptation(None, SimpleNamespace(is_global=False), None, None, TTMConfig(), "auto", [], [0])
    assert one._unpermuted(np.array([[0, 2], [1, 0]]), order).tolist() == [[2, 1], [2, 1]]
    whole = replace(one, spec=SimpleNamespace(is_global=True))
    assert whole._unpermuted(np.array([[0], [4], [5], [2]]), order).tolist() == [[2], [5], [3], [1]]


def test_where_adapted_models_go(tmp_path):
    def config(folder, seeds=(0,)):
        return SimpleNamespace(save_adapted=None if folder is None else str(folder), run_seeds=list(seeds))

    assert variants.adapted_folders(config(None), ["a"], True) == {}
    deep = tmp_path / "new" / "deep"
    assert variants.adapted_folders(config(deep), ["a"], True) == {("a", 0): deep} and deep.is_dir()
    assert variants.adapted_folders(config(deep), ["a", "b"], True) == {
        (task, 0): deep / task / "seed_0" for task in ("a", "b")
    }
    assert variants.adapted_folders(config(deep, (1, 2)), ["a"], True) == {
        ("a", seed): deep / "a" / f"seed_{seed}" for seed in (1, 2)
    }
    (deep / "x").touch()
    assert variants.adapted_folders(config(deep), ["a"], False), "an earlier run is resumed"
    with pytest.raises(UsageError, match="is not empty"):
        variants.adapted_folders(config(deep), ["a"], True)
    with pytest.raises(UsageError, match="cannot be written to"):
        variants.adapted_folders(config(deep / "x"), ["a"], False)
