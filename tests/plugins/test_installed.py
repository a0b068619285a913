"""Slow: a third-party package, built, installed in a clean environment and used through its entry point."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.checkout import ROOT


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A clean environment with both wheels. Heavy dependencies are those of the environment that runs the tests."""
    folder = tmp_path_factory.mktemp("installed")
    dist = folder / "dist"
    for project in (ROOT, ROOT / "tests" / "third_party"):
        source = folder / project.name
        shutil.copytree(project, source, ignore=shutil.ignore_patterns("__pycache__", ".*", "*.egg-info"))
        for made in ("build", "dist", "site"):
            shutil.rmtree(source / made, ignore_errors=True)
        subprocess.run(
            [sys.executable, "-m", "build", "--wheel", "--outdir", dist, source], check=True, capture_output=True
        )
    import os
    import venv

    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    here = subprocess.run(
        [sys.executable, "-c", "import numpy, pathlib; print(pathlib.Path(numpy.__file__).parents[1])"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    wheels = [str(wheel) for wheel in dist.glob("*.whl")]
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", *wheels], check=True)
    # After the installed packages on the path, so that both wheels win over anything of the same name there.
    (Path(site) / "zz_dependencies.pth").write_text(here, encoding="utf-8")
    return python, folder


def ttmbench(environment, *arguments: str) -> str:
    python, folder = environment
    done = subprocess.run(
        [python, "-m", "ttmbench", *arguments], capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_and_not_the_checkout_is_used(environment):
    python, folder = environment
    where = subprocess.run(
        [python, "-c", "import ttmbench; print(ttmbench.__file__)"],
        capture_output=True,
        text=True,
        cwd=folder,
        check=True,
    ).stdout
    assert str(folder / "env") in where


@pytest.mark.slow
def test_the_plugin_is_listed_and_its_names_are_there(environment):
    plugins = json.loads(ttmbench(environment, "ls", "plugins", "--json"))
    assert {"plugin": "ttmbench-acme:acme", "status": "loaded", "detail": ""} in plugins
    tasks = {row["task"] for row in json.loads(ttmbench(environment, "ls", "tasks", "--json"))}
    assert tasks == {"acme_walls"} | {path.stem for path in (ROOT / "tasks").glob("[!_]*.yaml")}
    assert "acme-mean-color" in ttmbench(environment, "ls", "models")
    assert "acme_gentle" in ttmbench(environment, "ls", "schedules")


@pytest.mark.slow
def test_its_adapter_and_task_run(environment):
    _, folder = environment
    out = ttmbench(environment, "--model", "acme", "--tasks", "acme_walls", "-o", str(folder / "r.json"))
    assert "acme saw a run that is done" in out
    document = json.loads((folder / "r.json").read_text(encoding="utf-8"))
    assert document["results"]["acme_walls"]["group_score,none"] == 1.0
    assert document["results"]["acme_walls"]["acme_first_image,none"] == 1.0
    assert document["versions"]["acme_walls"] == 3


@pytest.mark.slow
def test_its_adapter_runs_on_built_in_tasks_and_its_schedule_in_ttm(environment):
    ttmbench(environment, "validate", "acme_walls")
    ttmbench(
        environment,
        *("--model", "tiny-clip", "--tasks", "acme_walls", "--ttm", "--device", "cpu"),
        *("--ttm_args", "schedule=acme_gentle,iterations=2,epochs=1"),
    )


@pytest.mark.slow
def test_without_the_plugin_everything_else_still_works(environment):
    python, folder = environment
    subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "ttmbench-acme"], check=True)
    assert "acme" not in ttmbench(environment, "ls", "plugins")
    done = subprocess.run(
        [python, "-m", "ttmbench", "--model", "acme", "--tasks", "shapes_color"],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 2 and "unknown model 'acme'" in done.stderr
