"""What several tests share: small models in the hub's own format, and small tasks."""

from __future__ import annotations

import atexit
import copy
import functools
import gc
import os
import signal

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["OMP_NUM_THREADS"] = "1"  # of child processes too: the tests themselves take every core
os.environ.pop("MKL_NUM_THREADS", None)  # or a library has threads when it is imported
os.environ.pop("OPENBLAS_NUM_THREADS", None)
os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # threads that spin take what others need
# Imported by some test, scikit-learn sets these; changed later, they would have every process begin cold.
os.environ |= {"KMP_DUPLICATE_LIB_OK": "True", "KMP_INIT_AT_FORK": "FALSE"}
os.environ.pop("COLUMNS", None)  # tables in a pipe are as wide as needed, unless a test says how wide
os.environ["TTMBENCH_CACHE"] = "off"  # a test that wants the cache says where

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.doctest import DoctestModule
from hypothesis import settings
from support import processes  # noqa: F401 - remembers the environment that its servers get

SHARED = Path(__file__).resolve().parents[2] / "shared"

settings.register_profile("search", deadline=None)  # on a busy machine an example may take any time
settings.register_profile("same", deadline=None, derandomize=True)  # every run tries the same examples
settings.load_profile("same")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Under `-n` neighbours stay in one process, so that what a module shares is made once, and not in each."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Examples in docstrings are looked for in the package alone: tests have none, and the search takes a second."""
    return [one for one in (yield) if not isinstance(one, DoctestModule)]


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """A million objects of libraries are made and live to the end: the collector need not look at them, ever."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish():
    """What is left is looked at once here: pytest would do so five times. The interpreter's end frees it."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)


@pytest.fixture(scope="module")
def few_objects():
    """The collector passes over what is there already: for tests that call it, or run out of memory, which does."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Small models are as fast on one thread, and a busy machine does not slow them down."""
    import torch

    torch.set_num_threads(int(os.environ.get("TEST_THREADS", "1")))


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c():
    """A suite that a script starts in the background ignores SIGINT, and what its tests start would too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True, scope="session")
def _read_once():
    """Plugins, the commit, task files and drawn scenes stay as they are: read once a process."""
    from ttmbench._util import machine
    from ttmbench.data import task_file
    from ttmbench.data.sources import rendered as scenes
    from ttmbench.plugins import registry

    find, read, root = registry.entry_points, task_file.read_yaml, Path(__file__).resolve().parents[1]
    seen: dict[Path, Any] = {}

    def read_once(path):  # who reads a task file changes a copy
        if getattr(path, "parent", None) != root / "tasks":
            return read(path)
        if path not in seen:
            seen[path] = read(path)
        return seen[path]

    ask_git, draw = machine.git_hash, functools.lru_cache(maxsize=4096)(scenes.render)
    commit_of = functools.cache(lambda folder: ask_git())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scenes, "render", lambda scene: draw(scene).copy())
        patched.setattr(registry, "entry_points", functools.cache(find))
        patched.setattr(task_file, "read_yaml", read_once)
        patched.setattr(machine, "git_hash", lambda: commit_of(Path.cwd()))
        yield


@pytest.fixture(autouse=True, scope="session")
def _translations_once():
    """argparse looks on the disk for a translation of each of its words, each time a command line is read."""
    import argparse

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(argparse, "_", functools.cache(argparse._))
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_power_cuts():
    """No test cuts the power, so nothing waits for the disk; test_files.py holds what would be waited for."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _built_in_model_once():
    """The built-in model is read once a process and copied for each run by its name, which is several times as fast."""
    from ttmbench.evaluator import adapters

    target, usual = adapters.load_target, {"device": "cpu", "dtype": "fp32"}
    loaded: dict[Any, Any] = {}

    def load_target(path, *needs):
        factory = target(path, *needs)
        if getattr(factory, "__module__", "") != "ttmbench.model_adapters.hf" or factory.__name__ != "load":
            return factory

        @functools.wraps(factory)
        def load(**arguments):
            given = {name: value for name, value in arguments.items() if value not in (None, False)}
            key = given.pop("pretrained", "")
            if given != usual or key not in ("tiny_clip", "tiny_clip_seed1"):
                return factory(**arguments)
            if key not in loaded:
                loaded[key] = factory(**arguments)
                gc.freeze()  # a million objects of transformers' were made just now
            return copy.deepcopy(loaded[key])

        return load

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(adapters, "load_target", load_target)
        yield


@pytest.fixture
def real_scores() -> Path:
    """Score files of real models, where they are at hand."""
    folder = SHARED / "real-scores" / "winoground"
    if not folder.is_dir():
        pytest.skip("real score files are not at hand")
    return folder


@pytest.fixture
def site() -> Iterator[object]:
    """A web server of the test's own, on this machine."""
    from support.web_server import Site

    with Site() as running:
        yield running


@pytest.fixture
def chat_server():
    """A chat-completions server on this machine; see tests/support/chat_server.py."""
    from support.chat_server import ChatServer

    server = ChatServer()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def tiny_siglip(tmp_path_factory) -> Path:
    """A random SiglipModel, written as hub models are."""
    from support.tiny_models import siglip

    return siglip(tmp_path_factory.mktemp("tiny_siglip"))


