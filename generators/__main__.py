"""`python -m generators`."""

from generators.cli import run

if __name__ == "__main__":
    run()
