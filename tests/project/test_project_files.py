"""What is installed, the container and the release: what they name exists, and they agree."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from support import processes
from support.checkout import ROOT, load_script

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


# What is installed


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


# The container


def test_the_container_runs_the_readmes_command():
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    said = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines if line and not line.startswith("#")}
    assert said["FROM"] == "python:3.12-slim" and said["USER"] == "1000"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = re.search(r"^.*&& (ttmbench --model .*)$", readme, flags=re.MULTILINE)
    assert json.loads(said["ENTRYPOINT"]) + json.loads(said["CMD"]) == shlex.split(command[1])


# Versions and the release

RELEASED = PROJECT["version"].partition(".dev")[0]
REPOSITORY = "https://code.example/acme/ttmbench"


@pytest.fixture(scope="module")
def release():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        yield load_script("check_release")
    finally:
        sys.path.remove(str(ROOT / "scripts"))
        for name in ("contract", "set_repository"):
            sys.modules.pop(name, None)


@pytest.fixture
def checkout(release, tmp_path, monkeypatch) -> Path:
    """The files of a release of what is here."""
    for name in (*release.PLACES, "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in release.PLACES:
        path = tmp_path / name
        path.write_text(path.read_text(encoding="utf-8").replace(PROJECT["version"], RELEASED), encoding="utf-8")
    log = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text(
        log.replace("## Unreleased", f"## {RELEASED} (2026-01-31)"), encoding="utf-8"
    )
    monkeypatch.setattr(release.contract, "read", release.contract.found)
    for name, text in release.set_repository.texts(tmp_path, {"Repository": REPOSITORY}).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_every_file_states_one_version(release):
    assert set(release.versions(ROOT).values()) == {PROJECT["version"]}


def test_a_release_needs_a_tag_that_is_its_version(release, checkout):
    version = RELEASED
    assert release.problems(checkout, f"v{version}") == []
    assert len(release.problems(checkout, "v9.9.9")) == len(release.PLACES) + 1
    assert release.problems(checkout, version)[0].endswith(f"states version {version}, the tag is {version}")


def test_a_release_needs_its_changelog_and_its_contract(release, checkout, monkeypatch):
    shutil.copy(ROOT / "CHANGELOG.md", checkout / "CHANGELOG.md")
    monkeypatch.setattr(release.contract, "read", lambda: {"names": []})
    said = release.problems(checkout, f"v{RELEASED}")
    assert len(said) == 2 and "begins with 'Unreleased'" in said[0] and "contract.py write" in said[1]


def test_nothing_is_gone_that_others_rely_on():
    contract = load_script("contract")
    assert contract.broken(contract.found(), contract.read()) == []
    assert len(contract.read()["hooks"]) >= 9 and len(contract.read()["results 1.0"]) > 150


# Warnings


def test_users_see_notices_of_ours_alone():
    """Of plugins' hooks, and not what a library deprecates; ``python -W`` shows all."""
    warn = "import warnings; from ttmbench.cli import main; main(['ls', 'metrics']); "
    warn += (
        "[warnings.warn_explicit(one, FutureWarning, 'file.py', 1, 'transformers') for one in ('old', 'ttmbench_run')]"
    )
    shown = processes.run(["-c", warn], capture_output=True, text=True, check=True).stderr
    asked = processes.run(["-W", "default", "-c", warn], capture_output=True, text=True, check=True).stderr
    assert "ttmbench_run" in shown and "old" not in shown and "old" in asked
