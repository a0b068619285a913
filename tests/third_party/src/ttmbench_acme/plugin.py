"""What this package registers, and the hooks it listens to."""

from importlib.resources import files

import numpy as np
from PIL import Image

from ttmbench import (
    AdapterSpec,
    DataLocation,
    Group,
    ImageRef,
    Loaded,
    MetricSpec,
    ScheduleSpec,
    SourceSpec,
    UsageError,
    hookimpl,
)

COLORS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220)}


class MeanColor:
    """Scores a caption by how much of the colour it names is in the image."""

    def __init__(self, sharpness: float) -> None:
        self.sharpness = sharpness

    def fingerprint(self):
        return {"kind": "mean colour", "sharpness": self.sharpness}

    def score_pairs(self, images, captions):
        scores = []
        for image, caption in zip(images, captions, strict=True):
            mean = np.asarray(image, dtype=np.float32).mean(axis=(0, 1))
            named = next(rgb for name, rgb in COLORS.items() if name in caption)
            scores.append(-self.sharpness * float(np.abs(mean - np.array(named)).mean()))
        return np.array(scores, dtype=np.float32)


def mean_color(sharpness: float = 1.0) -> MeanColor:
    """The adapter's factory."""
    return MeanColor(sharpness)


def read_plain(request):
    """The source's reader: plain images of two colours in a group."""
    if set(request.options) != {"count"}:
        raise UsageError("source: acme_plain has the option 'count' alone")
    return Loaded([plain_group(index) for index in range(request.options["count"])], {"made_by": "acme"})


def plain_group(index):
    """Two walls of two colours."""
    names = list(COLORS)
    pair = (names[index % 3], names[(index + 1) % 3])
    return Group(
        group_id=f"acme-{index}",
        images=tuple(
            ImageRef(f"{index}-{name}", lambda name=name: Image.new("RGB", (8 + index, 8), COLORS[name]))
            for name in pair
        ),
        captions=tuple(f"a {name} wall" for name in pair),
    )


def plain_places(request):
    """Where the source's data are: nothing has to be fetched."""
    return [DataLocation("drawn on the spot", ())]


def gentle(tau_start, tau_end, iterations):
    """The schedule: the square root of a linear one."""
    return tau_end + (tau_start - tau_end) * np.sqrt(np.linspace(1, 0, iterations))


@hookimpl
def ttmbench_register_adapters():
    return [
        AdapterSpec("acme-mean-color", "ttmbench_acme.plugin:mean_color", "mean colour of the image", aliases=("acme",))
    ]


@hookimpl
def ttmbench_register_task_dirs():
    return [files("ttmbench_acme") / "tasks"]


@hookimpl
def ttmbench_register_sources():
    return [
        SourceSpec(
            "acme_plain",
            "ttmbench_acme.plugin:read_plain",
            "images of one colour",
            needs="ttmbench_acme.plugin:plain_places",
        )
    ]


@hookimpl
def ttmbench_register_metrics():
    return [MetricSpec("acme_first_image", lambda scores: scores[:, 0].argmax(axis=1) == 0, "first image only")]


@hookimpl
def ttmbench_register_schedules():
    return [ScheduleSpec("acme_gentle", gentle, "square root of a linear one")]


@hookimpl
def ttmbench_run_finished(result):
    print(f"acme saw a run that is {result['status']}")
