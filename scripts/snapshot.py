"""Runs a fixed list of commands and stores everything a user can see of them, so that two versions can be compared.

    python scripts/snapshot.py run FOLDER         # about ten minutes on two cores
    python scripts/snapshot.py compare OLD NEW    # prints what differs; exit code 1 if anything does

Each command leaves one folder: ``exit``, ``stdout``, ``stderr`` and every file it wrote, as text. What changes from run
to run (times, durations, temporary folders, digests of the package itself) is replaced by a placeholder. The models and
tasks are the built-in ones and those of the Hub stand-in in ``tests/support``, so no network is needed.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
QUICK = "--device cpu --bootstrap_iters 50"
SHORT_TTM = "--ttm --ttm_args iterations=2,epochs=1"
CHAT_MODEL = "HuggingFaceTB/SmolVLM-256M-Instruct"
COMMANDS = f"""
# metadata
help | --help
help_run | run --help
version | --version
ls_tasks | ls tasks
ls_tasks_json | ls tasks --json
ls_models | ls models
ls_metrics | ls metrics --json
ls_schedules | ls schedules
ls_plugins | ls plugins --json
show_task | show winoground
show_model | show clip-b32
schema_results | schema results
schema_task | schema task
validate_task | validate shapes_color
power | power winoground
# every shape of task with the built-in model
raw | --model tiny-clip --tasks shapes_color --limit 24 {QUICK} -o out/raw.json
saved | --model tiny-clip --tasks shapes_color {QUICK} --log_samples --save_scores -o out/saved
one_image | --model tiny-clip --tasks shapes_replace,shapes_spatial --limit 24 {QUICK} --log_samples -o out/one_image
global | --model tiny-clip --tasks shapes_color_global --limit 24 {QUICK} --log_samples -o out/global
ttm | --model tiny-clip --tasks shapes_color --limit 24 {QUICK} {SHORT_TTM} --seeds 0,1 --log_samples -o out/ttm
ttm_1xk | --model tiny-clip --tasks shapes_spatial --limit 24 {QUICK} {SHORT_TTM} -o out/ttm_1xk
ttm_global | --model tiny-clip --tasks shapes_color_global --limit 24 {QUICK} {SHORT_TTM} -o out/ttm_global
controls | --model tiny-clip --tasks shapes_place --limit 24 {QUICK} {SHORT_TTM} --oracle --simple_match
  --ttm_controls placebo,shuffle --ttm_holdout 0.5 --audit_labels -o out/controls
also | --model tiny-clip --tasks shapes_place --limit 24 {QUICK} {SHORT_TTM} --ttm_also shapes_color -o out/also
adapted | --model tiny-clip --tasks shapes_place --limit 16 {QUICK} {SHORT_TTM} --save_adapted out/tuned
  -o out/adapted
sugarcrepe_pp | --model tiny-clip --tasks sugarcrepe_pp_swap_obj --limit 8 {QUICK} --log_samples -o out/sugarcrepe_pp
retrieval | --model tiny-clip --tasks shapes_retrieval {QUICK} --log_samples -o out/retrieval
imagenet | --model tiny-clip --tasks imagenet --limit 20 {QUICK} -o out/imagenet
several_tasks | --model tiny-clip --tasks builtin --limit 8 {QUICK} -o out/several
dry_run | --model tiny-clip --tasks builtin --ttm --dry_run
config | --config config.yaml -o out/config.json
# kinds of models
clip | --model clip-b32 --tasks colorswap --limit 6 {QUICK} {SHORT_TTM} --log_samples -o out/clip
siglip | --model siglip-b16 --tasks winoground --limit 6 {QUICK} {SHORT_TTM} -o out/siglip
open_clip | --model open_clip-vit-b32 --tasks colorswap --limit 6 {QUICK} -o out/open_clip
itc | --model blip-itc --tasks colorswap --limit 6 {QUICK} -o out/itc
itm | --model blip-itm --tasks colorswap --limit 6 {QUICK} -o out/itm
flava | --model flava-itm --tasks colorswap --limit 6 {QUICK} -o out/flava
blip2 | --model blip2-itm --tasks colorswap --limit 4 {QUICK} -o out/blip2
vqascore | --model vqascore-smolvlm-256m --tasks colorswap --limit 4 {QUICK} -o out/vqascore
visualgpt | --model visualgpt-blip --tasks colorswap --limit 4 {QUICK} -o out/visualgpt
blind | --model blind -a pretrained={CHAT_MODEL} --tasks colorswap --limit 4 {QUICK} -o out/blind
choice | --model choice -a pretrained={CHAT_MODEL} --tasks colorswap --limit 4 {QUICK} --log_samples -o out/choice
openai | --model openai -a model=test-model,base_url=CHAT,prices=none
  --tasks colorswap --limit 4 {QUICK} -o out/openai
