"""Test-time methods: the task objects that a method receives, the code that runs it, and the built-in methods."""
