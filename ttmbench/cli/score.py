"""``ttmbench score``: every metric from stored scores, with neither model nor dataset."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ttmbench.rescoring import score_file
from ttmbench.results import to_json, write_atomically
from ttmbench.table import print_results


def score(options: argparse.Namespace) -> int:
    """Reads, computes, prints, and writes if asked."""
    document = score_file(
        Path(options.scores),
        options.task,
        include_path=options.include_path or [],
        logit_scale=options.logit_scale,
        limit=options.limit,
        bootstrap_iters=options.bootstrap_iters,
        seed=options.seed,
        command=["ttmbench", *sys.argv[1:]],
    )
    print_results(document)
    if options.output_path:
        target = Path(options.output_path)
        write_atomically(target, lambda path: path.write_text(to_json(document), encoding="utf-8"))
        print(f"results: {target}")
    return 0
