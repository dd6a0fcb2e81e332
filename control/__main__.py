"""`python -m control`."""

import sys

from control.cli import main

sys.exit(main())
