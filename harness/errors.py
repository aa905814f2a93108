"""Errors a user can act on. Each message is one plain sentence: what is wrong and what to do."""

from __future__ import annotations


class HarnessError(Exception):
    """Base of every expected failure; the command line prints its text without a traceback."""


class ConfigError(HarnessError):
    """The request itself makes no sense (unknown name, impossible combination, missing file)."""


class InputError(HarnessError):
    """An input cannot be built, read or verified as asked."""


class ServerError(HarnessError):
    """A server did not start, stopped, stalled or answered wrongly.

    Attributes:
        kind: an `Outcome` value naming the first cause, for the record.
    """

    def __init__(self, message: str, kind: str = "server_died") -> None:
        super().__init__(message)
        self.kind = kind


class RecordError(HarnessError):
    """A stored record is missing, damaged, or of a schema this version cannot read."""
