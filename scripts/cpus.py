"""Runs the tests as other CPUs would compute: with fewer instructions, and with more threads.

Each setting limits what torch, oneDNN and MKL may use. A separate process then asks them what they really use, and that
is printed. A setting that changes nothing on this CPU is skipped: the CPU lacks these instructions, or has none beyond.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "TEST_THREADS")
SETTINGS = {
    "native": (),
    "avx2": ("avx2", "AVX2", "AVX2"),
    "sse": ("default", "SSE41", "SSE4_2"),
    "avx512": (None, "AVX512_CORE"),
    "avx512-bf16": (None, "AVX512_CORE_BF16"),
    "threads-2": (None, None, None, "2"),
}
"""Values of VARIABLES. tests/conftest.py reads the last; processes that tests start have one thread."""

DEFAULT = ("-n", "auto")

PROBE = """
import os, torch
torch.set_num_threads(int(os.environ.get("TEST_THREADS", "1")))
ones = torch.ones(64, 64)
ones @ ones  # by MKL
torch.nn.functional.conv2d(ones.expand(1, 3, 64, 64), torch.ones(8, 3, 8, 8))  # by oneDNN
ones.bfloat16() @ ones.bfloat16()  # by oneDNN, if the CPU has instructions for it
print("torch", torch.backends.cpu.get_cpu_capability(), torch.get_num_threads(), sep=":")
"""


class InstructionSet(NamedTuple):
    """What the libraries of a process compute with, in their own words."""

    torch: str
    onednn: str
    mkl: str
    threads: str

    def __str__(self) -> str:
        return f"torch {self.torch}; oneDNN {self.onednn}; MKL {self.mkl}; threads {self.threads}"


class Outcome(NamedTuple):
    """Counts of one run of pytest, and its exit code."""

    passed: int
    failed: int
    skipped: int
    code: int


def environment(setting: str) -> dict[str, str]:
    """The environment of a setting: that of this process, with its variables and without those it does not set."""
    values = dict(zip(VARIABLES, SETTINGS[setting], strict=False))
    rest = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return rest | {"OMP_NUM_THREADS": "1"} | {name: value for name, value in values.items() if value}


def instruction_set(setting: str) -> InstructionSet:
    """What torch dispatches to under a setting, and what ONEDNN_VERBOSE and MKL_VERBOSE report.

    With oneDNN's kernels of a convolution and of a product in bfloat16; ``none`` for a library that torch was built
    without.
    """
    verbose = {"ONEDNN_VERBOSE": "1", "MKL_VERBOSE": "1"}
    command = [sys.executable, "-c", PROBE]
    return read_probe(subprocess.check_output(command, env=environment(setting) | verbose, text=True))


def read_probe(printed: str) -> InstructionSet:
    """Reads what PROBE prints under ONEDNN_VERBOSE and MKL_VERBOSE."""

    def first(pattern: str) -> str:
        match = re.search(pattern, printed, re.MULTILINE)
        return match[1].strip() if match else "none"

    kernels = re.findall(r"^onednn_verbose,.*,exec,cpu,(?:convolution|matmul),([^,]+),", printed, re.MULTILINE)
    onednn = first(r"^onednn_verbose,.*,cpu,isa:(?:Intel )?(.+)$")
    mkl = first(r"^MKL_VERBOSE .* architecture (.+?)(?: enabled processors)?, (?:Lnx|Win|OSX|Mac) ")
    return InstructionSet(
        torch=first(r"^torch:([^:]+):"),
        onednn=onednn + (f" ({', '.join(dict.fromkeys(kernels))})" if kernels else ""),
        mkl=", ".join(re.findall(r"\(Intel\(R\) ([^)]+)\)", mkl)) or mkl,
        threads=first(r"^torch:[^:]+:(\d+)$"),
    )


def run_tests(setting: str, arguments: Sequence[str]) -> Outcome:
    """Runs pytest under a setting: how many tests passed, failed or could not run, and were skipped."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [sys.executable, "-m", "pytest", f"--junitxml={report}", *arguments]
        code = subprocess.run(command, cwd=ROOT, env=environment(setting), check=False).returncode
        suites = ElementTree.parse(report).iter("testsuite") if report.exists() else ()
        tests, failed, skipped = (sum(counts) for counts in zip((0, 0, 0), *map(_counts, suites), strict=True))
    return Outcome(tests - failed - skipped, failed, skipped, code)


def _counts(suite: ElementTree.Element) -> tuple[int, int, int]:
    of = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    return of["tests"], of["failures"] + of["errors"], of["skipped"]


def table(rows: Sequence[tuple[str, InstructionSet, Outcome | str]]) -> str:
    """Lines of the summary: a setting, its instruction set, and its counts or why it was not run."""
    cells = [("setting", "instruction set", "passed  failed  skipped")]
    for name, used, outcome in rows:
        counts = outcome if isinstance(outcome, str) else "{:>6}  {:>6}  {:>7}".format(*outcome[:3])
        cells.append((name, str(used), counts))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the settings one after another; 1 if a test failed under one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", metavar="A,B", help=f"of {', '.join(SETTINGS)} (default: all)")
    parser.add_argument("--list", action="store_true", help="print what each setting uses, and run no test")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after -- (default: -n auto)")
    args = parser.parse_args(arguments)
    names = args.settings.split(",") if args.settings else list(SETTINGS)
    if unknown := [name for name in names if name not in SETTINGS]:
        parser.error(f"--settings {','.join(unknown)}: not a setting; choose from {', '.join(SETTINGS)}")
    rows: list[tuple[str, InstructionSet, Outcome | str]] = []
    known: dict[InstructionSet, str] = {}
    for name in names:
        used = instruction_set(name)
        print(f"{name}: {used}", flush=True)
        same = known.setdefault(used, name)
        if same != name:
            rows.append((name, used, f"not run: the same as {same}"))
        elif not args.list:
            rows.append((name, used, run_tests(name, args.pytest or DEFAULT)))
    if rows:
        print(table(rows))
    return int(any(outcome.code for *_, outcome in rows if isinstance(outcome, Outcome)))


if __name__ == "__main__":
    sys.exit(main())
