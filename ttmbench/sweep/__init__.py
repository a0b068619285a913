"""Sweeps: many models, tasks and settings, each an ordinary run, on the workers of one machine or of several."""
