"""What a sweep costs beside the runs that it is made of, and how it scales.

python benchmarks/sweep.py    # cells by single commands, in one process, by 1 and by 2 workers
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

PLAN = """
models: [tiny-clip, tiny-clip-seed1]
tasks: [shapes_color, shapes_place]
settings:
  - {name: raw}
  - {name: ttm, ttm: true, seeds: [0, 1], ttm_args: {iterations: 2, epochs: 2}}
options: {limit: LIMIT, bootstrap_iters: 0}
"""
ONE_PROCESS = """
import sys
from pathlib import Path
from ttmbench.evaluator.adapters import make_adapter
from ttmbench.evaluator.run import run
from ttmbench.evaluator.settings import model_settings
from ttmbench.sweep.plan import expand, read_plan
plan, root, adapters = Path(sys.argv[1]), Path(sys.argv[2]), {}
for one in expand(read_plan(plan), "plan", {}):
    config = one.cell.config_at(root)
    if config.model not in adapters:
        adapters[config.model] = make_adapter(one.chosen.registry, config.model, {}, model_settings(config))
    run(config, adapter=adapters[config.model], chosen=one.chosen)
"""


WAYS = ("process", "workers1", "workers2", "commands")
"""One process that runs all cells; sweeps of 1 and 2 workers; a command for each cell."""


def compare(limit: int, ways: Sequence[str]) -> dict[str, float]:
    """Seconds of the clock and of the processor for the same eight cells, each way in new processes and folders."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder, "plan.yaml")
        plan.write_text(PLAN.replace("LIMIT", str(limit)), encoding="utf-8")
        sweep = ["-m", "ttmbench", "sweep", str(plan), "-o"]
        commands: dict[str, list[list[str]]] = {
            "process": [["-c", ONE_PROCESS, str(plan), f"{folder}/one"]],
            "workers1": [[*sweep, f"{folder}/w1", "--workers", "1"]],
            "workers2": [[*sweep, f"{folder}/w2", "--workers", "2"]],
            "commands": [[*sweep, f"{folder}/cells", "--cell", str(number)] for number in range(1, 9)],
        }
        seconds: dict[str, float] = {}
        for way in ways:
            timed = [_seconds(words) for words in commands[way]]
            seconds[f"{way}, clock"] = sum(clock for clock, _ in timed)
            seconds[f"{way}, processor"] = sum(processor for _, processor in timed)
        return seconds


def _seconds(words: Sequence[str]) -> tuple[float, float]:
    """Of the clock, and of the processor in the process and all that it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "TTMBENCH_CACHE": "off"}
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{words}: {done.stderr[-2000:]}")
    clock, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="in which real cells are run")
    parser.add_argument("--limit", type=int, default=40, help="groups of a real cell")
    parser.add_argument("--output", type=Path, help="also write the numbers there, as JSON")
    options = parser.parse_args()
    seconds = compare(options.limit, options.ways)
    for name, value in seconds.items():
        print(f"{name:54} {value:12.4g}")
    if options.output:
        options.output.write_text(json.dumps(seconds, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
