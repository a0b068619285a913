"""Arrays are annotated with their axes without jaxtyping, which is there for who has it check calls."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, typing
{first}
import ttmbench.metrics, ttmbench.stats
print("jaxtyping" in sys.modules, typing.get_type_hints(ttmbench.stats.mean)["values"].__name__)
"""


def printed(first: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(first=first)], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_annotations_are_of_plain_arrays_until_a_program_has_jaxtyping():
    assert printed("") == "False ndarray"
    assert printed("import jaxtyping") == "True Float[ndarray, 'n']"
