"""Readers of raw data into groups: a module for each kind of source, with its reader and the places of its data."""
