"""Sweeps of test-time methods with grids: units, workers that are killed, resuming, failures, estimates and tables."""

from __future__ import annotations

import csv
import io
import os
import signal
from importlib.metadata import entry_points

import pytest
from support import own_methods
from support.sweeps import SMALL, Inline, cells_of, numbers, swept, write_plan

from ttmbench.cli import main
from ttmbench.evaluator.local_executor import LocalExecutor
from ttmbench.evaluator.run import run
from ttmbench.evaluator.unit import Unit, UnitResult
from ttmbench.evaluator.worker import Worker
from ttmbench.report import leaderboard
from ttmbench.report.load import gather
from ttmbench.results.reader import read_document
from ttmbench.sweep import payload
from ttmbench.sweep.estimate import rates, seconds_of, work_of
from ttmbench.sweep.folder import read_summary, stages_left
from ttmbench.ttm.checkpoint import SeedCheckpoint

GRID = {"dn.strength": [0.1, 0.25], "drift.lr": [1e-3, 1e-2]}
PLAN = {
    "settings": [{"name": "both", "methods": ["dn", "drift"], "seeds": [0, 1], "grid": GRID}],
    "options": {**SMALL, "deterministic": True},
}
NAMES = [f"both dn.strength={strength} drift.lr={lr}" for strength in (0.1, 0.25) for lr in (0.001, 0.01)]


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory):
    """The methods of `support.own_methods`, as a plugin that is installed for worker processes too."""
    site = tmp_path_factory.mktemp("site")
    about = site / "own_methods-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own_methods\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text("[ttmbench]\nown_methods = support.own_methods\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(site))
        patched.setattr("ttmbench.plugins.manager.entry_points", entry_points)  # not those that all tests share
        yield


