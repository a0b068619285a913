"""What tests of tables and of submissions share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # the package is imported once pytest is ready to check its shapes, with any version of jaxtyping
    from support.submissions import Forgery

    from ttmbench.plugins.registry import Registry


@pytest.fixture(scope="module")
def registry() -> Registry:
    from ttmbench.plugins.registry import build_registry

    return build_registry()


@pytest.fixture
def forged(honest: Path, tmp_path: Path) -> Forgery:
    """A copy of the module's own submission, ``honest``, to edit."""
    from support.submissions import Forgery

    return Forgery(honest, tmp_path / "forged")
