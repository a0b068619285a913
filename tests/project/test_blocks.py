"""Programs, plugins, task files and listings that pages show: they run, or the product reads them.

`test_docs.py` runs the page on running evaluations and the pages that are walked from top to bottom.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from support import processes
from support.checkout import ROOT, blocks
from support.task_data import find

from ttmbench.cli import main
from ttmbench.reproduce.tables import load_table
from ttmbench.sweep.plan import expand, read_plan


def execute(program: str, folder: Path) -> str:
    """Its output; what lies in the folder can be imported, as by any program of ``python -c``."""
    environment = {**os.environ, "TTMBENCH_CACHE": str(folder / "kept")}
    done = processes.run(["-c", program], cwd=folder, capture_output=True, encoding="utf-8", env=environment)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


def package_of(page: str, folder: Path) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Writes the files of a page as an installed package; returns its blocks, and its commands on eight groups."""
    marked = [*blocks(ROOT / "docs" / page, "python"), *blocks(ROOT / "docs" / page, "toml")]
    for mark, text in marked:
        if mark.startswith("file: "):
            path = folder / mark.removeprefix("file: ")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    assert "" not in dict(marked)
    about = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    made = folder / f"{about['name'].replace('-', '_')}-0.1.0.dist-info"  # what pip would write
    made.mkdir()
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: 0.1.0\n", encoding="utf-8")
    lines = [f"{name} = {module}" for name, module in about["entry-points"]["ttmbench"].items()]
    (made / "entry_points.txt").write_text("\n".join(["[ttmbench]", *lines, ""]), encoding="utf-8")
    (commands,) = [text for _, text in blocks(ROOT / "docs" / page, "bash") if text.startswith("pip install -e .\n")]
    words = [line.split()[1:] for line in commands.splitlines() if line.startswith("ttmbench ")]
    words = [[*one, "--limit", "8"] if "--tasks" in one and "--limit" not in one else one for one in words]
    return marked, [[*one, "--device", "cpu"] if "--tasks" in one else one for one in words]


def test_the_page_on_adapters_makes_a_package_that_works(tmp_path):
    """Its files in the package that its command makes: tests, program, and commands as an installed plugin's."""
    tmp_path /= "my-models"
    assert main(["new", "adapter", "my-models", "--output_path", str(tmp_path)]) == 0
    marked, words = package_of("add-an-adapter.md", tmp_path)
    assert {mark for mark, _ in marked} >= {"run", "file: my_models/plugin.py"} and len(words) == 5
    program = "\n".join(text for mark, text in marked if mark == "run")
    execute(
        f"{program}\n"
        "import test_adapters\ntest_adapters.test_adapters_keep_the_contract()\n"
        "from my_models.always_first import AlwaysFirst\n"
        "chosen = simple_evaluate(AlwaysFirst(), 'shapes_color', limit=4)\n"
        "assert chosen.results['shapes_color']['text_score,choice'] is not None\n"
        f"from ttmbench.cli import main\nfor words in {words}:\n    assert main(words) == 0, words\n",
        tmp_path,
    )


@pytest.mark.slow
def test_the_page_on_methods_makes_a_package_that_works(tmp_path):
    """Its files in their places, its test, its commands as an installed plugin's, and a sweep over its settings."""
    marked, words = package_of("add-a-method.md", tmp_path)
    assert len(marked) == 6 and len(words) == 4
    grid = {"lr": [1e-3, 1e-4]}
    plan = {
        **{"models": ["tiny-clip"], "tasks": ["shapes_color"], "options": {"limit": 6, "bootstrap_iters": 0}},
        "settings": [{"name": "teacher", "methods": "mean_teacher", "seeds": [0], "grid": grid}],
    }
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan), encoding="utf-8")
    words.append(["sweep", "plan.yaml", "-o", "board", "--workers", "1"])
    shown = execute(
        "import os\nos.environ['PYTHONPATH'] = os.getcwd()\n"
        "from ttmbench.testing import check_method\n"
        "for name in ('sharpened', 'centred', 'mean_teacher', 'best_quarter'):\n"
        "    print(len(check_method(name)), 'checks')\n"
        f"from ttmbench.cli import main\nfor words in {words}:\n    assert main(words) == 0, words\n",
        tmp_path,
    )
    assert shown.count("checks") == 4 and "mean_teacher" in shown
    found = [json.loads(file.read_text(encoding="utf-8")) for file in (tmp_path / "board").rglob("results.json")]
    rates = [one["methods"]["shapes_color"]["mean_teacher"]["settings"]["lr"] for one in found]
    assert sorted(rates) == sorted(grid["lr"])