@pytest.fixture(autouse=True)
def _nothing_is_remembered(monkeypatch):
    monkeypatch.setattr(own_methods, "TURNS", [])
    monkeypatch.setattr(own_methods, "STOP_AFTER", [])


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Every cell as a separate run."""
    folder = tmp_path_factory.mktemp("alone")
    cells = [one.cell for one in cells_of(folder, **PLAN)]
    for one in cells:
        run(one.config_at(folder))
    return folder, {one.folder: numbers(folder / one.document) for one in cells}


def test_a_combination_is_a_run_with_its_own_numbers(alone):
    folder, found = alone
    assert list(found) == [f"{name}/tiny-clip/shapes_color" for name in NAMES]
    assert len({*found.values()}) == 4
    document = read_document(folder / f"{NAMES[1]}/tiny-clip/shapes_color/results.json").to_dict()
    settings = {name: record["settings"] for name, record in document["methods"]["shapes_color"].items()}
    assert settings["dn"]["strength"] == 0.1 and settings["drift"]["lr"] == 0.01
    assert document["methods"]["shapes_color"]["drift"]["seeds"] == [0, 1]


def test_two_workers_give_the_bits_of_separate_runs_although_one_is_killed(tmp_path, alone, forked, monkeypatch, capfd):
    submit, killed = LocalExecutor.submit, []

    def submit_and_kill(self, worker, unit):
        submit(self, worker, unit)
        if unit.kind == "seed" and not killed:
            killed.append(unit.name)
            os.kill(self._processes[worker].process.pid, signal.SIGKILL)

    monkeypatch.setattr(LocalExecutor, "submit", submit_and_kill)
    root, words = tmp_path / "board", ["sweep", str(write_plan(tmp_path, **PLAN)), "-o", str(tmp_path / "board")]
    code = main([*words, "--workers", "2"])
    said = capfd.readouterr()
    assert code == 0, said.err
    summary = read_summary(root / "sweep.json")
    assert {one.cell: numbers(root / one.document) for one in summary.cells} == alone[1]
    assert [one.setting for one in summary.cells] == NAMES and summary.workers_lost == 1
    assert f"{killed[0]} is tried again" in said.err
    assert main(words) == 0 and "4 of 4 cells are already done" in capfd.readouterr().err


def test_a_stopped_seed_goes_on_at_its_next_turn_and_finished_seeds_are_not_trained_again(tmp_path, alone, monkeypatch):
    monkeypatch.setattr(SeedCheckpoint, "is_due", lambda self, seconds: True)
    planned, root = cells_of(tmp_path, **PLAN)[:1], tmp_path / "board"
    root.mkdir()
    own_methods.STOP_AFTER.append(1)
    cell = planned[0].cell
    assert Worker(root).do(Unit(cell, "seed", 0)).state == "stopped"
    own_methods.STOP_AFTER.clear()
    first, own_methods.TURNS[:] = list(own_methods.TURNS), []
    assert Worker(root).do(Unit(cell, "seed", 0)).state == "done"
    both = first + own_methods.TURNS
    assert len(first) == 1 and sorted(index for turn in both for index in turn) == list(range(12))
    left = [[(unit.kind, unit.part) for unit in stage] for stage in stages_left(root, planned[0])]
    assert left == [[("seed", 1)], [("run", 0)]]
    own_methods.TURNS.clear()
    summary, executor = swept(planned, root)
    assert summary.status == "done" and [name for _, name, _ in executor.done] == [f"{cell.folder} seed 1", cell.folder]
    assert sorted(index for turn in own_methods.TURNS for index in turn) == list(range(12)), "one seed, once"
    assert numbers(root / cell.document) == alone[1][cell.folder]


def test_a_finished_seed_travels_between_folders(tmp_path):
    planned = cells_of(tmp_path, **PLAN)[0]
    cell, node, driver = planned.cell, tmp_path / "node", tmp_path / "driver"
    assert Worker(node).do(Unit(cell, "seed", 1)).state == "done"
    payload.take_in(driver, cell, payload.changed({}, payload.stamps(node, cell, None)), over=False)
    left = [[(unit.kind, unit.part) for unit in stage] for stage in stages_left(driver, planned)]
    assert left == [[("seed", 0)], [("run", 0)]]


def test_a_method_that_fails_loses_no_column_of_another(tmp_path):
    settings = [{"name": "x", "methods": "dn,returns_a_list,drift", "seeds": [0, 1]}]
    planned, root = cells_of(tmp_path, settings=settings, options=SMALL), tmp_path / "board"
    root.mkdir()
    summary, _ = swept(planned, root)
    assert [one.state for one in summary.cells] == ["failed"] and "method 'returns_a_list'" in summary.cells[0].error
    results = read_document(root / planned[0].cell.document).results["shapes_color"]
    assert {"group_match,none", "group_match,dn", "group_match,drift"} <= {*results}


def test_tables_and_exports_tell_the_settings_apart(alone, tmp_path):
    root = tmp_path / "board"
    root.symlink_to(alone[0])
    planned = cells_of(tmp_path, **PLAN)
    summary, executor = swept(planned, root, Inline({"a": Pretends()}))
    assert summary.status == "done" and executor.done == []
    gathered = gather(root)
    assert [one.model for one in gathered.runs] == [f"tiny-clip [{name}]" for name in NAMES]
    rows = list(csv.DictReader(io.StringIO(leaderboard.to_csv(leaderboard.merge(root)))))
    of_drift = [row["setting"] for row in rows if row["method"] == "drift" and row["metric"] == "group_match"]
    assert sorted(of_drift) == NAMES and {row["model"] for row in rows} == {"tiny-clip"}
    for form in ("csv", "latex"):
        assert main(["export", str(root), "--to", form, "-o", str(tmp_path / form)]) == 0
        text = (tmp_path / form).read_text().replace(r"\_", "_")
        assert all(name in text for name in NAMES)


def test_documents_give_the_times_of_methods_with_other_settings(alone, tmp_path):
    folder, _ = alone
    known = rates(folder)["tiny-clip"]
    assert {*known.methods} == {"dn", "drift"}
    (one, more, _, unknown) = cells_of(
        tmp_path,
        settings=[
            {"name": "one", "methods": "drift"},
            {"name": "more", "methods": "drift,dn", "seeds": [0, 1, 2]},
            {"name": "raw"},
            {"name": "unknown", "methods": "nnn"},
        ],
        options=SMALL,
    )
    assert work_of(more).methods == {"drift": 3, "dn": 1}
    assert 0 < seconds_of(work_of(one), known) < seconds_of(work_of(more), known) < 60
    assert seconds_of(work_of(unknown), known) is None


class Pretends:
    """A worker that has nothing to do."""

    def do(self, unit):
        return UnitResult("done")


def test_a_finished_seed_of_a_method_is_found_although_groups_are_held_out(tmp_path):
    (planned,) = cells_of(tmp_path, options={**SMALL, "methods": ["drift"], "seeds": [0, 1], "ttm_holdout": 0.5})
    root = tmp_path / "board"
    root.mkdir()
    assert Worker(root).do(Unit(planned.cell, "seed", 0)).state == "done"
    left = [[(unit.kind, unit.part) for unit in stage] for stage in stages_left(root, planned)]
    assert left == [[("seed", 1)], [("run", 0)]]
