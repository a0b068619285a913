"""``ttmbench score``: every metric from stored scores, with neither model nor dataset."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path

from ttmbench.rescoring import score_file
from ttmbench.results import open_run_files
from ttmbench.table import print_results


def score(options: argparse.Namespace) -> int:
    """Checks where results go, reads, computes, prints, and writes if asked."""
    source = Path(options.scores)
    started = datetime.now().astimezone()
    files = open_run_files(options.output_path, source.stem, started) if options.output_path else None
    document = score_file(
        source,
        options.task,
        include_path=options.include_path or [],
        logit_scale=options.logit_scale,
        limit=options.limit,
        bootstrap_iters=options.bootstrap_iters,
        seed=options.seed,
        command=["ttmbench", *sys.argv[1:]],
    )
    print_results(document)
    if files is not None:
        files.write_results(document)
        print(f"results: {files.results}")
    return 0
