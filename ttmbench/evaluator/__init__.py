"""Runs: a model meets tasks, and a results document says what came out."""

from ttmbench.evaluator.run import EvalResults, run, simple_evaluate

__all__ = ["EvalResults", "run", "simple_evaluate"]