@pytest.fixture(scope="session")
def tiny_hf_clip(tmp_path_factory) -> Path:
    """A random CLIPModel, written as hub models are."""
    from support.tiny_models import clip

    return clip(tmp_path_factory.mktemp("tiny_clip"))


@pytest.fixture
def folder_task(tmp_path) -> Callable[..., Path]:
    """Makes a user's own task of six 2x2 groups: a YAML, a JSONL and images. Returns the folder."""
    import json

    from PIL import Image

    def make(name: str = "mine", n: int = 6, **changes: object) -> Path:
        import yaml

        folder = tmp_path / f"{name}_task"
        (folder / "images").mkdir(parents=True)
        rng = np.random.RandomState(0)
        colors = ["red", "blue", "green", "yellow"]
        with (folder / "groups.jsonl").open("w", encoding="utf-8") as file:
            for index in range(n):
                row: dict[str, object] = {"id": f"g{index}"}
                for side in (0, 1):
                    image = Image.fromarray(rng.randint(0, 256, (24, 30, 3), dtype=np.uint8))
                    image.save(folder / "images" / f"{index}_{side}.png")
                    row[f"image_{side}"] = f"{index}_{side}.png"
                    color = colors[(index + side) % 4]
                    row[f"caption_{side}"] = f"a {color} circle {'on the left ' * (index // 4)}{index}".strip()
                file.write(json.dumps(row) + "\n")
        spec: dict[str, object] = {
            "task": name,
            "version": 1,
            "source": {"kind": "folder", "path": "groups.jsonl", "images": "images"},
            "group": {
                "shape": [2, 2],
                "n_groups": n,
                "id": "id",
                "images": ["image_0", "image_1"],
                "captions": ["caption_0", "caption_1"],
            },
            "metrics": ["text_score", "image_score", "group_score", "group_match"],
        }
        spec.update(changes)
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
        return folder

    return make


@pytest.fixture(scope="session")
def tiny_vlm(tmp_path_factory) -> Callable[..., Path]:
    """Makes a tiny random model by its name in ``tiny_models.py``, once for each set of options."""
    from support import tiny_models

    @functools.cache
    def make(name: str, **options: Any) -> Path:
        return tiny_models.MODELS[name](tmp_path_factory.mktemp(name), **options)

    return make


@pytest.fixture(scope="module")
def chromium():
    """A real Chromium (``browser.py``); tests that ask for it are skipped where there is none."""
    from support.browser import open_browser, why_not

    if why_not():
        pytest.skip(why_not())
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def opened(chromium):
    """Opens pages in one tab; each must log nothing and load nothing."""
    from support.browser import page_opener

    with page_opener(chromium) as open_page:
        yield open_page


EVIL = (
    "<script>alert(1)</script>",
    "a \"quoted\" 'cat' & </script><img src=x onerror=alert(2)>",
    "line\u2028separator\u2029and \x07bell",
    "\u202eright to left \u05e9\u05dc\u05d5\u05dd",
)
"""Captions that a page must show as they are."""


@pytest.fixture(scope="session")
def evil_captions() -> tuple[str, ...]:
    """Captions that a page must show and never run."""
    return EVIL


@pytest.fixture(scope="session")
def evil_task(tmp_path_factory) -> Path:
    """A task file of two 2x2 groups whose captions, ids and tags are made to break pages."""
    import json

    from PIL import Image

    folder = tmp_path_factory.mktemp("evil")
    rows = []
    for at, captions in enumerate((EVIL[:2], EVIL[2:])):
        for side, color in enumerate(("red", "blue")):
            Image.new("RGB", (40, 30), color).save(folder / f"{at}{side}.png")
        rows.append(
            {"id": f"</script><b>{at}", "a": f"{at}0.png", "b": f"{at}1.png", "c": captions[0], "d": captions[1]}
            | {"kind": f'"><svg onload=alert({at})>'}
        )
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = folder / "evil_captions.yaml"
    task.write_text(
        "task: evil_captions\nversion: 1\nlicense: CC0-1.0\nsource: {kind: folder, path: rows.jsonl}\n"
        "group: {shape: [2, 2], n_groups: 2, id: id, images: [a, b], captions: [c, d], tags: [kind]}\n"
        "metrics: [text_score, group_score, group_match]\n",
        encoding="utf-8",
    )
    return task


@pytest.fixture(scope="session")
def reported_runs(tmp_path_factory, evil_task) -> Path:
    """A folder of two finished runs with samples and scores: rendered tasks, two seeds of TTM; and hostile captions."""
    import ttmbench

    folder = tmp_path_factory.mktemp("reported")
    common: dict[str, Any] = {"device": "cpu", "log_samples": True, "save_scores": True, "output_path": str(folder)}
    ttmbench.simple_evaluate(
        "tiny-clip",
        "shapes_color,shapes_replace",
        ttm={"iterations": 2, "epochs": 1, "lr": 2e-3},
        methods=["placebo"],
        seeds=[0, 1],
        limit=40,
        bootstrap_iters=50,
        **common,
    )
    ttmbench.simple_evaluate("tiny-clip-seed1", str(evil_task), bootstrap_iters=0, **common)
    return folder
