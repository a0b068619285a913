"""What tests of the report share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def charts_once() -> Iterator[None]:
    """A chart of the same values is drawn once a process."""
    from ttmbench.report.html import render

    draw, drawn = render._chart, dict[str, object]()

    def chart(run, course):
        key = repr((course, run.model))
        if key not in drawn:
            drawn[key] = draw(run, course)
        return drawn[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(render, "_chart", chart)
        yield
