"""Prints what scoring, global assignment and documents cost against their size, with the fitted exponent.

    python benchmarks/scale.py
    python benchmarks/scale.py --only assignment --sizes 1000,2000,4000,8000,10000

Each size is measured in a process of its own. Memory is what that process held at most, less what it held before: with
the model loaded, or with the scores made. Images (64-pixel PNGs of rendered scenes, one for each group of 1x2) and
documents are made here. The exponent is the slope of a line through the logarithms: 1 is linear.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SIDE = 64
GROUPS = 100  # of each task of a document


@dataclass(frozen=True)
class Kind:
    """What is measured: its sizes, what makes its material in a folder, and what measures one size there."""

    sizes: tuple[int, ...]
    make: Callable[[Path, int], None]
    measure: Callable[[Path, int], dict[str, float]]


def make_groups(folder: Path, count: int) -> None:
    """A task of 1x2 groups with an image file each."""
    import yaml
    from PIL import Image

    from ttmbench.data.rendered import scenes

    rng = np.random.default_rng(0)
    drawn = scenes.make_groups("color", min(count, 400), 0)
    pixels = [np.asarray(scenes.render(group.scenes[0]).resize((SIDE, SIDE)), dtype=np.int16) for group in drawn]
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for number in range(count):
            noisy = pixels[number % len(drawn)] + rng.integers(-9, 10, (SIDE, SIDE, 3))
            Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(folder / f"{number}.png", compress_level=1)
            first, second = drawn[number % len(drawn)].captions
            row = {
                "id": str(number),
                "image": f"{number}.png",
                "true": f"{first} {number}",
                "false": f"{second} {number}",
            }
            file.write(json.dumps(row) + "\n")
    columns = {"id": "id", "images": ["image"], "captions": ["true", "false"]}
    spec = {
        **{"task": "sized", "version": 1, "source": {"kind": "folder", "path": "rows.jsonl", "images": "."}},
        **{"group": {"shape": [1, 2], "n_groups": count, **columns}, "metrics": ["text_score", "group_match"]},
    }
    (folder / "sized.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")


def measure_groups(folder: Path, count: int) -> dict[str, float]:
    """A whole run of the built-in model on so many groups: read, scored, summed up."""
    import ttmbench
    from ttmbench.model_adapters import tiny_clip

    model = tiny_clip.load(device="cpu")
    settings = {"device": "cpu", "use_cache": "off"}
    ttmbench.simple_evaluate(model, str(folder / "sized.yaml"), limit=8, **settings)  # imports what a run needs
    return measured(lambda: ttmbench.simple_evaluate(model, str(folder / "sized.yaml"), limit=count, **settings))


def measure_assignment(folder: Path, count: int) -> dict[str, float]:
    """One assignment of so many images to as many captions, of which each belongs to one of the images."""
    from ttmbench.matching import match_global

    rng = np.random.default_rng(0)
    images = rng.standard_normal((count, 64), dtype=np.float32)
    captions = images + 3 * rng.standard_normal((count, 64), dtype=np.float32)
    scores = images @ captions.T
    return measured(lambda: match_global(scores))


def make_documents(folder: Path, count: int) -> None:
    """Runs of the built-in model with samples beside them, under so many names."""
    import ttmbench

    source = folder / "one"
    tasks = ["shapes_color", "shapes_place", "shapes_replace"]
    settings = {"device": "cpu", "use_cache": "off", "ttm": True, "ttm_args": {"iterations": 2, "epochs": 1}}
    ttmbench.simple_evaluate("tiny-clip", tasks, limit=GROUPS, log_samples=True, output_path=str(source), **settings)
    (document,) = source.rglob("results_*.json")
    content = json.loads(document.read_text(encoding="utf-8"))
    for number in range(count):
        target = folder / "runs" / f"{number:04d}"
        target.mkdir(parents=True)
        for file in content["artifacts"]:
            (target / file).write_bytes((document.parent / file).read_bytes())
        changed = content | {"model_name": f"model-{number}", "date": content["date"] + number}
        (target / document.name).write_text(json.dumps(changed), encoding="utf-8")


def measure_documents(folder: Path, count: int) -> dict[str, float]:
    """``leaderboard``, ``report`` and ``compare`` of so many documents."""
    from ttmbench.cli import main

    chosen = folder / f"chosen{count}"
    chosen.mkdir()
    for number in range(count):
        name = f"{number:04d}"  # links of files: the commands do not follow those of folders
        shutil.copytree(folder / "runs" / name, chosen / name, copy_function=os.link)
    documents = [str(next(run.glob("results_*.json"))) for run in sorted(chosen.iterdir())]
    out = ["--output_path", str(folder / f"out{count}")]
    commands = {
        "leaderboard": ["leaderboard", str(chosen.resolve()), *out],
        "report": ["report", str(chosen.resolve()), "--output_path", str(folder / f"out{count}" / "report.html")],
        "compare": ["compare", *documents],
    }
    numbers: dict[str, float] = {}
    for name, command in commands.items():
        with redirect_stdout(io.StringIO()):
            values = measured(lambda command=command: _succeed(main(command), command))  # type: ignore[misc]
        numbers |= {f"{name} {key}": value for key, value in values.items()}
    return numbers


def _succeed(code: int, command: list[str]) -> None:
    if code != 0:
        sys.exit(f"ttmbench {' '.join(command)} ended with {code}")


def measured(work: Callable[[], Any]) -> dict[str, float]:
    """Wall and processor time of some work, and how much more memory the process held than before, at most."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak that a process inherits is its parent's
    before, clock, used = held("VmRSS"), time.perf_counter(), time.process_time()
    work()
    numbers = {"seconds": time.perf_counter() - clock, "processor seconds": time.process_time() - used}
    return numbers | {"GB": (held("VmHWM") - before) / 1e9}


