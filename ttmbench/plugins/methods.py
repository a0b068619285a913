"""The test-time methods that ship, by name; each target is one file of `ttmbench.methods`."""

from __future__ import annotations

from ttmbench.types import MethodSpec

_TTM = "arXiv:2510.07632"
_VIEWS = {
    "views": "64 in the paper's code",
    "share": "10 % in the paper",
    "crop_scale": "0.08 in the paper's code; half of an image, so that objects and relations stay in it",
    "flip": "half of the views in the paper's code; none, since left and right would be exchanged",
}

METHODS: tuple[MethodSpec, ...] = (
    MethodSpec(
        "ttm",
        "ttmbench.ttm.algorithm:adapt",
        summary="Test-Time Matching: trains on the most confident matchings, iteration by iteration",
        reference=_TTM,
        needs=("gradients",),
        scope="task",
        reset="never",
        assumes_matching=True,
    ),
    MethodSpec(
        "simple_match",
        "ttmbench.ttm.algorithm:overfit",
        summary="SimpleMatch's second step: trains on all first matchings until group scores reach them",
        reference=_TTM,
        needs=("gradients",),
        scope="task",
        reset="never",
        assumes_matching=True,
    ),
    MethodSpec(
        "oracle",
        "ttmbench.ttm.algorithm:adapt",
        summary="upper bound: TTM with correct pseudo-labels only (uses labels)",
        reference=_TTM,
        needs=("gradients", "labels"),
        scope="task",
        reset="never",
        assumes_matching=True,
    ),
    MethodSpec(
        "placebo",
        "ttmbench.ttm.algorithm:adapt",
        summary="control: TTM with a random matching for each selected group",
        needs=("gradients", "random_labels"),
        scope="task",
        reset="never",
        assumes_matching=True,
    ),
    MethodSpec(
        "shuffle",
        "ttmbench.ttm.algorithm:adapt",
        summary="control: TTM with its pseudo-labels moved to other selected groups",
        needs=("gradients", "random_labels"),
        scope="task",
        reset="never",
        assumes_matching=True,
    ),
    MethodSpec(
        "dn",
        "ttmbench.methods.dn:dn",
        summary="distribution normalisation: features minus a part of their mean",
        reference="arXiv:2302.11084",
        needs=("features", "references"),
        scope="task",
        sources={"strength": "authors' code of arXiv:2302.11084"},
    ),
    MethodSpec(
        "nnn",
        "ttmbench.methods.nnn:nnn",
        summary="nearest-neighbour normalisation: minus the mean cosine with the nearest references",
        reference="arXiv:2410.24114",
        needs=("features", "references"),
        scope="task",
        sources={"weight": "README of the authors' code", "k": "README of the authors' code"},
    ),
    MethodSpec(
        "sinkhorn",
        "ttmbench.methods.sinkhorn:sinkhorn",
        summary="log of the Sinkhorn plan of each group: soft matchings, to be compared with SimpleMatch",
        reference="arXiv:1306.0895",
        sources={"eps": "the model's own temperature"},
        assumes_matching=True,
    ),
    MethodSpec(
        "dual_softmax",
        "ttmbench.methods.dual_softmax:dual_softmax",
        summary="mean log of the softmax over captions and of that over images, inside each group",
        reference="arXiv:2109.04290",
        assumes_matching=True,
    ),
    MethodSpec(
        "dis",
        "ttmbench.methods.dis:dis",
        summary="inverted softmax: a score relative to those with the references",
        reference="arXiv:2112.12777",
        needs=("features", "references"),
        scope="task",
        sources={"beta": "arXiv:2112.12777"},
    ),
    MethodSpec(
        "tps",
        "ttmbench.methods.tps:tps",
        summary="test-time prototype shifting: caption features shifted to lower the entropy over confident views",
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
