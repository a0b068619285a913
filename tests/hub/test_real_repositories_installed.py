"""Slow: every named model and every task of the hub, in an environment made by the README's install command alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.checkout import ROOT, copy_checkout
from support.commands import Done
from support.hub_copies import write_copies
from support.hub_runs import (
    KINDS,
    NAMED,
    RAW,
    TAGS,
    TASKS,
    Run,
    check_done,
    check_same,
    check_validated,
    runs,
    weights_of,
    write_tags,
)
from support.hub_server import TOKEN, HubServer

pytestmark = pytest.mark.slow
sys.path.insert(0, str(ROOT / "scripts" / "docs"))


@pytest.fixture(scope="module")
def ttmbench(tmp_path_factory) -> Iterator[Path]:
    """The command in an environment of its own, of 6 GB; TTMBENCH_INSTALLED names one that was made so before."""
    from readme_commands import commands

    ready = os.environ.get("TTMBENCH_INSTALLED")
    if ready:
        yield Path(ready)
        return
    folder = tmp_path_factory.mktemp("clone") / "ttmbench"
    copy_checkout(folder)
    install, _, run = commands()["run"].rpartition(" && ")
    assert run.startswith("ttmbench ") and install.endswith("pip install --quiet -e .")
    try:
        done = subprocess.run(["bash", "-c", install], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        yield folder / ".venv" / "bin" / "ttmbench"
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def repositories(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("hub")
    write_copies(root)
    return root


@pytest.fixture
def hub(repositories) -> Iterator[HubServer]:
    with HubServer(repositories) as running:
        yield running


def typed(ttmbench: Path, line: str, environment: dict[str, str], cwd: Path) -> Done:
    """A command as a person types it, in a process of its own that knows nothing of this environment."""
    names = {"PATH": os.environ["PATH"], "HOME": str(cwd), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [ttmbench, *line.split()],
        env={**names, **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    return Done(tuple(line.split()), done.returncode, done.stdout, done.stderr)


def check_model(ttmbench: Path, model: str, arguments: str, hub: HubServer, home: Path) -> Run:
    """Fetched by `download`, run offline; run online with empty caches; the same numbers, one set of weights."""
    (online,), (offline,) = runs([(model, arguments)], home), runs([(model, arguments)], home, offline=True)
    given = f"--model_args {arguments}" if arguments else ""
    fetched, ran = home / "fetched", home / "ran"
    environment = hub.environment(fetched, TOKEN)
    check_done([typed(ttmbench, f"download --model {model} {given} --tasks colorswap", environment, home)])
    weights = weights_of(hub)
    assert weights and len({Path(name).suffix for name in weights}) == 1
    assert len({name.partition("/")[0] for name in weights}) == 1

    asked = len(hub.log)
    check_done([typed(ttmbench, offline.command, {**environment, "HF_ENDPOINT": "http://127.0.0.1:9"}, home)])
    assert len(hub.log) == asked
    check_done([typed(ttmbench, online.command, hub.environment(ran, TOKEN), home)])
    assert weights_of(hub) == weights
    check_same([online], [offline])
    return online


@pytest.mark.parametrize(("model", "arguments"), [*((name, "") for name in NAMED), *KINDS])
def test_a_model(ttmbench, hub, tmp_path, model, arguments):
    check_model(ttmbench, model, arguments, hub, tmp_path)


@pytest.mark.parametrize("name", TAGS)
def test_a_tag_of_open_clip_with_a_model_of_its_real_size(ttmbench, tmp_path, name):
    """Random weights of the architecture that the name stands for: from 0.6 GB to 1.7 GB, deleted when done."""
    repo, architecture = TAGS[name]
    root = tmp_path / "hub"
    write_copies(root, ["stanfordnlp/colorswap"])
    write_copies(root, [repo], architecture=architecture)
    try:
        with HubServer(root) as large:
            run = check_model(ttmbench, name, "", large, tmp_path)
        assert run.document["model_info"]["fingerprint"]["n_parameters"] > 140_000_000
    finally:
        shutil.rmtree(tmp_path, ignore_errors=True)


def test_every_task(ttmbench, hub, tmp_path):
    write_tags(tmp_path)
    environment, names, output = hub.environment(tmp_path, TOKEN), ",".join(TASKS), tmp_path / "r.json"
    check_done([typed(ttmbench, f"download --tasks {names} --alternative 2 --model siglip-b16", environment, tmp_path)])
    sent = {name.rpartition("/")[2].rpartition("-000")[0] for name in hub.fetched("datasets/")}
    assert not sent & {"train", "VG_Relation", "VG_Attribution", "COCO_Order"}
    asked = len(hub.log)
    check_validated(typed(ttmbench, f"validate {' '.join(TASKS)} --offline", environment, tmp_path), TASKS)
    run = f"--model siglip-b16 {RAW.replace('colorswap', names)} -o {output} --offline"
    check_done([typed(ttmbench, run, environment, tmp_path)])
    assert len(hub.log) == asked
