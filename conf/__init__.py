"""Hydra configuration groups of the harness and the generators."""
