"""Worker processes of sweeps, forked from what has imported everything instead of begun from nothing."""

from __future__ import annotations

import pytest
from support.sweeps import forked_workers


@pytest.fixture
def forked():
    """The list of worker processes that were begun."""
    with forked_workers() as begun:
        yield begun
