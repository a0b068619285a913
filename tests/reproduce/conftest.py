"""What tests of tables and of submissions share."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.submissions import Forgery

from ttmbench.plugins.registry import Registry, build_registry


@pytest.fixture(scope="module")
def registry() -> Registry:
    return build_registry()


@pytest.fixture
def forged(honest: Path, tmp_path: Path) -> Forgery:
    """A copy of the module's own submission, ``honest``, to edit."""
    return Forgery(honest, tmp_path / "forged")
