"""Hydra overrides that mean what they say: written from values, and checked when users write them.

Hydra's override grammar reads commas as sweeps, `1e6` as a number and a second `=` as an error. Whatever is
written here is parsed again before it is handed out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException

from harness.config import settings
from harness.errors import ConfigError

_KEY = re.compile(r"(?:\+\+?|~)?[A-Za-z_][\w@/.:-]*")
_MAPPING_KEY = re.compile(r"[A-Za-z_][\w.-]*")
_GROUPS = ("experiment", "model", "hardware", "server", "input")
_RESERVED_WORDS = {"null", "true", "false", "nan", "inf"}
_QUOTED = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"")
_RANGE = re.compile(r"\brange\s*\(([^()]*)\)")
MOST_CONFIGURATIONS = 10_000
"""Largest sweep, and largest range in one: Hydra writes every value out before anything looks at them."""
# What Hydra's parser lets through besides its own errors: steps of 0, numbers of 5000 digits, nan as a bound.
_PARSER_ERRORS = (HydraException, ValueError, ArithmeticError, TypeError, RecursionError)


@dataclass(frozen=True)
class ParsedOverride:
    """One user override: its key without prefix, its value, and whether it is a sweep."""

    key: str
    value: Any
    is_sweep: bool


def emit(key: str, value: Any) -> str:
    """`key=value` that Hydra parses back to the very same value.

    Args:
        value: None, bool, int, float, str, or lists and mappings of these.

    Raises:
        ConfigError: a key or value that the override grammar cannot carry; put it into a YAML file.
    """
    if not _KEY.fullmatch(key) or key.startswith("~"):
        raise ConfigError(f"{key!r} is no configuration key")
    text = f"{key}={_text(key, value)}"
    parsed = _parse(text)
    back = _plain(parsed.value())
    if parsed.is_sweep_override() or not _same(back, value):
        raise ConfigError(f"{key}: {value!r} cannot be written as an override: put it into a YAML file")
    return text


def emit_all(values: Mapping[str, Any]) -> list[str]:
    """`emit` for several keys, in their order."""
    return [emit(key, value) for key, value in values.items()]


def _text(key: str, value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _quoted(key, value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_mapping_key(key, k)}:{_text(key, v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_text(key, item) for item in value) + "]"
    raise ConfigError(f"{key}: a {type(value).__name__} cannot be written as an override")


def _quoted(key: str, value: str) -> str:
    if "${" in value:
        raise ConfigError(
            f"{key}: text with ${{...}} would be read as an interpolation: put it into a YAML file"
        )
    # A backslash is literal except before a quote or at the end, where it has to be doubled.
    escaped = re.sub(r"(\\*)'", lambda m: m.group(1) * 2 + r"\'", value)
    return "'" + re.sub(r"(\\+)$", lambda m: m.group(1) * 2, escaped) + "'"


def _mapping_key(key: str, name: Any) -> str:
    if not isinstance(name, str) or not _MAPPING_KEY.fullmatch(name) or name.lower() in _RESERVED_WORDS:
        raise ConfigError(f"{key}: Hydra cannot carry the mapping key {name!r}: put it into a YAML file")
    return name


def _parse(text: str) -> Override:
    override: Override = OverridesParser.create().parse_override(text)
    return override


def _plain(value: Any) -> Any:
    """Parsed values without Hydra's own types."""
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, dict):
        return {_plain(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _same(left: Any, right: Any) -> bool:
    """Equal in value and type; tuples become lists, NaN equals NaN."""
    if isinstance(right, Mapping):
        return (
            isinstance(left, dict)
            and list(left) == list(right)
            and all(_same(left[k], right[k]) for k in right)
        )
    if isinstance(right, list | tuple):
        return (
            isinstance(left, list)
            and len(left) == len(right)
            and all(_same(a, b) for a, b in zip(left, right, strict=True))
        )
    if isinstance(right, float) and math.isnan(right):
        return isinstance(left, float) and math.isnan(left)
    return type(left) is type(right) and bool(left == right)


def check_overrides(overrides: Sequence[str]) -> list[ParsedOverride]:
    """Parse what a user typed.

    Raises:
        ConfigError: an override that Hydra cannot read, a key given twice (Hydra would silently drop
            combinations of a sweep), or a number where the configuration wants text; the text says how to
            write it.
    """
    found: dict[str, str] = {}
    parsed = []
    for text in overrides:
        override = _read(text)
        key = str(override.key_or_group)
        if key in found:
            raise ConfigError(
                f"{key} is given twice ({found[key]!r} and {text!r}): give it once, all values of a sweep in "
                f"one list, {key}=a,b"
            )
        found[key] = text
        values = _values(override)
        if override.is_sweep_override() and not values:
            raise ConfigError(
                f"{text!r} is a sweep over no value, range(start,stop) leaves out its stop: write the values "
                f"out, {key}=a,b"
            )
        if key in _GROUPS and any(isinstance(v, list) for v in values):
            raise ConfigError(f"{text!r} would keep only the last of the list: write {key}=a,b")
        _check_text(key, text, values)
        parsed.append(
            ParsedOverride(key, values if override.is_sweep_override() else (values or [None])[0],
                           override.is_sweep_override())
        )  # fmt: skip
    combinations = math.prod(len(one.value) for one in parsed if one.is_sweep and one.value)
    if combinations > MOST_CONFIGURATIONS:
        raise ConfigError(
            f"this sweep has {combinations:,} combinations, {MOST_CONFIGURATIONS:,} are the most: split it"
        )
    return parsed


def _values(override: Override) -> list[Any]:
    if override.is_delete() and override.value() is None:
        return []
    if override.is_sweep_override():
        try:
            return [_plain(value) for value in override.sweep_iterator()]
        except _PARSER_ERRORS as error:
            raise ConfigError(f"{override.input_line!r} is no list of values: write them out, a,b") from error
    return [_plain(override.value())]


def _read(text: str) -> Override:
    _check_ranges(text)
    try:
        return _parse(text)
    except _PARSER_ERRORS as error:
        raise ConfigError(f"{text!r} cannot be read: {_why(text, error)}") from error


def _check_ranges(text: str) -> None:
    """Refuse `range(...)` of no sensible length before Hydra tries to write it out."""
    for found in _RANGE.finditer(_QUOTED.sub("", text)):
        words = [word.rpartition("=") for word in found[1].split(",")]
        names = ("start", "stop", "step") if len(words) > 1 else ("stop",)
        bounds = {"start": 0.0, "step": 1.0}
        try:
            for place, (name, _, value) in enumerate(words[:3]):
                bounds[name.strip() or names[place]] = float(value)
            steps = abs((bounds["stop"] - bounds["start"]) / bounds["step"])
        except (ValueError, KeyError):
            continue  # no range to Hydra either
        except ArithmeticError:
            steps = math.inf
        if not steps <= MOST_CONFIGURATIONS:
            raise ConfigError(
                f"{text!r} cannot be read: {found[0]} has no end or more than {MOST_CONFIGURATIONS:,} values"
            )


def _why(text: str, error: Exception) -> str:
    """Which of the usual quoting slips it was."""
    key, separator, value = text.partition("=")
    if not separator and not key.startswith("~"):
        return "an override is key=value"
    if not _KEY.fullmatch(key):
        return f"{key!r} is no configuration key"
    shell = f"{key}={_quoted(key, value)}" if "${" not in value else f"{key}='...'"
    if "'" in value or '"' in value or "=" in value:
        return (
            f"a value with quotes or a second = has to stand in single quotes, as Hydra must "
            f"receive it: {shell} (in a shell, put all of that in double quotes)"
        )
    if value.count("[") != value.count("]") or value.count("{") != value.count("}"):
        return "its brackets do not match"
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return (
        f"quote the value, as Hydra must receive it: {shell} (in a shell, put all of that in double quotes; "
        f"{reason})"
    )


def _text_keys() -> set[str]:
    """Dotted names of all settings that hold text."""
    return {name for name, hint in settings() if hint in (str, str | None)}


def _check_text(key: str, text: str, values: Sequence[Any]) -> None:
    """Refuse a number where text is wanted and Hydra would change it: 1e6 -> 1000000.0, 26.10 -> 26.1."""
    if key not in _text_keys():
        return
    typed = text.partition("=")[2]
    words = [word.strip() for word in typed.split(",")]
    for value in values:
        if isinstance(value, int | float) and not isinstance(value, bool) and str(value) not in words:
            raise ConfigError(
                f"{text!r} would be read as the number {value}, and {key} is text: quote it, "
                f"\"{key}='{typed}'\""
            )
