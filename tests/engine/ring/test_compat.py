"""An SGLang that differs from the one the hooks were written for is refused."""

from __future__ import annotations

import inspect

import pytest

from harness.engine.compat import (
    SGLANG_VERSION,
    parameters,
    require_applied,
    require_signatures,
    require_version,
)
from harness.errors import ConfigError

HERE = "harness.engine.compat."


def test_only_the_pinned_version_is_accepted() -> None:
    require_version(SGLANG_VERSION)
    for other in ("0.5.22", "0.5.24", "0.5.23.post1", "0.5.230"):
        with pytest.raises(ConfigError, match=f"install sglang=={SGLANG_VERSION}"):
            require_version(other)


def test_parameters_tell_keywords_and_defaults() -> None:
    assert parameters(HERE + "require_version") == ("found",)
    assert parameters("pathlib.Path.mkdir") == ("self", "mode=", "parents=", "exist_ok=")
    assert parameters("json.dumps")[:3] == ("obj", "*", "skipkeys=")


def test_parameters_see_through_sglangs_wrappers() -> None:
    from sglang.srt.plugins import hook_registry

    wrapped = hook_registry._wrap_fn(
        require_version, lambda result, found: None, hook_registry.HookType.AFTER
    )
    assert tuple(inspect.signature(wrapped).parameters) == ("found",)


@pytest.mark.parametrize(
    "expected",
    [
        {HERE + "require_version": "found extra="},
        {HERE + "require_version": ""},
        {HERE + "gone": "self"},
        {"harness.engine.nowhere.function": "self"},
    ],
)
def test_another_signature_is_refused(expected: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="reinstall"):
        require_signatures(expected)


def test_a_hook_that_was_not_applied_is_refused() -> None:
    require_applied(["a", "b"], {"a", "b", "c"})
    with pytest.raises(ConfigError, match="did not apply the hooks on b"):
        require_applied(["a", "b"], {"a"})
