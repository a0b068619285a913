"""Readers of raw data into groups, one module a kind of source."""
