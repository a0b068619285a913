"""Slow: a third-party package, built, installed in a clean environment and used through its entry point."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from support.checkout import ROOT

pytestmark = pytest.mark.slow


def output_of(*words: object, folder: Path | None = None) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A clean environment with both wheels. Heavy dependencies are those of the environment that runs the tests."""
    folder = tmp_path_factory.mktemp("installed")
    for project in (ROOT, ROOT / "tests" / "third_party"):
        source = folder / project.name
        shutil.copytree(project, source, ignore=shutil.ignore_patterns("__pycache__", ".*", "*.egg-info"))
        for made in ("build", "dist", "site"):
            shutil.rmtree(source / made, ignore_errors=True)
        output_of(sys.executable, "-m", "build", "--wheel", "--outdir", folder / "dist", source)
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
    site = output_of(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    output_of(python, "-m", "pip", "install", "--quiet", "--no-deps", *(folder / "dist").glob("*.whl"))
    # After the installed packages on the path, so that both wheels win over anything of the same name there.
    here = output_of(sys.executable, "-c", "import numpy, pathlib; print(pathlib.Path(numpy.__file__).parents[1])")
    (Path(site) / "zz_dependencies.pth").write_text(here.strip(), encoding="utf-8")
    assert str(folder / "env") in output_of(python, "-c", "import ttmbench; print(ttmbench.__file__)", folder=folder)
    return python, folder


def ttmbench(environment, *words: str) -> str:
    python, folder = environment
    return output_of(python, "-m", "ttmbench", *words, folder=folder)


def test_the_plugin_is_listed_and_its_names_are_there(environment):
    plugins = json.loads(ttmbench(environment, "ls", "plugins", "--json"))
    assert {"plugin": "ttmbench-acme:acme", "status": "loaded", "detail": ""} in plugins
    tasks = {row["task"] for row in json.loads(ttmbench(environment, "ls", "tasks", "--json"))}
    assert tasks == {"acme_walls"} | {path.stem for path in (ROOT / "tasks").glob("[!_]*.yaml")}
    assert "acme-mean-color" in ttmbench(environment, "ls", "models")


def test_its_adapter_task_and_schedule_run(environment):
    _, folder = environment
    ttmbench(environment, "validate", "acme_walls")
    out = ttmbench(environment, "--model", "acme", "--tasks", "acme_walls", "-o", str(folder / "r.json"))
    assert "acme saw a run that is done" in out
    document = json.loads((folder / "r.json").read_text(encoding="utf-8"))
    values = document["results"]["acme_walls"]
    assert values["group_score,none"] == values["acme_first_image,none"] == 1.0
    assert document["versions"]["acme_walls"] == 3
    settings = ("--ttm_args", "schedule=acme_gentle,iterations=2,epochs=1")
    ttmbench(environment, *("--model", "tiny-clip", "--tasks", "acme_walls", "--ttm", "--device", "cpu"), *settings)


def test_without_the_plugin_everything_else_still_works(environment):
    python, folder = environment
    output_of(python, "-m", "pip", "uninstall", "--quiet", "--yes", "ttmbench-acme")
    assert "acme" not in ttmbench(environment, "ls", "plugins")
    words = [python, "-m", "ttmbench", "--model", "acme", "--tasks", "shapes_color"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 2 and "unknown model 'acme'" in done.stderr