def held(what: str) -> int:
    """Bytes of memory that this process holds (VmRSS), or has held at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{what}:"))


KINDS = {
    "groups": Kind((1000, 3000, 10000, 30000), make_groups, measure_groups),
    "assignment": Kind((1000, 2000, 4000, 8000, 10000), lambda folder, count: None, measure_assignment),
    "documents": Kind((10, 50, 200), make_documents, measure_documents),
}


def exponent(sizes: list[int], values: list[float]) -> float:
    """Slope of the line through the logarithms.

    >>> round(exponent([1, 10, 100], [2, 200, 20000]), 6)
    2.0
    """
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-9)), 1)[0])


def main_of_parent(options: argparse.Namespace) -> None:
    """Makes the material, measures each size in a child, prints a table a kind."""
    report: dict = {}
    for name in options.only.split(","):
        kind = KINDS[name]
        sizes = sorted(int(size) for size in options.sizes.split(",")) if options.sizes else list(kind.sizes)
        with tempfile.TemporaryDirectory() as folder:
            kind.make(Path(folder), max(sizes))
            rows = [_child(name, Path(folder), size) for size in sizes]
        keys = list(rows[0])
        report[name] = {"sizes": sizes, "rows": rows}
        several = len(set(sizes)) > 1
        report[name]["exponents"] = {key: exponent(sizes, [row[key] for row in rows]) for key in keys if several}
        print(f"| {name} | " + " | ".join(keys) + " |\n|" + "---|" * (len(keys) + 1))
        for size, row in zip(sizes, rows, strict=True):
            print(f"| {size} | " + " | ".join(f"{row[key]:.2f}" for key in keys) + " |")
        if several:
            print("| exponent | " + " | ".join(f"{report[name]['exponents'][key]:.2f}" for key in keys) + " |")
        print(flush=True)
    if options.output:
        options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _child(name: str, folder: Path, size: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", name, "--folder", str(folder), "--sizes", str(size)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    numbers: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return numbers


def main() -> None:
    """Measures everything; or, as a child, one size."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", default=",".join(KINDS), help="some of them, with commas")
    parser.add_argument("--sizes", help="other sizes, with commas")
    parser.add_argument("--output", type=Path, help="also write the numbers as JSON")
    parser.add_argument("--child", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(KINDS[options.child].measure(options.folder, int(options.sizes))))
    else:
        main_of_parent(options)


if __name__ == "__main__":
    main()
