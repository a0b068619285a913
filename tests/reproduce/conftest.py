"""What tests of tables and of submissions share."""

from __future__ import annotations

from collections.abc import Iterator
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


@pytest.fixture(autouse=True, scope="session")
def _shipped_model_once() -> Iterator[None]:
    """A model that ships is loaded once a process, and not for each of hundreds of forgeries, to say what it is."""
    from ttmbench.reproduce.submission import settings

    load, loaded = settings.make_adapter, dict[str, object]()

    def make_adapter(registry: Registry, model: str, *arguments: object) -> object:
        key = repr((registry.adapters[model], arguments))
        if key not in loaded:
            loaded[key] = load(registry, model, *arguments)
        return loaded[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(settings, "make_adapter", make_adapter)
        yield
