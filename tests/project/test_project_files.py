"""What is installed, the container and the release: what they name exists, and they agree."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib

import pytest
from support import processes
from support.checkout import ROOT, load_script

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_package_is_installed():
    """The list is written by hand, since folders of data are packages too."""
    own = {"ttmbench": "ttmbench", "model_adapters": "ttmbench.model_adapters", "tasks": "ttmbench.tasks"}
    there = {
        ".".join([name, *path.parent.relative_to(ROOT / folder).parts])
        for folder, name in own.items()
        for path in (ROOT / folder).rglob("__init__.py")
    }
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert sorted(settings["packages"]) == settings["packages"]
    assert set(settings["packages"]) == there | set(settings["package-data"])


@pytest.mark.slow
def test_the_package_is_found_beside_a_folder_of_its_name(tmp_path):
    """As from the folder that holds the clone."""
    (tmp_path / "ttmbench").symlink_to(ROOT)
    how = {"cwd": tmp_path, "capture_output": True, "text": True, "check": True, "cold": True}
    assert processes.run(["-m", "ttmbench", "ls", "metrics"], **how).stdout
    assert processes.run(["-c", "import ttmbench; ttmbench.simple_evaluate"], **how).stderr == ""


def test_the_container_runs_the_readmes_command():
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    said = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines if line and not line.startswith("#")}
    assert said["FROM"] == "python:3.12-slim" and said["USER"] == "1000"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = re.search(r"^.*&& (ttmbench --model .*)$", readme, flags=re.MULTILINE)
    assert json.loads(said["ENTRYPOINT"]) + json.loads(said["CMD"]) == shlex.split(command[1])


@pytest.fixture(scope="module")
def release():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        yield load_script("check_release")
    finally:
        sys.path.remove(str(ROOT / "scripts"))
        for name in ("contract", "set_repository"):
            sys.modules.pop(name, None)


def test_every_file_states_one_version(release):
    assert set(release.versions(ROOT).values()) == {PROJECT["version"]}


def test_nothing_is_gone_that_others_rely_on():
    contract = load_script("contract")
    assert contract.broken(contract.found(), contract.read()) == []
    assert len(contract.read()["hooks"]) >= 9 and len(contract.read()["results 1.0"]) > 150


def test_users_see_notices_of_ours_alone():
    """Of plugins' hooks, and not what a library deprecates; ``python -W`` shows all."""
    warn = "import warnings; from ttmbench.cli import main; main(['ls', 'metrics']); "
    warn += (
        "[warnings.warn_explicit(one, FutureWarning, 'file.py', 1, 'transformers') for one in ('old', 'ttmbench_run')]"
    )
    shown = processes.run(["-c", warn], capture_output=True, text=True, check=True).stderr
    asked = processes.run(["-W", "default", "-c", warn], capture_output=True, text=True, check=True).stderr
    assert "ttmbench_run" in shown and "old" not in shown and "old" in asked
