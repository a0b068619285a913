"""Runs: a model meets tasks, and a results document says what came out. Programs import from `ttmbench`."""
