"""``ttmbench new``: writes a package with a working adapter, test-time method or plugin, and its test."""

from __future__ import annotations

import keyword
import re
import shlex
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

from ttmbench._util.files import new_folder
from ttmbench.errors import UsageError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_FILES = {  # kind -> path in the package -> template
    "adapter": {
        "${module}/plugin.py": "adapter_plugin.py",
        "${module}/adapter.py": "adapter_adapter.py",
        "test_${module}.py": "adapter_test.py",
    },
    "method": {
        "${module}/plugin.py": "method_plugin.py",
        "${module}/method.py": "method_method.py",
        "test_${module}.py": "method_test.py",
    },
    "plugin": {
        "${module}/plugin.py": "plugin_plugin.py",
        "${module}/tasks/${module}_colors.yaml": "plugin_colors.yaml",
        "test_${module}.py": "plugin_test.py",
    },
}


def new_package(what: str, name: str, folder: Path) -> list[str]:
    """Writes a folder with an ``adapter``, ``method`` or ``plugin``, and returns the next commands to run.

    UsageError if the name is not a valid package name or is taken, or the folder is not empty or cannot be written.
    """
    module = name.replace("-", "_")
    if not _NAME.fullmatch(name) or keyword.iskeyword(module):
        raise UsageError(
            f"a package name must have letters, digits, '_' and '-', begin with a letter and be no keyword of Python, "
            f"got '{name}'"
        )
    if find_spec(module) is not None:
        raise UsageError(f"'{module}' is the name of an installed module; choose another")

    def write(made: Path) -> None:
        templates = files("ttmbench.plugins") / "templates"
        (made / module).mkdir(parents=True)
        (made / module / "__init__.py").touch()
        for path, template in {"pyproject.toml": "pyproject.toml", **_FILES[what]}.items():
            target = made / Template(path).substitute(module=module)
            target.parent.mkdir(exist_ok=True)
            text = Template((templates / f"{template}.txt").read_text(encoding="utf-8"))
            target.write_text(text.substitute(name=name, module=module), encoding="utf-8")

    new_folder(folder, write)
    run = {
        "adapter": ["--model", name, "--tasks", "shapes_replace"],
        "method": ["--model", "tiny-clip", "--tasks", "shapes_color", "--methods", module],
        "plugin": ["--model", "tiny-clip", "--tasks", f"{module}_colors"],
    }[what]
    return [
        shlex.join(["pip", "install", "-e", str(folder)]),
        shlex.join(["python", "-m", "pytest", str(folder)]),
        shlex.join(["ttmbench", *run]),
    ]
