"""Threshold schedules and the coverage rule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttmbench import schedules

ALL = [schedules.linear, schedules.cosine, schedules.constant, schedules.ascending]


def test_the_courses_of_schedules():
    t = np.arange(10) / 9
    assert schedules.linear(2.0, 0.5, 10) == pytest.approx(2.0 - 1.5 * t)
    assert schedules.ascending(2.0, 0.5, 10) == pytest.approx(0.5 + 1.5 * t)
    assert schedules.cosine(2.0, 0.5, 10) == pytest.approx(0.5 + 1.5 * (1 + np.cos(np.pi * t)) / 2)
    assert schedules.cosine(1.7, 0.0, 7)[-1] == 0.0, "a hair above 0 would drop groups of margin 0"


@pytest.mark.parametrize("schedule", ALL)
def test_one_iteration_and_none(schedule):
    assert schedule(2.0, 0.5, 1).tolist() == [0.5 if schedule is schedules.ascending else 2.0]
    with pytest.raises(ValueError, match="at least one"):
        schedule(1.0, 0.0, 0)


@given(st.lists(st.floats(0, 50), min_size=1, max_size=60, unique=True), st.floats(0.01, 1))
def test_coverage_threshold_keeps_the_share_and_no_more(margins, share):
    margins = np.array(margins)
    tau = schedules.threshold_for_coverage(margins, share)
    kept = int((margins >= tau).sum())
    assert kept == max(1, int(np.ceil(share * len(margins) - 1e-9)))


@pytest.mark.parametrize("share", [0.0, 1.5, -1.0])
def test_coverage_outside_its_range_is_refused(share):
    with pytest.raises(ValueError, match="coverage"):
        schedules.threshold_for_coverage(np.ones(3), share)
