"""Units done one after the other by a worker: the files they leave are those of a run that was stopped."""

from __future__ import annotations

import json
import shutil
import threading

import numpy as np
import pytest
from support.sweeps import SMALL, TTM, cells_of, numbers, write_plan

from ttmbench.cli import main
from ttmbench.errors import TtmbenchError
from ttmbench.evaluator import score_task
from ttmbench.evaluator import worker as worker_module
from ttmbench.evaluator.run import run
from ttmbench.evaluator.unit import Unit, units_of
from ttmbench.evaluator.worker import Worker
from ttmbench.sweep.folder import read_summary
from ttmbench.sweep.payload import changed, files_of, put_files, stamps, take_in


def cell(tmp_path, model="tiny-clip", **options):
    (one,) = cells_of(tmp_path, models=[model], tasks=["shapes_color"], options=SMALL | options)
    return one.cell


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The cell as one run, and its document."""
    folder = tmp_path_factory.mktemp("alone")
    one = cell(folder, **TTM, deterministic=True)
    run(one.config_at(folder))
    return one, folder / one.document


@pytest.fixture
def calls(monkeypatch):
    """How often models were loaded and tasks scored."""
    found = []
    for module, name in ((worker_module, "make_adapter"), (score_task, "load_task_data")):
        before = getattr(module, name)

        def counted(*given, before=before, name=name):
            found.append(name)
            return before(*given)

        monkeypatch.setattr(module, name, counted)
    return found


def test_seeds_apart_then_the_run_give_the_bits_of_one_run(tmp_path, alone, calls, monkeypatch):
    one, expected = alone
    worker = Worker(tmp_path)
    lines: list[str] = []
    for stage in units_of(one):
        for unit in reversed(stage):
            assert worker.do(unit, report=lines.append).state == "done"
    assert numbers(tmp_path / one.document) == numbers(expected)
    assert calls == ["make_adapter", "load_task_data"]  # what is loaded stays for the cell
    assert "tiny-clip/shapes_color seed 1: seed 1, iteration 2 done" in lines
    assert sum("iteration" in line for line in lines) == 4  # the run itself trained nothing
    assert not list((tmp_path / one.folder).glob(".*"))  # what it went on from is gone


def test_another_worker_takes_up_what_the_first_left(tmp_path, alone):
    one, expected = alone
    first, last = units_of(one)
    for number, unit in enumerate(first):
        assert Worker(tmp_path).do(unit).state == "done", number
    lines: list[str] = []
    assert Worker(tmp_path).do(last[0], report=lines.append).state == "done"
    assert numbers(tmp_path / one.document) == numbers(expected)
    assert not any("iteration" in line for line in lines)


def travelled(root, driver, unit, cache=None, report=lambda line: None):
    """Does a unit in a folder that is not the driver's; the files that it wrote."""
    put_files(root, unit.cell, files_of(driver, unit.cell), cache)
    before = stamps(root, unit.cell, cache)
    assert Worker(root, None if cache is None else str(cache)).do(unit, report).error is None
    return changed(before, stamps(root, unit.cell, cache))


def test_without_a_common_folder_the_files_travel(tmp_path, alone):
    one, expected = alone
    driver = tmp_path / "driver"
    for number, unit in enumerate(unit for stage in units_of(one) for unit in stage):
        lines: list[str] = []
        files = travelled(tmp_path / f"node{number}", driver, unit, report=lines.append)
        assert files and (unit.kind == "seed" or not any("iteration" in line for line in lines))
        take_in(driver, one, files, over=unit.kind == "run")
    assert numbers(driver / one.document) == numbers(expected)
    assert not list((driver / one.folder).glob(".*"))


