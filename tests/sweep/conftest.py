"""Worker processes of sweeps, forked from what has imported everything instead of begun from nothing."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest
from support import processes


@pytest.fixture
def forked(monkeypatch):
    """Worker processes are forked from what has imported everything; gives the list of those that were begun."""
    begun = []

    def popen(words, *, env, start_new_session, **streams):
        env = {name: value for name, value in env.items() if name != "MKL_NUM_THREADS"}
        begun.append(processes.start(words[1:], env=env, **streams))
        return begun[-1]

    module = "ttmbench.evaluator.local_executor.subprocess"
    monkeypatch.setattr(module, SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE))
    return begun
