"""The command keeps memory that it freed; each case is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource, sys
from ttmbench import cli
cli._execute = lambda given: 0
if sys.argv[1] == "command":
    cli.main([])
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
array = libc.malloc(64 << 20)
ctypes.memset(array, 1, 64 << 20)
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before = resident()
libc.free(array)
print(before - resident() < 32 << 20)
"""


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", {}), reason="needs glibc")
@pytest.mark.parametrize(
    ("who", "variables", "keeps"),
    [
        ("library", {}, False),
        ("command", {}, True),
        ("command", {"MALLOC_TOP_PAD_": "131072"}, False),
        ("command", {"GLIBC_TUNABLES": "glibc.malloc.top_pad=131072"}, False),
    ],
)
def test_the_command_alone_keeps_freed_memory_unless_the_user_set_up_the_allocator(who, variables, keeps):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", PROGRAM, who]
    output = subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=True).stdout
    assert output.split() == [str(keeps)]
