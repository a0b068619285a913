"""A sweep on a real Ray cluster of two nodes: what is killed costs time and no number."""

from __future__ import annotations

import signal
import sys
import threading
import time
from importlib.util import find_spec

import pytest
from support.plans import SMALL, TTM, cells_of, numbers, write_plan

from ttmbench.cli import main
from ttmbench.evaluator.evaluate import evaluate

# A cluster takes ten seconds to begin, and each cell imports torch.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (extra 'ray')"),
]
PLAN = {
    "models": ["tiny-clip", "tiny-clip-seed1"],
    "options": {**SMALL, **TTM, "limit": 8, "device": "cpu", "deterministic": True},
}


@pytest.fixture(scope="module", autouse=True)
def _left_as_it_was():
    """Ray puts its own handler of SIGTERM and folders into the process."""
    handler, path = signal.getsignal(signal.SIGTERM), list(sys.path)
    yield
    signal.signal(signal.SIGTERM, handler)
    sys.path[:] = path


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patched.setenv("RAY_enable_metrics_collection", "0")
        patched.delenv("OMP_NUM_THREADS", raising=False)
        from ray.cluster_utils import Cluster

        made = Cluster()
        try:
            # Ray takes 127.0.0.1 for the machine's own address in the network.
            how = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
            made.add_node(include_dashboard=False, node_ip_address="127.0.0.2", **how)
            second = made.add_node(node_ip_address="127.0.0.3", **how)
            yield made, second
        finally:
            made.shutdown()


def test_no_cluster_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    write_plan(tmp_path, **PLAN)
    assert main(["sweep", "plan.yaml", "-o", "board", "--executor", "ray"]) == 1
    assert "ray start --head" in capsys.readouterr().err


def test_wrong_options_and_unseen_folders_are_refused(cluster, tmp_path, monkeypatch, capsys):
    made, _ = cluster
    monkeypatch.chdir(tmp_path)
    write_plan(tmp_path, **PLAN)
    words = ["sweep", "plan.yaml", "-o", "board", "--executor", "ray", "--executor_args"]
    assert main([*words, f"address={made.address},num_cpu=1"]) == 2 and "num_cpu" in capsys.readouterr().err
    from ttmbench.sweep import execute

    with monkeypatch.context() as patched:
        patched.setattr(execute.machine, "packages", lambda: {"torch": "0"})
        assert main([*words, f"address={made.address}"]) == 1 and "install the same version" in capsys.readouterr().err
    monkeypatch.setattr(execute, "write_text", lambda path, text: None)  # no node sees the probe
    assert main([*words, f"address={made.address}"]) == 1
    assert "does not see board" in capsys.readouterr().err and not list(tmp_path.rglob("results.json"))


def test_cells_equal_single_runs_although_a_node_is_lost(cluster, tmp_path, monkeypatch, capsys):
    made, second = cluster
    (tmp_path / "alone").mkdir()
    alone = cells_of(tmp_path / "alone", **PLAN)
    for cell in alone:
        evaluate(cell.config, cell.chosen)
    monkeypatch.chdir(tmp_path)
    write_plan(tmp_path, **PLAN)

    def lose():
        end = time.monotonic() + 600
        while len(list((tmp_path / "board").rglob("seed_*.safetensors"))) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        made.remove_node(second, allow_graceful=False)

    loser = threading.Thread(target=lose)
    loser.start()
    words = ["sweep", "plan.yaml", "-o", "board", "--executor", "ray", "--executor_args"]
    code = main([*words, f"address={made.address}"])
    loser.join()
    said = capsys.readouterr()
    assert code == 0 and "2 cells: 2 done, 0 failed" in said.out, said.err
    for cell in alone:
        assert numbers(tmp_path / "board" / cell.folder / "results.json") == numbers(cell.document)
    assert not [path for path in (tmp_path / "board").iterdir() if path.name.startswith(".")]
    assert main([*words, f"address={made.address},num_cpu=1"]) == 0, "every cell is done"
