"""``python -m ttmbench``."""

from ttmbench.cli import command

command()
