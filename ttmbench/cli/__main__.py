"""``python -m ttmbench.cli``."""

import sys

from ttmbench.cli import main

sys.exit(main())
