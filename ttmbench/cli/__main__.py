"""``python -m ttmbench.cli``."""

import sys

from ttmbench.cli import command

sys.exit(command())
