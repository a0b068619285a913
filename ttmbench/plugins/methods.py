"""The test-time methods that ship, by name; each target is one file of `ttmbench.methods`."""

from __future__ import annotations

from ttmbench.types import MethodSpec

_VIEWS = {
    "views": "64 in the paper's code",
    "share": "10 % in the paper",
    "crop_scale": "0.08 in the paper's code; half of an image, so that objects and relations stay in it",
    "flip": "half of the views in the paper's code; none, since left and right would be exchanged",
}

METHODS: tuple[MethodSpec, ...] = (
    MethodSpec(
        "tps",
        "ttmbench.methods.tps:tps",
        "Test-time prototype shifting: shifts caption features to lower the entropy over confident views",
        reference="arXiv:2403.12952",
        needs=("views", "gradients"),
        reset="group",
        sources={
            **_VIEWS,
            "direction": "rows alone (i2t) in the paper, whose classes are shared by all images",
            "lr": "5e-3 in the paper's code for ImageNet",
            "weight_decay": "AdamW's default, as in the paper's code",
            "steps": "1 in the paper",
        },
    ),
)
