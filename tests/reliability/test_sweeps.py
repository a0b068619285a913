"""A small dose of the kills of sweeps that docs/reliability.md shows in full, at moments drawn anew each time."""

from __future__ import annotations

import argparse
import secrets

import pytest
import sweeps


@pytest.mark.slow
def test_killed_drivers_and_workers_cost_a_sweep_nothing(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("TTMBENCH_CACHE", str(tmp_path))
    seed = secrets.randbelow(2**31)
    code = sweeps.main(argparse.Namespace(kills=4, executor="local", seed=seed, json=None))
    assert code == 0, capsys.readouterr().out
