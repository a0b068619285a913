"""The command's process, and those that it starts, keep memory that they freed; a process of each test's own tells."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ttmbench._util import allocation

pytestmark = pytest.mark.skipif(
    "CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", {}), reason="another C library than glibc"
)
FAULTS = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
for number in range(5):
    if number == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    place = libc.malloc(64 << 20)
    ctypes.memset(place, 1, 64 << 20)
    libc.free(place)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() / (4 * (64 << 20)))
"""
COMMAND = """
import subprocess, sys
from ttmbench import cli
def main():
    exec({faults!r})
    return subprocess.run([sys.executable, "-c", {faults!r}]).returncode
cli.main = main
sys.exit(cli.command())
"""


def shares(program: str, **variables: str) -> list[float]:
    """Of memory that was freed and asked for again, how much was cleared anew, as each process of a program saw it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    said = subprocess.run(
        [sys.executable, "-c", program], env={**kept, **variables}, capture_output=True, text=True, check=True
    )
    return [float(line) for line in said.stdout.split()]


def test_the_command_and_what_it_starts_keep_what_they_freed():
    (before,) = shares(FAULTS)
    own, child = shares(COMMAND.format(faults=FAULTS))
    assert before > 0.9 and own < 0.1 and child < 0.1


@pytest.mark.parametrize(
    ("name", "value"), [("MALLOC_TOP_PAD_", "131072"), ("GLIBC_TUNABLES", "glibc.malloc.top_pad=131072")]
)
def test_who_has_set_it_up_is_left_alone(name, value):
    assert min(shares(COMMAND.format(faults=FAULTS), **{name: value})) > 0.9


def test_another_c_library_is_left_alone(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("MALLOC_", "GLIBC_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(os, "confstr_names", {})
    before = dict(os.environ)
    assert not allocation.keep_freed_memory() and dict(os.environ) == before
