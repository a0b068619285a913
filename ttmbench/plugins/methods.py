"""The test-time methods that ship, by name; each target is one file of `ttmbench.methods`."""

from __future__ import annotations

from ttmbench.types import MethodSpec

METHODS: tuple[MethodSpec, ...] = ()
