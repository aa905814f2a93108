"""`python -m analysis`: tables, figures, report, comparison and exports from stored records."""

import sys

from harness.commandline import started

if __name__ == "__main__":
    sys.exit(started("analysis.cli"))
