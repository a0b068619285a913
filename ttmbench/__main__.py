"""``python -m ttmbench``."""

import sys

from ttmbench.cli import main

sys.exit(main())
