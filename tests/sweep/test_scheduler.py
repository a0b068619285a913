from __future__ import annotations

import random
from collections import Counter

import pytest

from ttmbench.config import RunConfig
from ttmbench.evaluator.unit import Cell, Unit, UnitResult
from ttmbench.sweep.scheduler import ATTEMPTS, Scheduler

DONE, FAILED = UnitResult("done"), UnitResult("failed", "no good")


def cell(number: int, model: str = "m") -> Cell:
    return Cell(number, f"{model}/{number}", str(number), "", RunConfig(model=model, tasks=[str(number)]))


def whole(one: Cell):
    return [[Unit(one)]]


def seeds(one: Cell, count: int = 2):
    return [[Unit(one, "seed", seed) for seed in range(count)], [Unit(one)]]


def scheduled(stages, **workers: str) -> Scheduler:
    """A scheduler with workers x, y and z in the places that are given; without any, x and y in one."""
    scheduler = Scheduler(stages)
    for name, place in (workers or {"x": "here", "y": "here"}).items():
        scheduler.join(name, place)
    return scheduler


def test_a_worker_stays_with_its_model_and_others_take_other_models():
    """The first of each is loaded once, although the cells of both are mixed in the plan."""
    scheduler = scheduled([whole(cell(number, "ab"[number % 2])) for number in range(8)])
    models = {"x": [], "y": []}
    while not scheduler.over:
        for name in models:
            unit = scheduler.next(name)
            if unit is not None:
                models[name].append(unit.cell.config.model)
                scheduler.finish(name, unit, DONE)
    assert sorted(map(tuple, models.values())) == [("a",) * 4, ("b",) * 4]


def test_a_worker_without_work_helps_with_another_model():
    scheduler = scheduled([*[whole(cell(number, "a")) for number in range(5)], whole(cell(9, "b"))])
    first, second = scheduler.next("x"), scheduler.next("y")
    assert (first.cell.config.model, second.cell.config.model) == ("a", "a")  # 5 cells, and 1: half of 4 is still more
    scheduler.finish("x", first, DONE)
    assert scheduler.next("x").cell.config.model == "a"
    scheduler.finish("y", second, DONE)
    rest = [scheduler.next("y")]
    while rest[-1] is not None:
        scheduler.finish("y", rest[-1], DONE)
        rest.append(scheduler.next("y"))
    assert [unit.cell.config.model for unit in rest[:-1]] == ["a", "a", "b"]


def test_the_run_of_a_cell_comes_after_all_of_its_seeds():
    scheduler = scheduled([seeds(cell(1))], x="here", y="here", z="here")
    first, second = scheduler.next("x"), scheduler.next("y")
    assert {first.part, second.part} == {0, 1} and scheduler.next("z") is None
    assert scheduler.finish("x", first, DONE) is None and scheduler.next("x") is None
    scheduler.finish("y", second, DONE)
    last = scheduler.next("y")
    assert last.kind == "run"
    end = scheduler.finish("y", last, DONE)
    assert end.error is None and scheduler.over


def test_workers_begin_with_cells_of_their_own_before_they_share_one():
    scheduler = scheduled([seeds(cell(number)) for number in (1, 2)], x="here", y="here", z="here")
    assert [scheduler.next(name).cell.number for name in "xyz"] == [1, 2, 1]


def test_a_failed_unit_drops_what_waits_of_its_cell_and_nothing_else():
    scheduler = scheduled([seeds(cell(1), 3), whole(cell(2))], x="here", y="here", z="here")
    first, other, second = (scheduler.next(name) for name in "xyz")
    assert (first.cell.number, other.cell.number, second.cell.number) == (1, 2, 1)
    end = scheduler.finish("x", first, FAILED)
    assert (end.cell.number, end.error) == (1, "no good")
    assert scheduler.next("x") is None and not scheduler.over  # the others are out
    assert scheduler.finish("z", second, FAILED) is None, "the cell is over already"
    assert scheduler.finish("y", other, DONE).error is None
    assert scheduler.over and scheduler.left == 0


def test_raise_gives_out_nothing_more():
    scheduler = Scheduler([whole(cell(1)), whole(cell(2))], on_error="raise")
    scheduler.join("x", "here")
    scheduler.finish("x", scheduler.next("x"), FAILED)
    assert scheduler.next("x") is None and scheduler.over and scheduler.left == 1