def test_raw_scores_travel_by_the_cache(tmp_path):
    one = cell(tmp_path, **TTM, use_cache=str(tmp_path / "unused"))
    driver, (scores, *_) = tmp_path / "driver", units_of(one)
    files = travelled(tmp_path / "a", driver, scores[0], tmp_path / "a-cache")
    assert files and all(name.startswith(".sweep/cache/1/scores/") for name in files)
    take_in(driver, one, files, over=False)
    travelled(tmp_path / "b", driver, Unit(one), tmp_path / "b-cache")
    assert "from_store" in (tmp_path / "b" / one.document).read_text()
    take_in(driver, one, {}, over=True)
    assert not (driver / ".sweep/cache/1").exists() and not (tmp_path / "unused").exists()


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/x",
        "other/shapes_color/x",
        "tiny-clip/shapes_color/../../x",
        ".sweep/cache/2/x",
        "C:x",
        "sweep.json",
    ],
)
def test_files_from_a_worker_stay_in_their_cells_folders(tmp_path, name):
    with pytest.raises(TtmbenchError, match="does not belong to cell tiny-clip/shapes_color"):
        put_files(tmp_path / "driver", cell(tmp_path), {name: b"x"}, None)
    assert not (tmp_path / "driver").exists()


def test_a_document_of_another_command_is_moved_aside_before_seeds_are_left(tmp_path):
    one = cell(tmp_path, **TTM)
    other = cell(tmp_path, **(TTM | {"seeds": [5]}))
    assert Worker(tmp_path).do(Unit(other)).state == "done"
    worker, lines = Worker(tmp_path), []
    for unit in (unit for stage in units_of(one) for unit in stage):
        assert worker.do(unit, report=lines.append).state == "done"
    assert sum("iteration" in line for line in lines) == 4
    seeds = [
        json.loads(path.read_text())["ttm"]["shapes_color"]["seeds"] for path in (tmp_path / one.folder).glob("*.json")
    ]
    assert sorted(seeds) == [[0, 1], [5]]


def test_shares_of_the_pairs_are_computed_once_and_add_up(tmp_path, monkeypatch):
    """A model that scores pairs: three workers compute blocks, and the run computes none."""
    from ttmbench.model_adapters import tiny_clip
    from ttmbench.scoring import batches, pairs

    class Pairs:
        scored = 0

        def fingerprint(self):
            return {"weights": "of a test"}

        def score_pairs(self, images, captions):
            Pairs.scored += len(captions)
            pairs = zip(images, captions, strict=True)
            return np.array([len(caption) + image.getpixel((5, 5))[0] / 7 for image, caption in pairs])

    monkeypatch.setattr(tiny_clip, "load", lambda **_: Pairs())
    monkeypatch.setattr(pairs, "PAIRS", 8)
    one = cell(tmp_path, use_cache=str(tmp_path / "cache"), batch_size=8)
    shared = type(one)(**{**vars(one), "shards": 3})
    groups, last = units_of(shared)
    counts = []
    for unit in groups:
        before = Pairs.scored
        assert Worker(tmp_path).do(unit).error is None
        counts.append(Pairs.scored - before)
    assert sum(counts) == 48 and counts == [16, 16, 16]
    assert Worker(tmp_path).do(last[0]).state == "done"
    assert Pairs.scored == 48
    shutil.rmtree(tmp_path / "cache")
    run(one.config_at(tmp_path / "alone"))
    assert numbers(tmp_path / one.document) == numbers(tmp_path / "alone" / one.document)
    assert batches.PAIRS == 128


def test_a_worker_holds_one_model(tmp_path, calls):
    models = {"models": ["tiny-clip", "tiny-clip-seed1"], "tasks": "shapes_color", "options": SMALL}
    cells = [one.cell for one in cells_of(tmp_path, **models)]
    worker = Worker(tmp_path)
    for number in (0, 1, 0):
        assert worker.do(Unit(cells[number])).state == "done"
    assert calls.count("make_adapter") == 3


def test_what_a_place_lacks_is_told_from_what_fails_everywhere(tmp_path):
    lacks = cell(tmp_path, model={"model": "hf", "model_args": {"pretrained": str(tmp_path / "none")}})
    result = Worker(tmp_path).do(Unit(lacks))
    assert result.state == "unfit" and "none" in result.error and "\n" not in result.error
    fails = cell(tmp_path, **(TTM | {"ttm_args": {"iterations": 1, "epochs": 1, "lr": 1e30}}))
    result = Worker(tmp_path).do(Unit(fails))
    assert result.state == "failed" and "a lower learning rate may help" in result.error
    document = json.loads((tmp_path / fails.document).read_text())
    assert document["status"] == "failed" and document["results"]["shapes_color"]["group_match,none"] is not None