def test_the_hooks_of_the_page_on_hooks_are_a_plugin_that_works(tmp_path):
    """All of them in one module; what it registers is used, and what it prints is what a run tells it."""
    source = ["import importlib.resources", "import numpy as np"]
    source += ["from ttmbench import AdapterSpec, MethodSpec, MetricSpec, ScheduleSpec, SourceSpec, hookimpl"]
    source += ["from ttmbench.matching import match_groups"]
    package = tmp_path / "my_package"
    (package / "tasks").mkdir(parents=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    task = {
        "task": "walls",
        "version": 1,
        "source": {"kind": "walls", "colors": ["red", "green", "blue"]},
        "group": {"shape": [1, 2], "n_groups": 3},
        "metrics": ["group_match", "clear_match"],
    }
    (package / "tasks" / "walls.yaml").write_text(yaml.safe_dump(task), encoding="utf-8")
    passed = ""
    for _, text in blocks(ROOT / "docs" / "hooks.md", "python"):
        if file := re.match(r'"""my_package/(\w+\.py)"""', text):
            (package / file[1]).write_text(text, encoding="utf-8")
        elif "import my_plugin" in text:
            passed = text
        else:
            source.append(text)
    (tmp_path / "my_plugin.py").write_text("\n".join(source), encoding="utf-8")
    assert len(set(re.findall(r"def (ttmbench_\w+)", "\n".join(source)))) == 10
    shown = execute(
        f"{passed}\n"
        "adapted = simple_evaluate('tiny-clip', ['walls', 'shapes_color'], limit=3, plugins=[('mine', my_plugin)],\n"
        "    ttm={'iterations': 1, 'epochs': 1, 'schedule': 'halving'}, methods=['halved'], device='cpu')\n"
        "assert 'group_score,halved' in adapted.results['shapes_color']\n"
        "assert 'clear_match,none' in adapted.results['walls'], adapted.results\n",
        tmp_path,
    )
    lines = shown.splitlines()
    assert lines[0] == "tiny-clip ['shapes_color']" and lines.count("done None") == 2
    assert any(re.match(r"shapes_color none [\d.]+$", line) for line in lines)
    assert any(re.match(r"walls ttm 0 1 [-\d.]+ [\d.]+$", line) for line in lines)
    (table,) = blocks(ROOT / "docs" / "hooks.md", "toml")
    assert list(tomllib.loads(table[1])["project"]["entry-points"]["ttmbench"]) == ["my_plugin"]


def test_the_readmes_program_runs(tmp_path):
    """On eight groups and one iteration: the whole takes minutes."""
    ((_, text),) = blocks(ROOT / "README.md", "python")
    small = text.replace("ttm=True, seeds=[0, 1]", "ttm={'iterations': 1, 'epochs': 1}, seeds=[0, 1], limit=8")
    assert small != text
    given = "import numpy as np\nscores = np.array([[[2.0, 1.0], [0.0, 3.0]]])\n"
    shown = re.findall(r'^(result\["chance"\].*?)  # ([\d.]+)$', text, flags=re.MULTILINE)
    assert len(shown) == 1
    execute(f"{given}{small}\n" + "\n".join(f"assert {code} == {value}" for code, value in shown), tmp_path)


def test_the_program_on_results_reads_the_reference(tmp_path):
    ((_, text),) = blocks(ROOT / "docs" / "results-format.md", "python")
    (tmp_path / "results").symlink_to(ROOT / "results")
    assert "shapes_color" in execute(text, tmp_path)


WHOLE = {
    "task": "mine",
    "version": 1,
    "source": {"kind": "folder", "path": "rows.jsonl", "images": "images"},
    "group": {"shape": [1, 2], "n_groups": 2, "images": ["image"], "captions": ["true", "false"]},
    "metrics": ["group_match"],
}
PARTS = [text for _, text in blocks(ROOT / "docs" / "task-file.md", "yaml")]


def completed(part: dict) -> dict:
    """A part of a task file with what it leaves out."""
    if "also" in part:
        return {**WHOLE, "source": {"kind": "annotations", "file": "rows.json", "images": "coco/val2017", **part}}
    if "kind" in part:
        return {"task": "mine", "version": 1, **part}
    tags = {"tags": sorted({tag for mean in part.get("means", {}).values() for tag in mean["by"]})}
    return {**WHOLE, **part, "group": WHOLE["group"] | (tags if tags["tags"] else {}) | part.get("group", {})}


@pytest.mark.parametrize("text", PARTS, ids=[text.partition("\n")[0] + str(at) for at, text in enumerate(PARTS)])
def test_a_part_of_a_task_file_is_one(text, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(completed(yaml.safe_load(text))), encoding="utf-8")
    assert find(path).spec.task == "mine"


def test_the_configuration_of_a_run_is_one(tmp_path, monkeypatch, capsys):
    ((_, text),) = blocks(ROOT / "docs" / "running.md", "yaml")
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--config", "run.yaml", "--ttm_args", "epochs=3", "--dry_run", "--json"]) == 0
    for task in json.loads(capsys.readouterr().out)["tasks"].values():
        assert (task["methods"]["ttm"]["epochs"], task["methods"]["ttm"]["iterations"]) == (
            3,
            2,
        )  # as the page says of the two


def test_a_table_of_ones_own_is_read(tmp_path):
    ((_, text),) = blocks(ROOT / "docs" / "table-file.md", "yaml")
    path = tmp_path / "table3.yaml"
    path.write_text(text, encoding="utf-8")
    head = "source,table,task,model,method,metric,percent,std_percent\n"
    rows = ("colorswap,CLIP B/32,raw,group_match,60.0,", "both,ours,ttm,group_match,70.0,0.5")
    (tmp_path / "table3.csv").write_text(head + "".join(f"A Paper,Table 3,{row}\n" for row in rows), encoding="utf-8")
    assert len(load_table(str(path)).numbers) == 2


def test_a_plan_of_a_sweep_has_the_cells_that_it_says(tmp_path):
    (_, text), (_, grids) = blocks(ROOT / "docs" / "sweep.md", "yaml")
    path = tmp_path / "plan.yaml"
    path.write_text(grids, encoding="utf-8")
    assert len(list(expand(read_plan(path), "plan.yaml", {}))) == 9
    path.write_text(text, encoding="utf-8")
    cells = expand(read_plan(path), "plan.yaml", {})
    assert sorted((cell.config.model_name, cell.task, cell.setting) for cell in cells) == [
        (model, task, setting)
        for model, settings in (("second", ["raw"]), ("tiny-clip", ["raw", "ttm"]))
        for task in ("shapes_color", "shapes_place")
        for setting in settings
    ]


def test_a_new_task_has_the_files_that_are_listed(tmp_path, monkeypatch):
    ((_, text),) = blocks(ROOT / "docs" / "add-a-task.md", "text")
    monkeypatch.chdir(tmp_path)
    assert main(["new", "task", "my_photos"]) == 0
    folder, *names = (line.split()[0] for line in text.splitlines())
    assert sorted(names) == sorted(path.name + "/" * path.is_dir() for path in (tmp_path / folder).iterdir())


def test_the_page_on_parts_brings_two_that_run_and_resume(tmp_path):
    (_, module), (_, program) = blocks(ROOT / "docs" / "ttm-parts.md", "python")
    (tmp_path / "my_parts.py").write_text(module, encoding="utf-8")
    assert json.loads(execute(program, tmp_path).splitlines()[-1]) == [2, 2]
