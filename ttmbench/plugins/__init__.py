"""Plugins: how they are found, what they register, and the ones that ship."""