@pytest.mark.parametrize(("other", "takes"), [("two", "z"), ("one", "y")])
def test_a_lost_unit_goes_to_another_place_if_there_is_one(other, takes):
    scheduler = scheduled([whole(cell(1))], x="one", y="one", z=other)
    unit = scheduler.next("x")
    assert scheduler.lose("x", "killed") == []
    assert takes == "y" or scheduler.next("y") is None
    assert scheduler.next(takes) == unit


def test_too_many_lost_workers_fail_the_cell():
    scheduler = Scheduler([whole(cell(1)), whole(cell(2))])
    for attempt in range(ATTEMPTS):
        scheduler.join(f"x{attempt}", "here")
        assert scheduler.next(f"x{attempt}").cell.number == 1
        ends = scheduler.lose(f"x{attempt}", "killed")
    assert [end.error for end in ends] == ["3 workers were lost with it; the last: killed"]
    scheduler.join("y", "here")
    assert scheduler.next("y").cell.number == 2


def test_what_one_place_lacks_another_may_have():
    scheduler = scheduled([whole(cell(1))], x="one", y="two")
    unit = scheduler.next("x")
    assert scheduler.finish("x", unit, UnitResult("unfit", "no weights")) is None
    assert scheduler.next("x") is None and scheduler.next("y") == unit
    assert scheduler.finish("y", unit, UnitResult("unfit", "no weights here either")).error == "no weights here either"
    assert scheduler.over
    alone = scheduled([whole(cell(1))], x="one")
    assert alone.finish("x", alone.next("x"), UnitResult("unfit", "no weights")).error == "no weights"


def test_the_last_place_that_could_do_it_is_lost():
    scheduler = scheduled([whole(cell(1)), whole(cell(2))], x="one", y="two")
    unit = scheduler.next("x")
    other = scheduler.next("y")
    scheduler.finish("x", unit, UnitResult("unfit", "no weights"))
    ends = scheduler.lose("y", "node gone")
    assert [(end.cell.number, end.error) for end in ends] == [(1, "no weights")]
    assert scheduler.next("x") == other


@pytest.mark.parametrize("seed", range(20))
def test_with_losses_at_random_every_unit_is_finished_once_and_none_is_given_out_again(seed):
    rng = random.Random(seed)
    stages, cells = [], [cell(number, rng.choice("abc")) for number in range(rng.randrange(1, 30))]
    for one in cells:
        kind = rng.random()
        stages.append(
            whole(one) if kind < 0.4 else seeds(one, 3) if kind < 0.8 else [[Unit(one, "groups")], *seeds(one)]
        )
    scheduler = Scheduler(stages, attempts=10**6)
    out: dict[str, Unit] = {}
    finished: Counter = Counter()
    lost: Counter = Counter()
    ended = []
    names = iter(range(10**6))
    for _ in range(4):
        scheduler.join(f"w{next(names)}", rng.choice("PQ"))
    idle = [f"w{number}" for number in range(4)]
    while not scheduler.over:
        for name in list(idle):
            unit = scheduler.next(name)
            if unit is not None:
                assert not finished[unit.key] and unit.key not in {one.key for one in out.values()}
                stage = next(stage for stage in stages[unit.cell.number] if unit in stage)
                before = stages[unit.cell.number][: stages[unit.cell.number].index(stage)]
                assert all(finished[one.key] for earlier in before for one in earlier)
                idle.remove(name)
                out[name] = unit
        assert out, "work is left, and nobody has any"
        name = rng.choice(sorted(out))
        unit = out.pop(name)
        if rng.random() < 0.3:
            lost[unit.key] += 1
            ended += scheduler.lose(name, "killed")
            fresh = f"w{next(names)}"
            scheduler.join(fresh, rng.choice("PQ"))
            idle.append(fresh)
        else:
            finished[unit.key] += 1
            ended += [end for end in [scheduler.finish(name, unit, DONE)] if end]
            idle.append(name)
    assert finished == Counter(unit.key for of_cell in stages for stage in of_cell for unit in stage)
    assert sorted(end.cell.number for end in ended) == [one.number for one in cells]
    assert all(end.error is None for end in ended) and scheduler.waiting == 0
    assert seed or lost
