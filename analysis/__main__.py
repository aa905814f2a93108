"""`python -m analysis`: tables, figures, report, comparison and exports from stored records."""

from analysis.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
