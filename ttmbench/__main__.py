"""``python -m ttmbench``."""

import sys

from ttmbench.cli import command

sys.exit(command())
