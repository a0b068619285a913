"""A submission whose TTM has other parts and stops early, with selftrain beside it."""

from __future__ import annotations

import pytest
from support.submissions import make_submission

from ttmbench.cli.validate import read_command
from ttmbench.reproduce.submission.check import check_submission

T = "shapes_color"
COMMAND = (
    f"--model tiny-clip --tasks {T} --limit 12 --ttm --ttm_args iterations=6,epochs=1,lr=1e-6,selection=every,"
    "stopping=no_change,pseudo_labels=sinkhorn,loss=cross_entropy,teacher=ema,teacher.decay=0.5 --seeds 0,1 "
    "--ttm_controls placebo --audit_labels --methods selftrain --method_args selftrain.iterations=2 "
    "--save_scores --log_samples --output_path {}"
)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return make_submission(tmp_path_factory.mktemp("submission") / "honest", COMMAND)


def said(forged, registry) -> list[str]:
    return [one.line for one in check_submission(forged.save(), registry, read_command).found]


def test_an_honest_run_that_stopped_early_is_sound(forged, registry):
    assert len(forged.document["ttm"][T]["iterations"]) == 2 * 2, "the second trains on what the first did"
    assert said(forged, registry) == []


def test_a_run_that_goes_on_after_its_end_is_refused(forged, registry):
    forged.document["ttm"][T]["hyperparameters"].pop("stopping")
    assert any("hyperparameters" in line for line in said(forged, registry))


def test_a_run_that_ends_too_soon_is_refused(forged, registry):
    record = forged.document["ttm"][T]
    record["iterations"] = [line for line in record["iterations"] if line["iteration"] == 1]
    assert said(forged, registry) != []
