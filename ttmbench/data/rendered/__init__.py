"""Scenes that are drawn from a seed: the built-in tasks."""
