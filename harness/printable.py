"""Texts of servers and files on their way to a terminal, where control characters would be obeyed."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """One line without control or formatting characters: each is shown as its escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _shown(c) for c in text)


def _shown(character: str) -> str:
    # Wide and narrow spaces are harmless, and no escapes would read better.
    if unicodedata.category(character) == "Zs":
        return " "
    return character.encode("unicode_escape").decode("ascii")


def setting_words(value: object) -> str:
    """A setting's value as a sentence says it."""
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return "unset" if value is None else str(value)
