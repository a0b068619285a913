"""Experiment trackers: plugins behind the reporting hooks, chosen by ``--track``. Each needs an extra of its name."""
