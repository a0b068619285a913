"""Forced choice: questions with two answers, asked or read from files, and the metrics that follow."""