embeddings | --model embeddings -a path=features.npz --tasks winoground {QUICK} --simple_match -o out/embeddings
bf16 | --model tiny-clip --tasks shapes_color --limit 16 {QUICK} --dtype bf16 -o out/bf16
# stored scores, ranks and answers
score_jsonl | score scores.jsonl --task winoground -o out/score_jsonl.json
score_saved | score out/saved/tiny-clip/scores_*.safetensors --task shapes_color -o out/score_saved.json
score_ranks | score out/retrieval/tiny-clip/samples_*.jsonl --task shapes_retrieval -o out/score_ranks.json
score_answers | score out/choice/choice*/samples_*.jsonl --task colorswap --limit 4 -o out/score_answers.json
score_bad | score bad.jsonl --task winoground
# resume, sweep, several results
resume_first | --model tiny-clip --tasks shapes_color,shapes_place --limit 8 {QUICK} -o out/resume
resume_again | --model tiny-clip --tasks shapes_color,shapes_place --limit 8 {QUICK} -o out/resume
overwrite_never | --model tiny-clip --tasks shapes_color --limit 9 {QUICK} -o out/raw.json --overwrite never
sweep | sweep plan.yaml -o out/sweep
sweep_again | sweep plan.yaml -o out/sweep
sweep_dry_run | sweep plan.yaml -o out/sweep --dry_run
finetune | finetune --model tiny-clip --tasks shapes_color --limit 16 --finetune_args epochs=1 -o out/finetuned
analyze_tau | analyze thresholds --model tiny-clip --tasks shapes_color --limit 16 {QUICK} -o out/analysis
compare | compare out/saved/tiny-clip/results_*.json out/score_saved.json
leaderboard | leaderboard out/ttm
leaderboard_published | leaderboard out/saved --published all
leaderboard_site | leaderboard out/ttm --site out/site
report | report out/ttm
export_csv | export out/saved --to csv
export_latex | export out/saved --to latex
export_lm_eval | export out/saved --to lm-eval
export_model_index | export out/saved --to model-index
reproduce | reproduce builtin --runs ROOT/results/reference
cache_ls | cache ls
# errors
wrong_model | --model tiny-clipp --tasks shapes_color
wrong_task | --model tiny-clip --tasks shapes_colour
wrong_option | --model tiny-clip --tasks shapes_color --limt 3
wrong_model_args | --model tiny-clip -a width=3 --tasks shapes_color
wrong_ttm_args | --model tiny-clip --tasks shapes_color --ttm --ttm_args lrr=1
no_pixels | --model tiny-clip --tasks winoground --data_dir nowhere --offline
assertion | --model tiny-clip --tasks shapes_color --limit 8 {QUICK} --assert shapes_color.group_match,none>=1.01
bad_yaml | validate bad.yaml
bad_result | leaderboard bad_results
no_weights | --model hf -a pretrained=./nowhere --tasks shapes_color
"""
INPUTS = {
    "config.yaml": "model: tiny-clip\ntasks: [shapes_place]\nlimit: 8\nbootstrap_iters: 50\n",
    "plan.yaml": "models: [tiny-clip, tiny-clip-seed1]\ntasks: [shapes_color, shapes_place]\n"
    "settings:\n  - {name: raw}\n  - {name: ttm, ttm: true, ttm_args: {iterations: 1, epochs: 1}}\n"
    "options: {limit: 8, bootstrap_iters: 50, device: cpu}\n",
    "scores.jsonl": "".join(
        json.dumps({"label": f"{group}_c{caption}_i{image}", "score": (group * 7 + caption * 3 + image * 5) % 11 / 10})
        + "\n"
        for group in range(400)
        for caption in range(2)
        for image in range(2)
    ),
    "bad.jsonl": '{"label": "0_c0_i0", "score": "many"}\n',
    "bad.yaml": "task: bad\nshape: 3\n",
    "bad_results/results_1.json": '{"results": 1}',
}
# What differs between two runs of one version: (pattern, replacement), applied in order to every text.
VOLATILE = [
    (r"\d{4}-\d\d-\d\d[T ]\d\d[:-]\d\d[:-]\d\d(?:[.-]\d+)?(?:Z|\+00:00)?", "TIME"),
    (r"\b\d+(?:\.\d+)? ?(?:ms|s|min)\b", "DURATION"),
    (
        r"(\"(?:[a-z_]*seconds|seconds|git_hash|duration|total_evaluation_time_seconds|bytes|modified)\": )[^,\n}}]+",
        r"\1VARIES",
    ),
    (r"127\.0\.0\.1:\d+", "SERVER"),
    (r"\b\d+(?:\.\d+)?(?:it|pair|group|image)s?/s\b", "RATE"),
    (r"\bpid \d+", "pid N"),
]
VOLATILE_KEYS = {"timing", "efficiency", "hardware", "packages", "date", "run_key", "code"}


def commands() -> Iterator[tuple[str, list[str]]]:
    """Name and arguments of each command, in order; a line that begins with a blank continues the one before."""
    for line in COMMANDS.replace("\n  ", " ").splitlines():
        if line and not line.startswith("#"):
            name, _, arguments = line.partition(" | ")
            yield name, shlex.split(arguments)


def run(folder: Path) -> None:
    """Runs every command in one scratch folder and stores what each printed, returned and wrote below ``folder``."""
    sys.path.insert(0, str(ROOT / "tests"))
    import numpy as np
    from support.chat_server import ChatServer
    from support.hub_copies import write_copies
    from support.hub_server import TOKEN, HubServer

    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name).resolve()
        work = scratch / "work"
        for path, content in INPUTS.items():
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_text(content)
        features = np.random.default_rng(0).normal(size=(2, 800, 16)).astype(np.float32)
        np.savez(work / "features.npz", img=features[0], cap=features[1])
        write_copies(scratch / "hub")
        chat = ChatServer()
        places = {"ROOT": str(ROOT), "CHAT": chat.url}
        with HubServer(scratch / "hub") as hub:
            environment = {
                **os.environ,
                **hub.environment(scratch / "home"),
                "HF_TOKEN": TOKEN,
                "COLUMNS": "80",
                "NO_COLOR": "1",
            }
            environment |= {"TTMBENCH_CACHE": str(scratch / "cache"), "OMP_NUM_THREADS": "1"}
            for name, arguments in commands():
                words = [re.sub("ROOT|CHAT", lambda match: places[match[0]], word) for word in arguments]
                _run_one(folder / name, words, work, environment, str(scratch))
        chat.stop()


def _run_one(target: Path, arguments: list[str], work: Path, environment: Mapping[str, str], scratch: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file()}
    words = [sys.executable, "-m", "ttmbench", *_expanded(arguments, work)]
    done = subprocess.run(words, cwd=work, env=dict(environment), capture_output=True, text=True, timeout=600)
    print(f"{done.returncode:3d} {target.name}", flush=True)
    texts = {"exit": f"{done.returncode}\n", "stdout": done.stdout, "stderr": done.stderr}
    for path in sorted(work.rglob("*")):
        if path.is_file() and before.get(path) != path.stat().st_mtime_ns and ".sweep" not in path.parts:
            texts[f"files/{path.relative_to(work)}"] = _as_text(path)
    for name, text in texts.items():
        file = target / _stable(name, scratch)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_stable(text, scratch), encoding="utf-8")


def _expanded(arguments: list[str], work: Path) -> list[str]:
    """The arguments with globs below the working folder replaced by what they match."""
    return [str(path) for word in arguments for path in (sorted(work.glob(word)) if "*" in word else [word])]


def _as_text(path: Path) -> str:
    if path.suffix == ".json":
        return json.dumps(_without_volatile(json.loads(path.read_text())), indent=1, sort_keys=True)
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        return "".join(f"{key} {value.shape} {value.tolist()}\n" for key, value in sorted(load_file(path).items()))
    content = path.read_bytes()
    return (
        content.decode("utf-8")
        if path.suffix in {".jsonl", ".csv", ".md", ".tex", ".html"}
        else f"{len(content)} bytes"
    )


def _without_volatile(value: object) -> Any:
    if isinstance(value, dict):
        return {key: "VARIES" if key in VOLATILE_KEYS else _without_volatile(item) for key, item in value.items()}
    return [_without_volatile(item) for item in value] if isinstance(value, list) else value


def _stable(text: str, scratch: str) -> str:
    text = text.replace(scratch, "SCRATCH").replace(str(ROOT), "ROOT")
    for pattern, replacement in VOLATILE:
        text = re.sub(pattern, replacement, text)
    return text


def compare(old: Path, new: Path) -> int:
    """Prints a unified diff of two snapshots; returns the number of files that differ."""
    names = sorted({str(path.relative_to(root)) for root in (old, new) for path in root.rglob("*") if path.is_file()})
    texts = [[(root / name).read_text() if (root / name).is_file() else "" for root in (old, new)] for name in names]
    changed = [(name, before, after) for name, (before, after) in zip(names, texts, strict=True) if before != after]
    for name, before, after in changed:
        print(
            "\n".join(difflib.unified_diff(before.splitlines(), after.splitlines(), f"old/{name}", f"new/{name}", n=1))
        )
    print(f"{len(changed)} of {len(names)} files differ")
    return len(changed)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run").add_argument("folder", type=Path)
    comparison = commands.add_parser("compare")
    comparison.add_argument("old", type=Path)
    comparison.add_argument("new", type=Path)
    options = parser.parse_args()
    if options.command == "run":
        run(options.folder)
        return 0
    return int(compare(options.old, options.new) > 0)


if __name__ == "__main__":
    sys.exit(main())
