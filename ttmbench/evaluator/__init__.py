"""Runs: a model meets tasks, and a results document says what came out."""

from ttmbench.evaluator.run import EvalResults, simple_evaluate

__all__ = ["EvalResults", "simple_evaluate"]  # and not `run`, which would hide the module of that name
