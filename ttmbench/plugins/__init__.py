"""Plugins: discovery, registration, and the built-in plugins."""
