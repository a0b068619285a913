"""Test-time methods: what a method gets of a task, how it is run, and those that ship."""
