"""Runs: a model meets tasks, and a results document says what came out."""

from ttmbench.evaluator.eval_results import EvalResults
from ttmbench.evaluator.run import simple_evaluate

__all__ = ["EvalResults", "simple_evaluate"]
