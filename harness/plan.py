"""`python -m harness.plan experiment=table_6 hardware=b200`: what would run, and what it would cost.

Starts nothing. Takes what `python -m harness` takes: experiments, overrides, sweeps (`depth=3,5`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.errors import HarnessError
from harness.sweep.listing import lines
from harness.sweep.multirun import normalised, plan_of
from harness.sweep.plan import to_json


def main(arguments: list[str] | None = None) -> int:
    """Print the plan; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.plan", description=__doc__)
    parser.add_argument("overrides", nargs="*", help="as for python -m harness")
    parser.add_argument("--brief", action="store_true", help="boots and totals only")
    parser.add_argument("--json", type=Path, help="also write the plan to this file")
    options = parser.parse_args(arguments)
    try:
        plan = plan_of(normalised(options.overrides))
        if options.json is not None:
            options.json.write_bytes(to_json(plan))
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except OSError as error:
        print(f"error: cannot write {options.json}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 1
    for line in lines(plan, options.brief):
        print(line)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
