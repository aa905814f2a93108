"""This machine: what it is and what it did during a run."""