def test_an_interruption_is_a_result(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(score_task, "load_task_data", interrupted)
    assert Worker(tmp_path).do(Unit(cell(tmp_path))).state == "stopped"


# ---- a model behind a server: its questions are cut into shares, and none is asked a second time

N_QUESTIONS = 24  # of six 2x2 groups


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-a-test")


@pytest.fixture
def plan(chat_server, tmp_path):
    """Gives the plan of one task that is asked in three shares, by arguments of the model."""

    def content(**arguments):
        given = {"model": "test-model", "base_url": chat_server.url, "cache": str(tmp_path / "answers.sqlite")}
        model = {"model": "openai", "shards": 3, "model_args": {**given, "backoff": 0.01, "timeout": 5, **arguments}}
        return {"models": [model], "tasks": ["shapes_color"], "options": {**SMALL, "limit": 6}}

    return content


@pytest.fixture
def asked_by_one_run(chat_server, tmp_path):
    """Gives what a cell's document says when one run asks everything."""

    def document_of(cell):
        (tmp_path / "answers.sqlite").unlink()
        run(cell.config_at(tmp_path / "alone"))
        return content(tmp_path / "alone" / cell.document)

    return document_of


def content(path):
    """A document, and apart what its run has used."""
    document = json.loads(numbers(path))
    return document, document["model_info"].pop("usage")


@pytest.mark.parametrize("arguments", [{}, {"scorer": "choice"}], ids=["pairs", "choices"])
def test_every_share_asks_its_own_questions_and_the_run_asks_none(
    chat_server, tmp_path, plan, asked_by_one_run, arguments
):
    (planned,) = cells_of(tmp_path, **plan(**arguments))
    shares, (last,) = units_of(planned.cell)
    for number, unit in enumerate(shares, 1):
        assert Worker(tmp_path).do(unit).error is None
        assert len(chat_server.requests) == number * N_QUESTIONS / 3
    assert Worker(tmp_path).do(last).error is None
    assert len(chat_server.requests) == N_QUESTIONS and set(chat_server.answered.values()) == {1}

    document, usage = content(tmp_path / planned.cell.document)
    assert (usage["requests"], usage["stored_answers"]) == (0, N_QUESTIONS)
    alone, usage = asked_by_one_run(planned.cell)
    assert (usage["requests"], usage["stored_answers"]) == (N_QUESTIONS, 0)
    assert document == alone and set(chat_server.answered.values()) == {2}


def test_two_workers_ask_at_the_same_time_and_nothing_twice(chat_server, tmp_path, plan, asked_by_one_run, forked):
    """The command as it is typed, two processes and one file of answers."""
    other = threading.Event()

    def wait_for_the_other(number):
        if number == 0:
            assert other.wait(60)
        other.set()

    chat_server.before = wait_for_the_other
    written = plan(concurrency=1, timeout=60)
    assert main(["sweep", str(write_plan(tmp_path, **written)), "-o", str(tmp_path / "board"), "--workers", "2"]) == 0
    assert len(forked) == chat_server.most_at_once == 2
    assert len(chat_server.requests) == N_QUESTIONS and set(chat_server.answered.values()) == {1}

    (one,) = read_summary(tmp_path / "board" / "sweep.json").cells
    document, usage = content(tmp_path / "board" / one.document)
    assert (usage["requests"], usage["stored_answers"]) == (0, N_QUESTIONS)
    (planned,) = cells_of(tmp_path, **written)
    assert document == asked_by_one_run(planned.cell)[0]


def test_shares_divide_what_may_be_spent(chat_server, tmp_path, plan):
    """A question costs 0.3: of 3, each of three shares may ask three of its eight, and goes on when done again."""
    (planned,) = cells_of(tmp_path, **plan(price_in=1000, price_out=0, max_cost=3, concurrency=1))
    shares, _ = units_of(planned.cell)
    for unit in shares:
        error = Worker(tmp_path).do(unit).error
        assert error.startswith("stopped before max_cost=3, $1.00 for each of 3 shares: 3 of 8 questions were asked")
    assert len(chat_server.requests) == 9
    assert Worker(tmp_path).do(shares[0]).error is not None
    assert len(chat_server.requests) == 12 and set(chat_server.answered.values()) == {1}
