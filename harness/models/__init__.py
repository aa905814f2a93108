"""Checkpoints: where they lie, what they promise, what is really in them."""
