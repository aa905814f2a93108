"""Settings that every test shares, and what is left out where SGLang or torch is not installed."""

import signal
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings

# No test asserts a time: a busy machine must not fail one. Speed is what `make bench` measures.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# A shell's background job ignores Ctrl-C, and so would everything that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

WITH_TORCH, WITH_SGLANG = (find_spec(name) is not None for name in ("torch", "sglang"))
collect_ignore = [] if WITH_TORCH else ["engine", "gpu"]


def pytest_report_header() -> str:
    return (
        "" if WITH_TORCH else "torch is not installed: tests/engine and tests/gpu are left out (make setup)"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    without_sglang = pytest.mark.skip(reason="a real server needs SGLang: make setup")
    for item in items:
        if not WITH_SGLANG and item.get_closest_marker("server") is not None:
            item.add_marker(without_sglang)
