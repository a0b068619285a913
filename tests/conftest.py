"""What several tests share: small models in the hub's own format, and small tasks."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of child processes too: the tests themselves take every core
os.environ["TTMBENCH_CACHE"] = "off"  # a test that wants the cache says where

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

SHARED = Path(__file__).resolve().parents[2] / "shared"

settings.register_profile("untimed", deadline=None)  # on a busy machine an example may take any time
settings.load_profile("untimed")


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Small models are as fast on one thread, and a busy machine does not slow them down."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def real_scores() -> Path:
    """Score files of real models, where they are at hand."""
    folder = SHARED / "real-scores" / "winoground"
    if not folder.is_dir():
        pytest.skip("real score files are not at hand")
    return folder


@pytest.fixture
def site() -> Iterator[Site]:
    """A web server of the test's own, on this machine."""
    with Site() as running:
        yield running


@dataclass
class Page:
    """What the server gives for a path.

    Attributes:
        body: the file.
        ranges: whether it can send a part of it.
        etag: version of the file; None sends none.
        kind: content type.
        first: answers before the file is given at all: (status, headers, body).
        cut: numbers of bytes after which the connection breaks, one an answer.
        length: whether Content-Length is sent.
        headers: further headers.
    """

    body: bytes
    ranges: bool = True
    etag: str | None = '"1"'
    kind: str = "application/octet-stream"
    first: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    length: bool = True
    headers: dict[str, str] = field(default_factory=dict)


class Site:
    """A server of files in memory that misbehaves as it is told; ``log`` has every request."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.log: list[tuple[str, str, dict[str, str]]] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site._answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.host}"

    def __enter__(self) -> Site:
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def put(self, path: str, body: bytes, **how: Any) -> str:
        """A file; returns its address."""
        self.pages[path] = Page(body, **how)
        return self.url + path

    def asked(self, path: str) -> int:
        """How often the file was asked for."""
        return sum(method == "GET" and at.partition("?")[0] == path for method, at, _ in self.log)

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.log.append((handler.command, handler.path, dict(handler.headers)))
        page = self.pages.get(handler.path) or self.pages.get(handler.path.partition("?")[0])
        if page is None:
            handler.send_error(404)
            return
        if page.first:
            status, headers, body = page.first.pop(0)
            self._send(handler, status, {**headers, "Content-Length": str(len(body))}, body)
            return
        headers = {"Content-Type": page.kind} | page.headers | ({"ETag": page.etag} if page.etag else {})
        status, start = 200, 0
        wanted = handler.headers.get("Range")
        if wanted and page.ranges and handler.headers.get("If-Range") in (None, page.etag):
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(page.body):
                self._send(handler, 416, {"Content-Range": f"bytes */{len(page.body)}", "Content-Length": "0"}, b"")
                return
            status = 206
            headers["Content-Range"] = f"bytes {start}-{len(page.body) - 1}/{len(page.body)}"
        body = page.body[start:]
        if page.length:
            headers["Content-Length"] = str(len(body))
        self._send(handler, status, headers, body[: page.cut.pop(0)] if page.cut else body)

    def _send(self, handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)
        handler.close_connection = True


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


@pytest.fixture(scope="session")
def word_tokenizer() -> Callable[..., object]:
    """Makes a tokenizer of whole words: (eos, pad, length)."""
    from support.tiny_models import word_tokenizer

    return word_tokenizer


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
    """Makes a tiny random model of an architecture (``tiny_models.py``), once for each set of arguments."""
    from support import tiny_models

    made: dict[str, Path] = {}

    def make(maker: str, /, **options: Any) -> Path:
        key = f"{maker}_{'_'.join(map(str, options.values()))}".lower()
        if key not in made:
            made[key] = getattr(tiny_models, maker)(tmp_path_factory.mktemp(key), **options)
        return made[key]

    return make


@pytest.fixture(scope="module")
def chromium():
    """A real Chromium (``browser.py``); tests that ask for it are skipped where there is none."""
    from support.browser import open_browser, why_not

    if why_not():
        pytest.skip(why_not())
    with open_browser() as browser:
        yield browser


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
        ttm={"iterations": 3, "epochs": 3},
        ttm_controls=["placebo"],
        seeds=[0, 1],
        limit=40,
        bootstrap_iters=50,
        **common,
    )
    ttmbench.simple_evaluate("tiny-clip-seed1", str(evil_task), bootstrap_iters=0, **common)
    return folder
