"""What tests of tables share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def registry():
    from ttmbench.plugins.registry import build_registry  # once pytest is ready to check its shapes

    return build_registry()
