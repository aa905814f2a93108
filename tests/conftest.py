"""Settings that every test shares."""

from hypothesis import settings

# No test asserts a time: a busy machine must not fail one. Speed is what `make bench` measures.
UNTIMED = settings(deadline=None)
settings.register_profile("untimed", UNTIMED)
settings.load_profile("untimed")
