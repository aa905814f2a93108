"""`python -m generators`: see `generators.cli`, which is loaded once Ctrl-C can end in a line."""

import sys

from harness.commandline import started

if __name__ == "__main__":
    sys.exit(started("generators.cli"))
