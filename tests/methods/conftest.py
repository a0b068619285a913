"""What tests of methods share."""

from __future__ import annotations

import pytest

from ttmbench.methods import runner


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch):
    """Chance levels are run along; tests/report compares them with known ones."""
    for kind in runner.DRAWS:
        monkeypatch.setitem(runner.DRAWS, kind, 4)
