"""Scoring: the only place that calls a model to score."""
