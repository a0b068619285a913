"""The test-time methods that ship, by name; each target is one file of `ttmbench.methods`."""

from __future__ import annotations

from ttmbench.types import MethodSpec

_LABELS_KEPT = "ttmbench: small or mirrored crops change which caption is correct; published: 0.08, mirrored"
_CROPS = {"crop_scale": _LABELS_KEPT, "flip": _LABELS_KEPT}

METHODS: tuple[MethodSpec, ...] = (
    MethodSpec(
        "zero",
        "ttmbench.methods.zero:zero",
        "ZERO: votes of an image's most confident views",
        reference="arXiv:2405.18330",
        needs=("features", "views"),
        scope="group",
        sources={"views": "its code", "share": "its code (gamma)", **_CROPS},
        gives_logits=False,
    ),
    MethodSpec(
        "vte",
        "ttmbench.methods.vte:vte",
        "View ensemble: mean feature of an image's most confident views; share=1 for the views without selection",
        reference="arXiv:2405.14977",
        needs=("features", "views"),
        scope="row",
        sources={"views": "its code", "share": "its code", "normalise": "its code", **_CROPS},
    ),
    MethodSpec(
        "mta",
        "ttmbench.methods.mta:mta",
        "MTA: mode of an image's views by mean shift, weighted by agreement of their answers",
        reference="arXiv:2405.02266",
        needs=("features", "views"),
        scope="row",
        sources={
            **dict.fromkeys(("share", "lambda_y", "lambda_q", "rounds", "steps"), "its code"),
            "views": "arXiv:2405.02266",
            **_CROPS,
        },
    ),
)
