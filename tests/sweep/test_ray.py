"""A sweep on a real Ray cluster of two nodes: what is killed costs time and no number."""

from __future__ import annotations

import json
import signal
import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest
from kills import differing
from kills import numbers as without_times
from support.sweeps import Told, cells_of

from ttmbench.evaluator.run import run
from ttmbench.sweep.driver import Driver
from ttmbench.sweep.executor_options import RayOptions

# A cluster takes ten seconds to begin, and each worker imports torch. Ray is not imported here: see `import_ray`.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (extra 'ray')"),
]

MODELS = ["tiny-clip", {"model": "tiny-clip", "name": "tiny-other", "model_args": {"training_seed": 1}}]
TASKS = ["shapes_color", "shapes_spatial", "shapes_color_global"]
OPTIONS = {
    "limit": 8,
    "ttm": True,
    "ttm_args": {"iterations": 2, "epochs": 1},
    "seeds": [0, 1],
    "bootstrap_iters": 10,
    "device": "cpu",
    "deterministic": True,
}


@pytest.fixture(scope="module", autouse=True)
def _left_as_it_was():
    """Ray puts its own handler of SIGTERM and folders into the process."""
    handler, path = signal.getsignal(signal.SIGTERM), list(sys.path)
    yield
    signal.signal(signal.SIGTERM, handler)
    sys.path[:] = path


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory):
    from support.ray_clusters import cluster

    with cluster(tmp_path_factory.mktemp("cache")) as made:
        yield made


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    return cells_of(tmp_path_factory.mktemp("plan"), models=MODELS, tasks=TASKS, options=OPTIONS)


@pytest.fixture(scope="module")
def alone(planned, tmp_path_factory):
    """Cell -> its document as a single run writes it, with a cache of its own."""
    folder = tmp_path_factory.mktemp("alone")
    for one in planned:
        run(one.cell.config_at(folder).model_copy(update={"use_cache": str(folder / "cache")}))
    return {one.cell.folder: document(folder, one.cell) for one in planned}


def document(root, cell):
    """A document without times, whether it knows a commit, and the digests of the files beside it."""
    content = json.loads((root / cell.document).read_text())
    digests = {
        Path(name).name: one["sha256"] for name, one in content["artifacts"].items() if name.endswith("safetensors")
    }
    return {**without_times(content), "artifacts": digests, "git_hash": content["git_hash"] is not None}


def executor_of(made, root, planned, at=None, **given):
    from support.ray_clusters import Disturbed

    executor = Disturbed(root, RayOptions(address=made.address, **given), [one.cell for one in planned], 99)
    executor.at = at or {}
    return executor


def sweep(made, root, planned, at=None, **given):
    """Runs it; gives the summary, what was told, and the executor."""
    root.mkdir(exist_ok=True)
    told, executor = Told(), executor_of(made, root, planned, at, **given)
    return Driver(planned, root, "plan.yaml").run(executor, told), told.lines, executor


def test_a_worker_that_hangs_is_ended_and_costs_no_number(two_nodes, planned, alone, tmp_path):
    """Stopped as by a debugger, so that not one of its threads says anything."""
    moments = {4: lambda executor: executor.kill(executor.busy(), signal.SIGSTOP)}
    summary, told, executor = sweep(two_nodes, tmp_path / "out", planned, moments, stall=20)
    assert not moments and (summary.status, summary.workers_lost, summary.workers_hung) == ("done", 1, 1)
    assert executor.over == 24 and sum("hung: no sign of progress for 20 s on node 127." in line for line in told) == 1
    for one in planned:
        assert differing(alone[one.cell.folder], document(tmp_path / "out", one.cell)) == 0, one.cell.folder


def test_without_a_common_folder_files_travel_and_an_interrupted_sweep_goes_on(two_nodes, tmp_path, monkeypatch, capfd):
    (tmp_path / "tasks").mkdir()
    own = files("ttmbench.tasks").joinpath("shapes_color.yaml").read_text()
    (tmp_path / "tasks" / "shapes_mine.yaml").write_text(own.replace("task: shapes_color", "task: shapes_mine"))
    monkeypatch.chdir(tmp_path)
    gone = {"model": "tiny-clip", "name": "gone", "model_args": {"training_seed": 7}}
    options = {**OPTIONS, "include_path": ["tasks"]}
    planned = cells_of(tmp_path, models=["tiny-clip", gone], tasks=["shapes_mine"], options=options)
    cell = planned[0].cell
    run(cell.config_at(tmp_path / "alone").model_copy(update={"use_cache": str(tmp_path / "cache")}))

    def interrupt(executor):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(two_nodes, tmp_path / "out", planned, {2: interrupt}, folder="own", workers=1)
    printed = capfd.readouterr()
    assert "does not see" in printed.err and "raylet" not in printed.out + printed.err, "Ray's lines stay out of ours"
    stopped = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert (stopped["status"], stopped["cells"][0]["state"]) == ("interrupted", "waiting")

    summary, told, executor = sweep(two_nodes, tmp_path / "out", planned, folder="own", workers=1)
    assert [one.state for one in summary.cells] == ["done", "failed"], told
    assert executor.over <= 2 + 2 + 1, "what was finished is not done again"
    assert summary.cells[1].error.startswith("on node 127.0.0.") and "\n" not in summary.cells[1].error
    assert differing(document(tmp_path / "alone", cell), document(tmp_path / "out", cell)) == 0
    left = {path.name for path in (tmp_path / "out" / ".sweep").rglob("*") if path.is_file()}
    assert left <= {"lock"}, "what a cell goes on from is let go when it is done"
