"""A paper's table against runs: what was published, what was measured here, and whether the two agree."""
