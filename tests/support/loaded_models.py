"""Models that several tests load from the same folder: read once a process, and copied for each test.

A copy takes a fifth of the time. ``test_loaded_once.py`` holds it to be as good as a model that was read.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path

import torch

USUAL = {
    *("revision", "local_files_only", "trust_remote_code"),
    *("dtype", "use_safetensors", "weights_only", "output_loading_info", "attn_implementation"),
}
"""Options that say all about what is loaded. With others, of where weights go and how they are packed, it is read."""
MOST = 48
"""So many are kept: more than one file of tests loads."""


def copied(whole, model):
    """What ``copy.deepcopy`` makes, in a third of its time: a module has ten empty containers for hooks.

    Args:
        whole: what is copied.
        model: the module in it; nothing is quicker where it is none.
    """
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    if any(hasattr(one, "__deepcopy__") for one in modules):
        return copy.deepcopy(whole)
    memo: dict[int, object] = {id(one): type(one).__new__(type(one)) for one in modules}
    for one in modules:
        for name, value in vars(one).items():
            empty = type(value) in (dict, OrderedDict, set, list) and not value
            vars(memo[id(one)])[name] = type(value)() if empty else copy.deepcopy(value, memo)
    return copy.deepcopy(whole, memo)


def _copied_load(found):
    """A model comes with what was said of its loading."""
    return copied(found, found[0] if isinstance(found, tuple) else found)


class LoadedOnce:
    """Stands before ``pretrained._load``: what it gave for the same files and options is given again, as a copy.

    What is asked for only once is not kept: most folders that a test writes for itself are read once.
    """

    def __init__(self, load: Callable[..., object]) -> None:
        self._load = load
        self._asked: set[Hashable] = set()
        self._kept: OrderedDict[Hashable, object] = OrderedDict()

    def __call__(self, kind, model, where: str, options: Mapping[str, object]):
        """What ``pretrained._load`` gives."""
        key = key_of(kind, where, options)
        if key is None or key not in self._asked:
            self._asked.add(key)
            return self._load(kind, model, where, options)
        if key in self._kept:
            self._kept.move_to_end(key)
            return _copied_load(self._kept[key])
        self._kept[key] = self._load(kind, model, where, options)
        while len(self._kept) > MOST:
            self._kept.popitem(last=False)
        return _copied_load(self._kept[key])


def key_of(kind, where: str, options: Mapping[str, object]) -> Hashable | None:
    """What a load depends on: what reads, the options, and the files as they are now; None if there is more to it."""
    folder = Path(where)
    if not folder.is_dir() or not USUAL.issuperset(options) or options.get("trust_remote_code"):
        return None
    state = [(path, path.stat()) for path in sorted(folder.rglob("*"))]
    files = tuple((str(path), one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for path, one in state)
    reads = getattr(kind.from_pretrained, "__func__", kind.from_pretrained)  # which a test may have replaced
    return kind, reads, tuple(sorted((name, str(value)) for name, value in options.items())), files
