"""Times how long commands and small runs take to start, beside the imports that they cannot do without.

    python benchmarks/startup.py

Every command is a process of its own. They take turns, round after round, so that a busy minute slows all of them; what
is printed are medians, and of differences the medians of those within a round. Models are random and small, made here.
The first round writes bytecode, into a temporary folder or into the PYTHONPYCACHEPREFIX of the environment.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from material import make_clip, make_siglip

RUN = ("--tasks", "shapes_color", "--limit", "4", "--device", "cpu")
CLASSES = "import torch, transformers; from transformers import {0}Model, {0}Processor"


@dataclass(frozen=True)
class Command:
    """What is timed.

    Attributes:
        name: in the table.
        words: behind ``python``.
        beside: name of the command that it is compared with.
        code: the exit code that it has to have.
    """

    name: str
    words: tuple[str, ...]
    beside: str = "nothing"
    code: int = 0


def commands(folder: Path) -> list[Command]:
    """All of them; models lie in ``folder``."""
    tiny = ("--model", "tiny-clip")
    clip, siglip = "imports of CLIP", "imports of SigLIP"
    return [
        Command("nothing", ("-c", "pass")),
        Command("imports of CLIP", ("-c", CLASSES.format("CLIP"))),
        Command("imports of SigLIP", ("-c", CLASSES.format("Siglip"))),
        Command("import ttmbench", ("-c", "import ttmbench")),
        Command("--help", ("-m", "ttmbench", "--help")),
        Command("ls tasks", ("-m", "ttmbench", "ls", "tasks")),
        Command("wrong option", ("-m", "ttmbench", *tiny, *RUN, "--nonsense"), code=2),
        Command("wrong model", ("-m", "ttmbench", "--model", "nonsense", *RUN), code=2),
        Command("wrong task", ("-m", "ttmbench", *tiny, "--tasks", "nonsense"), code=2),
        Command("run of tiny-clip", ("-m", "ttmbench", *tiny, *RUN), clip),
        Command("run of a CLIP", ("-m", "ttmbench", *_hf(folder / "clip"), *RUN), clip),
        Command("run of a SigLIP", ("-m", "ttmbench", *_hf(folder / "siglip"), *RUN), siglip),
    ]


def _hf(folder: Path) -> tuple[str, ...]:
    return ("--model", "hf", "--model_args", f"pretrained={folder}")


def children(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment of what is timed: bytecode is kept, as where users install, whatever this process was told."""
    variables = {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        **variables,
        "TTMBENCH_CACHE": "off",
        "HF_HUB_OFFLINE": "1",
    }


def measure(command: Command, environment: Mapping[str, str], folder: Path) -> dict[str, float]:
    """Seconds on the clock and of the processor, of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *command.words], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    clock = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != command.code:
        raise SystemExit(f"{command.name}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return {"clock": clock, "processor": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def table(chosen: Sequence[Command], times: Mapping[str, list[dict[str, float]]]) -> list[dict[str, float | str]]:
    """A row a command: medians, and how much more than what it stands beside, as a difference and as a ratio."""
    rows: list[dict[str, float | str]] = []
    for command in chosen:
        row: dict[str, float | str] = {"command": command.name, "beside": command.beside}
        for kind in ("clock", "processor"):
            seconds = [run[kind] for run in times[command.name]]
            other = [run[kind] for run in times[command.beside]]
            row[kind] = statistics.median(seconds)
            row[f"{kind}_more"] = statistics.median(a - b for a, b in zip(seconds, other, strict=True))
            row[f"{kind}_ratio"] = statistics.median(a / b for a, b in zip(seconds, other, strict=True))
        rows.append(row)
    return rows


def main() -> None:
    """Makes the models, runs every command once to fill caches, then in turns, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, default=5, help="rounds that count")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = children(os.environ, folder)
        chosen = commands(folder)
        make_clip(folder / "clip", 64, 2)
        make_siglip(folder / "siglip", 64, 2)
        times: dict[str, list[dict[str, float]]] = {command.name: [] for command in chosen}
        for round_number in range(options.repeats + 1):
            for command in chosen:
                seconds = measure(command, environment, folder)
                if round_number:  # the first compiles modules and reads files into memory
                    times[command.name].append(seconds)
    rows = table(chosen, times)
    print(f"{'seconds':20}{'clock':>8}{'more':>8}{'ratio':>8}{'processor':>12}{'more':>8}{'ratio':>8}  beside")
    for row in rows:
        figures = "".join(
            f"{row[kind]:{width}.2f}{row[f'{kind}_more']:8.2f}{row[f'{kind}_ratio']:8.2f}"
            for kind, width in (("clock", 8), ("processor", 12))
        )
        print(f"{row['command']:20}{figures}  {row['beside']}")


if __name__ == "__main__":
    main()
