"""What tests of the report share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def charts_once() -> Iterator[None]:
    """A chart of the same values is drawn once a process."""
    from ttmbench.report.charts import curves_of
    from ttmbench.report.html import render

    draw, drawn = render._chart, dict[str, object]()

    def chart(run, task, method):
        key = repr((run.model, task, method, curves_of(run.document, task, method)))
        return drawn[key] if key in drawn else drawn.setdefault(key, draw(run, task, method))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(render, "_chart", chart)
        yield
