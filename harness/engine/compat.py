"""The SGLang this plugin was written for: its version, and the signatures of what it hooks or overrides.

SGLang logs a plugin's exceptions and goes on without it, and only logs a hook that could not be applied. A
server would then run without the window. So the version and each signature are checked first, and a
difference ends the process.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterable, Mapping

from harness.errors import ConfigError

SGLANG_VERSION = "0.5.23"


def require_version(found: str) -> None:
    """Raise ConfigError unless `found` is the supported SGLang version."""
    if found != SGLANG_VERSION:
        raise ConfigError(
            f"windowed-mtp works inside SGLang {SGLANG_VERSION}, and this is {found}: install "
            f"sglang=={SGLANG_VERSION}, or unset the engine settings to serve without it."
        )


def parameters(target: str) -> tuple[str, ...]:
    """Parameter names of a dotted target, `*` before the keyword-only ones, defaults marked by `=`."""
    names: list[str] = []
    keyword_only = False
    owner, _, attribute = target.rpartition(".")
    function = inspect.getattr_static(pkgutil.resolve_name(owner), attribute)
    function = getattr(function, "__func__", function)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            names.append("*")
        prefix = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
        default = "" if parameter.default is parameter.empty else "="
        names.append(f"{prefix}{parameter.name}{default}")
    return tuple(names)


def require_signatures(expected: Mapping[str, str]) -> None:
    """Raise ConfigError unless each dotted target exists with the given, space-separated parameters."""
    for target, wanted in expected.items():
        try:
            found = parameters(target)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"windowed-mtp cannot find {target} in this SGLang ({error}): "
                f"reinstall sglang=={SGLANG_VERSION}."
            ) from error
        if found != tuple(wanted.split()):
            raise ConfigError(
                f"windowed-mtp expects {target}({', '.join(wanted.split())}), and this SGLang has "
                f"({', '.join(found)}): reinstall sglang=={SGLANG_VERSION}."
            )


def require_applied(targets: Iterable[str], applied: Iterable[str]) -> None:
    """Raise ConfigError unless SGLang applied the hook on every target."""
    missing = sorted(set(targets) - set(applied))
    if missing:
        raise ConfigError(
            f"windowed-mtp: SGLang did not apply the hooks on {', '.join(missing)}; its log says why above."
        )
