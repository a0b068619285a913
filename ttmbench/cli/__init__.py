"""The command line: `main` reads it, and each command is a module here that imports what it needs when it runs."""

from ttmbench.cli.parser import command as command
from ttmbench.cli.parser import main as main
