"""Tasks, their data and how tests write and read them: one builder for each kind of file."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import yaml
from PIL import Image

from ttmbench.cli import main
from ttmbench.data.loader import load_task_data
from ttmbench.data.task_file import TaskFile, find_task
from ttmbench.plugins.registry import build_registry
from ttmbench.types import Loaded


def write(path: Path, value: object) -> Path:
    """A file of bytes, of a text, or of anything else as JSON; in a folder that is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(value, bytes):
        value = (value if isinstance(value, str) else json.dumps(value)).encode()
    path.write_bytes(value)
    return path


def task_file(folder: Path, source: object, group: object, name: str = "mine", **more: object) -> Path:
    """A task of one metric."""
    spec = {"task": name, "version": 1, "source": source, "group": group, "metrics": ["group_match"], **more}
    plain = json.loads(json.dumps(spec))  # what stands in it twice would be an alias, which task files may not have
    return write(folder / f"{name}.yaml", yaml.safe_dump(plain, sort_keys=False))


def rewritten(folder: Path, name: str, change, as_name: str = "mine") -> Path:
    """The file of a task that ships under another name, changed by a function of what it states."""
    spec = find(name).spec.model_dump(mode="json", exclude_defaults=True) | {"task": as_name}
    change(spec)
    return write(folder / f"{as_name}.yaml", yaml.safe_dump(spec, sort_keys=False))


def find(name: str | Path) -> TaskFile:
    """A task by name or file."""
    return find_task(build_registry(), str(name))


def changed(
    task: str | Path | TaskFile, source: Mapping[str, object] | None = None, *, of: object = None, **group: object
) -> TaskFile:
    """A task with changes to its source (``of`` as a whole) and to its group."""
    task = task if isinstance(task, TaskFile) else find(task)
    new = {**task.spec.source, **(source or {})} if of is None else of
    return TaskFile(
        task.spec.model_copy(update={"source": new, "group": task.spec.group.model_copy(update=group)}), task.folder
    )


def load(task: str | Path | TaskFile, data_dir: Path | None = None, **how: object) -> Loaded:
    """What a task's source gives, without the network."""
    task = task if isinstance(task, TaskFile) else find(task)
    return load_task_data(build_registry(), task, data_dir=data_dir, **{"offline": True, **how})


def encoded(color="red", size: tuple[int, int] = (8, 6), form: str = "PNG", mode: str = "RGB") -> bytes:
    """An image of one colour."""
    content = io.BytesIO()
    Image.new(mode, size, color).save(content, form)
    return content.getvalue()


def zip_of(files: Mapping[str, bytes]) -> bytes:
    """A zip of files."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name, body in files.items():
            file.writestr(name, body)
    return content.getvalue()


def tar_of(files: Mapping[str, bytes], mode: str = "w:gz", more: tuple[tarfile.TarInfo, ...] = ()) -> bytes:
    """A tar of files, and of further entries without content."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode) as file:  # type: ignore[call-overload]
        for name, body in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(body)
            file.addfile(entry, io.BytesIO(body))
        for entry in more:
            file.addfile(entry)
    return content.getvalue()


def run(capsys, *words: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    return main([str(word) for word in words]), *capsys.readouterr()
