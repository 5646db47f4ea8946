"""`python -m infra.cli` is `tabloop` of this checkout."""

import sys

from infra.cli import main

sys.exit(main())
