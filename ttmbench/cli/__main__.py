"""``python -m ttmbench.cli``."""

from ttmbench.cli import command

command()
