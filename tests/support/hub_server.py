"""A small server on the loopback address that speaks the Hub's protocol to its real clients, by ``HF_ENDPOINT``."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Lock
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from support.hub_repos import KINDS, File, Repository, find_repository
from support.web_server import LocalServer

TOKEN = "hf_standinAcceptedTheTerms"
STRANGER = "hf_standinHasNotAcceptedThem"
DATE = "2024-01-01T00:00:00.000Z"
PAGE = 100  # entries of a tree in one answer; the hub's own number is 1000
Entry = dict[str, object]


@dataclass(frozen=True)
class Request:
    """A request as it was answered: ``file`` is ``kind/repository/commit/path`` where a file's bytes were sent."""

    method: str
    path: str
    status: int
    sent: int
    file: str | None
    token: str | None


@dataclass
class Fault:
    """How the server misbehaves for paths with ``part`` in them: so many times, each ``every``-th time.

    Without a status the connection breaks after so many bytes of the body.
    """

    part: str
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1
    every: int = 1
    after: int = 0
    seen: int = 0


@dataclass
class Answer:
    """Status, headers and a body; a file is sent in parts."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    file: File | None = None
    name: str | None = None
    start: int = 0
    stop: int = 0

    @property
    def length(self) -> int:
        return self.stop - self.start if self.file else len(self.body)


class HubServer(LocalServer):
    """The hub's stand-in: repositories of a folder, a log of requests and faults on demand."""

    def __init__(self, root: Path, port: int = 0) -> None:
        self.root = root
        self.log: list[Request] = []
        self.faults: list[Fault] = []
        self._lock = Lock()
        super().__init__(port)
        self.port = self._server.server_port
        self.storage = f"http://localhost:{self.port}/storage/"  # another host for clients, as the hub's storage is

    def environment(self, home: Path, token: str | None = None) -> dict[str, str]:
        """Environment variables of a process that takes this server for the hub and keeps everything in ``home``."""
        names = {"HF_ENDPOINT": self.url, "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1,localhost"}
        names |= {"no_proxy": names["NO_PROXY"], "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "0"}
        names |= {"HF_HOME": str(home / "hf"), "TTMBENCH_DATA": str(home / "data"), "XDG_CACHE_HOME": str(home / "xdg")}
        return names | ({"HF_TOKEN": token} if token else {})

    def misbehave(self, part: str, status: int | None = None, **how: object) -> None:
        """From now on; see `Fault`. A 429 says as the hub does when to come back: now; its library adds a second."""
        fault = Fault(part, status, **how)
        if status == 429:
            fault.headers = {"Retry-After": "0", "RateLimit": '"resolvers";r=0;t=0', **fault.headers}
        self.faults.append(fault)

    def forget(self) -> None:
        """Empties the log, and misbehaves no more."""
        with self._lock:
            self.log.clear()
            self.faults.clear()

    def fetched(self, part: str = "") -> list[str]:
        """``kind/repository/commit/path`` of files whose bytes were sent, in order, each once."""
        names = [request.file for request in self.log if request.file and request.sent and part in request.file]
        return list(dict.fromkeys(names))

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        token = (handler.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        fault = self._fault(handler.path)
        if fault and fault.status:
            answer = Answer(fault.status, b"{}", fault.headers)
        else:
            answer = self._ranged(handler, self._answer(handler.path, body, token))
        sent = self._send(handler, answer, fault.after if fault and not fault.status else None)
        with self._lock:
            file = answer.name if answer.status < 300 else None
            self.log.append(Request(handler.command, handler.path, answer.status, sent, file, token))

    def _fault(self, path: str) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if fault.part in path and fault.times:
                    fault.seen += 1
                    if fault.seen % fault.every == 0:
                        fault.times -= 1
                        return fault
        return None

    def _send(self, handler: BaseHTTPRequestHandler, answer: Answer, cut: int | None) -> int:
        self.send(handler, answer.status, {**answer.headers, "Content-Length": str(answer.length)})
        if handler.command == "HEAD":
            return 0
        left = answer.length if cut is None else min(cut, answer.length)
        if answer.file is None:
            handler.wfile.write(answer.body[:left])
        else:
            with answer.file.path.open("rb") as file:
                handler.connection.sendfile(file, answer.start, left or None)
        if left < answer.length:
            handler.close_connection = True
        return left

    def _ranged(self, handler: BaseHTTPRequestHandler, answer: Answer) -> Answer:
        """The part of a file that was asked for."""
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", handler.headers.get("Range") or "")
        if asked is None or answer.file is None:
            return answer
        first, last = asked.groups()
        size = answer.file.size
        answer.start = int(first) if first else max(size - int(last), 0)
        answer.stop = min(int(last) + 1, size) if first and last else size
        if answer.start >= size:
            return Answer(416, b"", {"Content-Range": f"bytes */{size}"})
        answer.status = 206
        answer.headers["Content-Range"] = f"bytes {answer.start}-{answer.stop - 1}/{size}"
        return answer

    def _answer(self, address: str, body: bytes, token: str | None) -> Answer:
        url = urlsplit(address)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        if token not in (None, TOKEN, STRANGER):
            return _error(401, None, "Invalid credentials in Authorization header")
        if parts == ["api", "whoami-v2"]:
            return _json({"type": "user", "name": "reader", "auth": {"type": "access_token"}} if token else None)
        if parts[0] == "storage":
            return self._stored(parts[1], query.get("file", ""))
        if parts[:2] == ["api", "resolve-cache"]:
            return self._resolve(parts[2], [*parts[3:5], "resolve", *parts[5:]], token, cached=True)
        if parts[0] == "api" and len(parts) > 2 and parts[1] in KINDS:
            return self._api(parts[1], parts[2:], query, body, token)
        if parts[0] == "datasets":
            return self._resolve("datasets", parts[1:], token)
        return self._resolve("models", parts, token)

    def _repository(self, kind: str, parts: list[str]) -> tuple[Repository | None, list[str]]:
        """The repository that a path begins with, and the rest of the path."""
        for length in (2, 1):
            repository = find_repository(self.root, kind, "/".join(parts[:length]))
            if repository is not None:
                return repository, parts[length:]
        return None, parts[2:]

    def _api(self, kind: str, parts: list[str], query: dict[str, str], body: bytes, token: str | None) -> Answer:
        repository, rest = self._repository(kind, parts)
        if repository is None:
            return _no_repository(token)
        if repository.moved_to:
            return _moved("/".join(["/api", kind, repository.moved_to, *rest]), query)
        what = rest[0] if rest else "revision"
        revision, path = _split_revision(rest[1:]) if len(rest) > 1 else ("main", [])
        commit = repository.commit(revision)
        if commit is None:
            return _error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if what == "revision":
            return _json(_info(repository, commit, "blobs" in query))
        if what == "tree":
            return self._tree(repository, commit, "/".join(path), query)
        if what == "paths-info":
            return _json(_paths_info(repository, commit, body))
        return _error(404, None, "Sorry, we can't find the page you are looking for.")

    def _tree(self, repository: Repository, commit: str, folder: str, query: dict[str, str]) -> Answer:
        entries = _entries(repository, commit, folder, query.get("recursive", "").lower() == "true")
        if entries is None:
            return _error(404, "EntryNotFound", f"{folder} does not exist on {commit}", {"X-Repo-Commit": commit})
        start = int(query.get("cursor", 0))
        answer = _json(entries[start : start + PAGE])
        if start + PAGE < len(entries):
            at = f"{self.url}/api/{repository.kind}/{repository.id}/tree/{commit}" + (f"/{folder}" if folder else "")
            answer.headers["Link"] = f'<{at}?{urlencode({**query, "cursor": start + PAGE})}>; rel="next"'
        return answer

    def _resolve(self, kind: str, parts: list[str], token: str | None, *, cached: bool = False) -> Answer:
        repository, rest = self._repository(kind, parts)
        if repository is None or len(rest) < 3 or rest[0] not in ("resolve", "raw"):
            return _no_repository(token)
        if repository.moved_to:
            return _moved("/".join(["/datasets" if kind == "datasets" else "", repository.moved_to, *rest]), {})
        if repository.gated and token != TOKEN:
            return _gated(repository, token)
        revision, path = _split_revision(rest[1:])
        commit = repository.commit(revision)
        if commit is None:
            return _error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        headers = {"X-Repo-Commit": commit}
        file = repository.file(commit, "/".join(path))
        if file is None:
            return _error(404, "EntryNotFound", "Entry not found", headers)
        name = f"{kind}/{repository.id}/{commit}/{file.name}"
        if file.is_large:
            headers |= {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(file.size), "Accept-Ranges": "bytes"}
            return Answer(302, b"", headers | {"Location": f"{self.storage}{file.sha256}?{urlencode({'file': name})}"})
        if not cached:
            return Answer(307, b"", headers | {"Location": f"/api/resolve-cache/{name}"})
        return _file(file, name, headers)

    def _stored(self, sha256: str, name: str) -> Answer:
        kind, _, rest = name.partition("/")
        repository, path = self._repository(kind, rest.split("/"))
        file = repository.file(path[0], "/".join(path[1:])) if repository else None
        return _file(file, name, {}) if file and file.sha256 == sha256 else Answer(403, b"<Error>AccessDenied</Error>")


def _json(value) -> Answer:
    if value is None:
        return _error(401, None, "Invalid username or password.")
    return Answer(200, json.dumps(value).encode(), {"Content-Type": "application/json; charset=utf-8"})


def _error(status: int, code: str | None, message: str, headers: dict[str, str] | None = None) -> Answer:
    named = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
    return Answer(status, json.dumps({"error": message}).encode(), {**(headers or {}), **named})


def _no_repository(token: str | None) -> Answer:
    """Whoever shows no token is not told whether a repository is private or not there."""
    if token is None:
        return _error(401, None, "Invalid username or password.")
    return _error(404, "RepoNotFound", "Repository not found")


def _gated(repository: Repository, token: str | None) -> Answer:
    start = f"Access to {repository.kind.removesuffix('s')} {repository.id} is restricted"
    if token is None:
        return _error(401, "GatedRepo", f"{start}. You must have access to it and be authenticated to access it.")
    return _error(403, "GatedRepo", f"{start} and you are not in the authorized list.")


def _moved(path: str, query: dict[str, str]) -> Answer:
    return Answer(307, b"", {"Location": path + (f"?{urlencode(query)}" if query else "")})


def _file(file: File, name: str, headers: dict[str, str]) -> Answer:
    headers = {**headers, "ETag": f'"{file.etag}"', "Accept-Ranges": "bytes"}
    return Answer(200, b"", headers, file, name, 0, file.size)


def _split_revision(parts: list[str]) -> tuple[str, list[str]]:
    """``refs/pr/1`` may come as one part, quoted, or as three."""
    length = 3 if parts[0] == "refs" else 1
    return "/".join(parts[:length]), parts[length:]


def _info(repository: Repository, commit: str, with_blobs: bool) -> Entry:
    siblings: list[Entry] = []
    for file in repository.files(commit):
        large = {"lfs": {"sha256": file.sha256, "size": file.size, "pointerSize": 134}} if file.is_large else {}
        blob = {"size": file.size, "blobId": file.oid, **large} if with_blobs else {}
        siblings.append({"rfilename": file.name, **blob})
    return {
        **{"id": repository.id, "author": repository.id.partition("/")[0], "sha": commit, "siblings": siblings},
        **{"lastModified": DATE, "createdAt": DATE, "private": False, "gated": repository.gated, "disabled": False},
        **{"downloads": 1, "likes": 1, "tags": []},
    }


def _entries(repository: Repository, commit: str, folder: str, recursive: bool) -> list[Entry] | None:
    """Folders and files below a folder; None if there is no such folder."""
    prefix = f"{folder}/" if folder else ""
    files = [file for file in repository.files(commit) if file.name.startswith(prefix)]
    if not files and folder:
        return None
    folders: dict[str, Entry] = {}
    shown = []
    for file in files:
        *above, _ = file.name.removeprefix(prefix).split("/")
        for depth in range(1, len(above) + 1 if recursive else min(len(above), 1) + 1):
            path = prefix + "/".join(above[:depth])
            folders[path] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": path}
        if recursive or not above:
            shown.append(file.listed())
    return sorted([*folders.values(), *shown], key=lambda entry: (entry["type"], entry["path"]))


def _paths_info(repository: Repository, commit: str, body: bytes) -> list[Entry]:
    """The entries of paths in a form or in JSON."""
    text = body.decode()
    paths = json.loads(text)["paths"] if text.startswith("{") else parse_qs(text).get("paths", [])
    known = {entry["path"]: entry for entry in _entries(repository, commit, "", True) or []}
    return [known[path] for path in paths if path in known]
