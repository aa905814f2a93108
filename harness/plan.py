"""`python -m harness.plan experiment=table_6 hardware=b200`: what would run, and what it would cost.

Starts nothing. Takes what `python -m harness` takes: experiments, overrides, sweeps (`depth=3,5`).
"""

from __future__ import annotations

import argparse
import sys

from harness.commandline import guarded, place
from harness.errors import ConfigError


def main(arguments: list[str] | None = None) -> int:
    """Print the plan; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.plan", description=__doc__)
    parser.add_argument("overrides", nargs="*", help="as for python -m harness")
    parser.add_argument("--brief", action="store_true", help="boots and totals only")
    parser.add_argument("--json", type=place, help="also write the plan to this file")
    # As `python -m harness` takes it; here a sweep needs no flag.
    parser.add_argument("-m", "--multirun", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args(arguments)
    return guarded(lambda: _show(options), failure=1)


def _show(options: argparse.Namespace) -> int:
    # Slow imports come after `--help`, and Ctrl-C is caught from here on.
    from harness.sweep.listing import lines  # noqa: PLC0415
    from harness.sweep.multirun import normalised, plan_of  # noqa: PLC0415
    from harness.sweep.planfile import to_json  # noqa: PLC0415
    from harness.sweep.submission import submission_lines  # noqa: PLC0415

    overrides = normalised(options.overrides)
    plan = plan_of(overrides)
    if options.json is not None:
        try:
            options.json.write_bytes(to_json(plan))
        except OSError as error:
            raise ConfigError(f"cannot write {options.json}: {error.strerror}; name another file") from error
    for line in (*lines(plan, options.brief), *submission_lines(overrides, plan)):
        print(line)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
