"""What is imported at each stage: nothing before it is needed, so names are answered at once and small runs start soon.

Each child process goes through several stages and reports what it has imported after each; what one stage may import,
the stages before it may not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import contextlib, io, json, sys
found, at_start = {}, set(sys.modules)
for name, code, action in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        if isinstance(action, str):
            exec(action)
            result = 0
        else:
            from ttmbench.cli import main
            try:
                result = main(action)
            except SystemExit as stop:
                result = stop.code
    assert result == code, (name, result, said.getvalue())
    found[name] = sorted(set(sys.modules) - at_start)
print(json.dumps(found))
"""
MODELS = {"accelerate", "open_clip", "sklearn", "timm", "torch", "torchvision", "transformers", "triton"}
FILES = {"datasets", "fsspec", "huggingface_hub", "pandas", "pyarrow", "safetensors", "tokenizers"}
SHOWING = {"jinja2", "matplotlib", "tqdm"}
HEAVY = MODELS | FILES | SHOWING | {"PIL", "scipy", "sympy"}
# Half a second each, or of another kind of model or data; a run of transformers' imports the rest of `HEAVY` itself.
NOT_IN_A_RUN = {"datasets", "matplotlib", "open_clip", "pandas", "pyarrow", "sklearn", "timm"}
NOT_IN_A_RUN |= {"scipy.stats", "scipy.integrate", "scipy.interpolate", "wandb", "tensorboard", "trackio", "peft"}
RUN = ["--tasks", "shapes_color", "--limit", "2", "--device", "cpu"]


def imported(*stages: tuple[str, int, object]) -> dict[str, set[str]]:
    """Stage -> modules that are imported after it; a stage is a name, an exit code and a command line or a program."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TTMBENCH_CACHE": "off", "COLUMNS": "100"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(stages)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return {name: set(modules) for name, modules in json.loads(done.stdout).items()}


@pytest.fixture(scope="module")
def light() -> dict[str, set[str]]:
    return imported(
        ("import", 0, "import ttmbench"),
        ("--help", 0, ["--help"]),
        ("wrong option", 2, ["--model", "tiny-clip", "--tasks", "shapes_color", "--nonsense"]),
        ("wrong model", 2, ["--model", "nonsense", "--tasks", "shapes_color"]),
        ("wrong task", 2, ["--model", "tiny-clip", "--tasks", "nonsense"]),
        ("wrong setting", 2, ["--model", "tiny-clip", "--tasks", "shapes_color", "--ttm_args", "schedule=nonsense"]),
        ("ls tasks", 0, ["ls", "tasks", "--json"]),
        ("show", 0, ["show", "tiny-clip"]),
        ("analysis", 2, ["analyze", "tau", "--model", "nonsense", "--tasks", "shapes_color"]),
        ("arrays", 0, "from ttmbench import metrics, matching, schedules, chance"),
        ("score", 2, ["score", "none.json", "--task", "nonsense"]),
    )


@pytest.fixture(scope="module")
def runs(tiny_hf_clip) -> dict[str, set[str]]:
    return imported(
        ("tiny-clip", 0, ["--model", "tiny-clip", *RUN]),
        ("hub", 0, ["--model", "hf", "--model_args", f"pretrained={tiny_hf_clip}", *RUN]),
    )


def packages(modules: set[str]) -> set[str]:
    """Top-level packages that are not part of Python."""
    return {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names)


def test_importing_the_package_imports_nothing_else(light):
    foreign = {name for name in packages(light["import"]) if not name.startswith("_")}  # _sysconfigdata_...
    assert foreign == {"ttmbench"}
    assert {name for name in light["import"] if name.startswith("ttmbench")} <= {"ttmbench", "ttmbench._version"}


def test_help_and_wrong_options_need_no_numbers(light):
    for stage in ("--help", "wrong option"):
        assert not packages(light[stage]) & (HEAVY | {"numpy", "yaml", "rich", "pluggy"}), stage
        assert not {"ttmbench.results.document"} & light[stage], stage


@pytest.mark.parametrize(
    "stage", ["wrong model", "wrong task", "wrong setting", "ls tasks", "show", "analysis", "arrays"]
)
def test_names_and_settings_need_no_model_library(light, stage):
    assert not packages(light[stage]) & (HEAVY | {"asyncio", "jaxtyping"})
    if stage.startswith("wrong"):
        assert "rich" not in packages(light[stage])


def test_scores_need_scipys_functions_alone(light):
    assert not packages(light["score"]) & (HEAVY - {"scipy"})
    assert not {"scipy.optimize", "scipy.stats"} & light["score"]


@pytest.mark.parametrize("stage", ["tiny-clip", "hub"])
@pytest.mark.slow
def test_a_small_run_imports_what_it_uses_alone(runs, stage):
    assert {"torch", "transformers"} <= packages(runs[stage])
    assert not {name for name in runs[stage] if name in NOT_IN_A_RUN}
