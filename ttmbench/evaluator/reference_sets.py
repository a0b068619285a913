"""References of methods that are not the test: images and captions of another task, each encoded once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from ttmbench._util.option_values import read_references
from ttmbench._util.third_party_errors import phase
from ttmbench.cache.scores import TaskCache
from ttmbench.config import RunConfig
from ttmbench.data.catalog import find_task
from ttmbench.data.loader import load_task_data
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import UsageError
from ttmbench.evaluator.plan import Run
from ttmbench.methods.features import ReferenceSet
from ttmbench.plugins.registry import Registry
from ttmbench.protocols import DualEncoder
from ttmbench.scoring.dual_encoder import encode_captions, encode_images
from ttmbench.scoring.fingerprint import distinct_captions, distinct_images


def reference_tasks(registry: Registry, config: RunConfig) -> dict[str, TaskFile]:
    """The tasks that ``METHOD.references`` of the run's methods name; UsageError for a wrong one."""
    tasks: dict[str, TaskFile] = {}
    for method in config.methods:
        spec, key = registry.method(method), f"{method}.references"
        given = config.method_args.get(key, spec.settings.get("references"))
        asked = read_references(given) if "references" in spec.needs else None
        if asked is None:
            continue
        try:
            task = find_task(registry, asked[0])
        except UsageError as error:
            raise UsageError(f"--method_args {key}: must be task, others or a task's name: {error}") from None
        if task.spec.kind == "classification":
            raise UsageError(f"--method_args {key}: task '{asked[0]}' has classes and no captions; give another")
        tasks[asked[0]] = task
    return tasks


def is_its_own_reference(settings: Mapping[str, object], task: str) -> bool:
    """Whether the settings of a method name the very task that is tested."""
    asked = read_references(settings.get("references"))
    return asked is not None and asked[0] == task


def reference_set(run: Run, name: str) -> ReferenceSet:
    """The references that a setting names (``TASK`` or ``TASK:GROUPS``), once for all methods and tasks of a run.

    Their features come from the cache, or go there. DataError for data out of reach.
    """
    key = f"references {name}"
    if key not in run.helpers:
        with phase("references"):
            run.helpers[key] = _encoded(run, name)
    made: ReferenceSet = run.helpers[key]
    return made


def _encoded(run: Run, name: str) -> ReferenceSet:
    asked = read_references(name)
    assert asked is not None, "checked before anything is scored"
    task, config = find_task(run.registry, asked[0]), run.config
    run = run.on(task.spec)
    adapter = run.capabilities.dual_encoder
    assert isinstance(adapter, DualEncoder), "checked before anything is scored"
    groups = load_task_data(run.registry, task, asked[1], config.offline, config.data_dir).groups
    cache = TaskCache(run.cache, run.capabilities, task.spec, groups, {"features": True}, "features of references")
    found = cache.find({"images": None, "captions": None})
    if found is None:
        with torch.no_grad():
            pool = list(distinct_images(groups))
            images = encode_images(adapter, pool, run.sizer, cache.data).features
            captions = encode_captions(adapter, distinct_captions(groups), run.sizer).features
        cache.keep({"images": images.cpu().numpy(), "captions": captions.cpu().numpy()}, config.model_name)
    else:
        images, captions = torch.from_numpy(found["images"]), torch.from_numpy(found["captions"])
    # In an order of their own: that of the groups would say which caption belongs to which image.
    drawn = np.random.default_rng(0)
    images, captions = (side.clone()[torch.from_numpy(drawn.permutation(len(side)))] for side in (images, captions))
    digest = cache.data.hexdigest()
    record = {"task": task.spec.task, "images": len(images), "captions": len(captions), "data_sha256": digest}
    return ReferenceSet(images, captions, record)
