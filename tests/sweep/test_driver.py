"""Sweeps in this process: what is computed, told, kept and gone on with."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest
from support.sweeps import SMALL, TTM, Inline, Told, cells_of, swept

from ttmbench._util.files import file_digest
from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.evaluator.unit import UnitResult
from ttmbench.evaluator.worker import Worker
from ttmbench.report.load import gather
from ttmbench.results.reader import walk_documents
from ttmbench.sweep.driver import Driver, overview
from ttmbench.sweep.estimate import rates, seconds_of, work_of
from ttmbench.sweep.folder import beside_other_cells, one_driver, read_summary, stages_left

PLAN = {
    "models": ["tiny-clip", "tiny-clip-seed1"],
    "tasks": ["shapes_color", "shapes_place"],
    "settings": [{"name": "raw"}, {"name": "ttm", **TTM}],
    "options": SMALL,
}


class Pretends:
    """A worker that says how a unit ended, by its name, and computes nothing."""

    def __init__(self, *ends: tuple[str, UnitResult]) -> None:
        self._ends, self.units = dict(ends), []

    def do(self, unit):
        self.units.append(unit.name)
        return self._ends.get(unit.name, UnitResult("done", seconds=1.0))


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """A sweep that is done: 2 models, 2 tasks, raw and adapted; its cells, folder, summary and executor."""
    folder = tmp_path_factory.mktemp("board")
    planned = cells_of(folder, **PLAN)
    root = folder / "board"
    root.mkdir()
    summary, executor = swept(planned, root, Inline({"a": Worker(root), "b": Worker(root)}))
    return planned, root, summary, executor


def states(root: Path) -> list[str]:
    return [one.state for one in read_summary(root / "sweep.json").cells]


def test_every_cell_has_a_document_and_readers_of_folders_find_all(board):
    planned, root, summary, executor = board
    assert summary.status == "done" and states(root) == ["done"] * 8 and executor.stopped is False
    assert [one.document for one in summary.cells] == [one.cell.document for one in planned]
    assert all(one.attempts == 1 and one.seconds > 0 and one.worker in ("a", "b") for one in summary.cells)
    gathered = gather(root)
    assert len(gathered.runs) == 8 and gathered.skipped == {}
    assert [isinstance(found, str) for _, found in walk_documents(root)] == [
        False
    ] * 8  # its summary is none that is left out
    assert len(executor.done) == 4 * 1 + 4 * 3


def test_workers_keep_to_a_model_each(board):
    _, _, _, executor = board
    models = {name: {unit.split("/")[1] for worker, unit, _ in executor.done if worker == name} for name in "ab"}
    assert models == {"a": {"tiny-clip"}, "b": {"tiny-clip-seed1"}}


def test_the_same_plan_again_does_nothing(board):
    planned, root, before, _ = board
    digest = file_digest(root / planned[0].cell.document)
    summary, executor = swept(planned, root)
    assert executor.done == [] and summary.status == "done"
    assert [one.seconds for one in summary.cells] == [one.seconds for one in before.cells]  # and forgets nothing
    assert file_digest(root / planned[0].cell.document) == digest


def test_documents_give_the_times_for_more_cells(board):
    planned, root, _, _ = board
    known = rates(root)
    assert set(known) == {"tiny-clip", "tiny-clip-seed1"}
    raw, ttm = (seconds_of(work_of(one), known["tiny-clip"]) for one in planned[:2])
    assert 0 < raw < ttm < 60


def test_a_lost_worker_costs_its_unit_and_nothing_else(tmp_path):
    planned = cells_of(tmp_path, **PLAN)
    worker, told = Pretends(), Told()
    lost = "ttm/tiny-clip/shapes_color seed 1"
    executor = Inline({"a": worker}, loses=[lost])
    summary = Driver(planned, tmp_path, "plan.yaml").run(executor, told)
    assert sorted(worker.units) == sorted(set(worker.units)) and len(worker.units) == 16
    assert summary.workers_lost == 1 and [one.attempts for one in summary.cells] == [1, 2, 1, 1, 1, 1, 1, 1]
    assert told.lines.count(f"a is lost: it was killed; {lost} is tried again") == 1
    assert sum("done in" in line for line in told.lines) == 8


def test_a_failed_cell_is_told_and_the_others_go_on(tmp_path):
    planned = cells_of(tmp_path, **PLAN)
    worker = Pretends(("raw/tiny-clip/shapes_place", UnitResult("failed", "no good")))
    summary, _ = swept(planned, tmp_path, Inline({"a": worker}))
    assert summary.status == "failed" and summary.counts == {"done": 7, "failed": 1}
    assert [one.error for one in summary.cells if one.error] == ["no good"]
    again, _ = swept(planned[2:3], tmp_path, Inline({"a": Pretends()}))
    assert [(one.state, one.error) for one in again.cells] == [("done", None)]


def test_raise_skips_the_rest(tmp_path):
    planned = cells_of(tmp_path, **PLAN)
    worker = Pretends(("raw/tiny-clip/shapes_color", UnitResult("failed", "no good")))
    swept(planned, tmp_path, Inline({"a": worker}), on_error="raise")
    assert states(tmp_path) == ["failed"] + ["skipped"] * 7 and len(worker.units) == 1


def test_what_one_place_lacks_is_tried_elsewhere(tmp_path):
    planned = cells_of(tmp_path, **PLAN)[:1]
    lacking, told = Pretends(("raw/tiny-clip/shapes_color", UnitResult("unfit", "no weights"))), Told()
    executor = Inline({"a": lacking, "b": Pretends()}, places={"a": "one", "b": "two"})
    summary = Driver(planned, tmp_path, "plan.yaml").run(executor, told)
    assert summary.status == "done" and (summary.cells[0].worker, summary.cells[0].attempts) == ("b", 2)
    assert told.lines[0] == "a cannot do raw/tiny-clip/shapes_color: no weights; it is tried elsewhere"


def test_an_interruption_leaves_a_readable_state_and_the_same_command_goes_on(tmp_path):
    planned = cells_of(tmp_path, **PLAN)[1:3]
    root = tmp_path / "board"
    root.mkdir()

    class Interrupted(Inline):
        def wait(self, timeout):
            if len(self.done) == 1:  # one seed is finished
                raise KeyboardInterrupt
            return super().wait(timeout)

    executor = Interrupted({"a": Worker(root)})
    with pytest.raises(KeyboardInterrupt):
        swept(planned, root, executor)
    assert executor.stopped is True
    assert read_summary(root / "sweep.json").status == "interrupted" and set(states(root)) == {"waiting"}
    left = [[unit.name for unit in stage] for stage in stages_left(root, planned[0])]
    assert left == [["ttm/tiny-clip/shapes_color seed 1"], ["ttm/tiny-clip/shapes_color"]]
    summary, executor = swept(planned, root)
    assert summary.status == "done"
    assert "ttm/tiny-clip/shapes_color seed 0" not in [name for _, name, _ in executor.done]


def test_a_changed_plan_computes_what_changed(board, tmp_path):
    _, root, _, _ = board
    other = PLAN | {"settings": [{"name": "raw", "bootstrap_iters": 5}, {"name": "ttm", **TTM}]}
    assert [stages_left(root, one) == [] for one in cells_of(tmp_path, **other)] == [False, True] * 4


def test_a_cell_whose_files_are_gone_is_not_done(board, tmp_path):
    planned, root, _, _ = board
    one = planned[1]
    assert stages_left(root, one) == []
    files = list((root / one.cell.folder).glob("*.jsonl"))
    assert {path.name.split("_")[1] for path in files} == {"samples", "ttm"}
    for lines in files:
        content = lines.read_bytes()
        lines.write_bytes(content + b"\n")
        try:
            assert stages_left(root, one)
        finally:
            lines.write_bytes(content)
    assert stages_left(root, one) == []


def test_cells_share_the_folder_that_a_driver_has_alone(tmp_path):
    with beside_other_cells(tmp_path):
        with beside_other_cells(tmp_path):
            pass
        with pytest.raises(UsageError, match="are being run with --cell"), one_driver(tmp_path):
            pass
    with one_driver(tmp_path):
        with pytest.raises(UsageError, match="a sweep is writing"), beside_other_cells(tmp_path):
            pass
        with pytest.raises(UsageError, match="another sweep is writing to"), one_driver(tmp_path):
            pass


def test_a_folder_that_was_removed_while_its_lock_was_opened_is_locked_anew(tmp_path, monkeypatch):
    """Who has the lock may remove its file: a lock on what has no name any more keeps nobody out."""
    before, opened = fcntl.flock, []

    def late(file, how):
        if not opened:
            opened.append(file)
            (tmp_path / ".sweep" / "lock").unlink()
        return before(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with beside_other_cells(tmp_path):
        assert opened[0].closed and (tmp_path / ".sweep" / "lock").exists()
        with pytest.raises(UsageError, match="with --cell"), one_driver(tmp_path):
            pass


def test_without_workers_the_state_is_written_and_the_error_goes_on(tmp_path):
    class Nobody(Inline):
        def wait(self, timeout):
            raise TtmbenchError("worker processes fail to start: no")

    with pytest.raises(TtmbenchError, match="fail to start"):
        swept(cells_of(tmp_path, **PLAN)[:1], tmp_path, Nobody({}))
    assert read_summary(tmp_path / "sweep.json").status == "interrupted"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "not the summary of a sweep"),
        ("{", "JSON"),
        ('{"kind": "sweep"}', "is missing"),
        ('{"kinds": 1}', "unknown key"),
    ],
)
def test_a_summary_that_is_none_is_refused_by_readers_and_replaced_by_sweeps(tmp_path, content, message, capsys):
    (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(DataError, match=message):
        read_summary(tmp_path / "sweep.json")
    swept(cells_of(tmp_path, **PLAN)[:1], tmp_path, Inline({"a": Pretends()}))
    assert states(tmp_path) == ["done"] and "rebuilt" in capsys.readouterr().err


def test_the_summary_is_as_the_docs_say(board):
    _, root, _, _ = board
    content = json.loads((root / "sweep.json").read_text())
    page = (Path(__file__).resolve().parents[2] / "docs" / "sweep.md").read_text()
    for key in (*content, *content["cells"][0]):
        assert f"`{key}`" in page, key


def test_progress_counts_cells_and_says_how_long_they_will_take():
    assert overview({"done": 2, "waiting": 8}, 30, 2, {}).endswith("00:30 so far"), "those were done before"
    text = overview({"done": 4, "failed": 1, "waiting": 4, "running": 1}, 30, 2, {})
    assert text == "4/10 cells done, 1 failed, 1 running, 4 waiting; 00:30 so far, about 00:50 left"
    text = overview({"done": 5, "running": 1}, 3700, 5, {f"worker-{number}": "x\ny" for number in range(30)})
    assert text.splitlines()[0].endswith("; 1:01:40 so far")
    assert len(text.splitlines()) == 26 and text.endswith("and 6 workers more")
