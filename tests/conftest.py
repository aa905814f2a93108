"""Settings that every test shares."""

from hypothesis import settings

# No test asserts a time: a busy machine must not fail one. Speed is what `make bench` measures.
settings.register_profile("untimed")
settings.load_profile("untimed")
