"""The test-time methods that ship, by name; each target is one file of `ttmbench.methods`."""

from __future__ import annotations

from ttmbench.types import MethodSpec

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
)
