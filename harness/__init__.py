"""Configs, points, server lifecycle, measurement protocol and records of the benchmark."""

__version__ = "0.1.0"
