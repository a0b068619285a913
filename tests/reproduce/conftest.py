"""What tests of tables share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # the package is imported once pytest is ready to check its shapes, with any version of jaxtyping
    from ttmbench.plugins.registry import Registry


@pytest.fixture(scope="module")
def registry() -> Registry:
    from ttmbench.plugins.registry import build_registry

    return build_registry()
