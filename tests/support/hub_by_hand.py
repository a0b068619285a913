"""The stand-in hub as a command, for whoever wants to try ttmbench on it."""

from __future__ import annotations

import argparse
import time
from pathlib import Path


def main() -> None:
    from support.hub_server import STRANGER, TOKEN, HubServer

    parser = argparse.ArgumentParser(prog="python -m support.hub_server", description=__doc__)
    parser.add_argument("root", type=Path, help="folder of the repositories")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--make", nargs="*", metavar="REPOSITORY", help="write the copies first: these, or all")
    options = parser.parse_args()
    if options.make is not None:
        from support.hub_copies import write_copies

        write_copies(options.root, options.make or None)
    with HubServer(options.root, options.port) as hub:
        print(f"export HF_ENDPOINT={hub.url} NO_PROXY=127.0.0.1,localhost HF_HOME=$(mktemp -d)", flush=True)
        print(f"export HF_TOKEN={TOKEN}    # or {STRANGER}, which has not accepted any terms", flush=True)
        shown = 0
        while True:
            time.sleep(0.2)
            for one in hub.log[shown:]:
                print(one.status, one.method, one.path, one.sent, flush=True)
                shown += 1
