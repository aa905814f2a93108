"""Settings that every test shares."""

from hypothesis import HealthCheck, settings

# No test asserts a time: a busy machine must not fail one. Speed is what `make bench` measures.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
