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
    MethodSpec(
        "tent",
        "ttmbench.methods.tent:tent",
        summary="entropy minimisation of the model's own answers along the stream; filter=eta or sar",
        reference="arXiv:2006.10726",
        needs=("features", "gradients"),
        scope="stream",
        reset="never",
        sources={
            "filter": "arXiv:2006.10726 has none; eta: arXiv:2204.02610, sar: arXiv:2302.12400, in units of ln n",
            "direction": "arXiv:2006.10726 has i2t; both treats images and captions of a group alike",
            "train": "as in ports to CLIP; norm layers in arXiv:2006.10726",
            "lr": "arXiv:2006.10726 (Adam); sar: authors' code of arXiv:2302.12400 (SGD, for 64 images)",
            "images": "arXiv:2006.10726, ImageNet",
        },
        order_dependent=True,
        scores_before_update=True,
    ),
    MethodSpec(
        "cliptta",
        "ttmbench.methods.cliptta:cliptta",
        summary="contrastive loss on batches of images with their pseudo-captions",
        reference="arXiv:2507.14312",
        needs=("features", "gradients"),
        scope="stream",
        reset="never",
        sources={
            "labels": "arXiv:2507.14312",
            "as_published_columns": "true in authors' code of arXiv:2507.14312 with a frozen caption tower",
            "beta_reg": "arXiv:2507.14312",
            "steps": "scripts of the authors of arXiv:2507.14312",
            "train": "arXiv:2507.14312",
            "lr": "scripts of the authors of arXiv:2507.14312",
            "images": "arXiv:2507.14312",
        },
        order_dependent=True,
        assumes_matching=True,
    ),
)
