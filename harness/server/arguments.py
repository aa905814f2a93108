"""Which server arguments and addresses a configuration may name, and which it may not."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from harness.errors import ConfigError

API_KEY = "WMTP_API_KEY"
"""Environment variable with the key that a running server (`server=url`) asks for; never written anywhere."""

# What the harness sets itself, by the configuration key that is to be used instead. A second value would
# win over the first without a word, and records would name what did not run.
_OWN = {
    "--model-path": "model.path",
    "--model": "model.path",
    "--host": "nothing: servers listen on 127.0.0.1 only",
    "--port": "server.port",
    "--device": "hardware",
    "--dtype": "model.dtype",
    "--kv-cache-dtype": "kv_dtype",
    "--tp-size": "tp",
    "--tensor-parallel-size": "tp",
    "--context-length": "context",
    "--max-running-requests": "batch",
    "--max-total-tokens": "server.max_total_tokens",
    "--mem-fraction-static": "server.mem_fraction_static",
    "--chunked-prefill-size": "server.chunked_prefill_tokens",
    "--page-size": "nothing: the ring needs pages of one token",
    "--attention-backend": "hardware.target_backend",
    "--decode-log-interval": "nothing: every decode step is logged",
    "--random-seed": "nothing: it is fixed",
    "--trust-remote-code": "model.trust_remote_code=true",
    "--speculative-algorithm": "arm",
    "--speculative-num-steps": "depth",
    "--speculative-eagle-topk": "arm",
    "--speculative-num-draft-tokens": "depth",
    "--speculative-draft-attention-backend": "draft_backend",
    "--speculative-draft-window-size": "window",
    "--speculative-draft-sink-size": "sink",
    "--api-key": "nothing: servers listen on 127.0.0.1, and a key would be written to records",
    "--admin-api-key": "nothing: servers listen on 127.0.0.1, and a key would be written to records",
}


def check_extra_arguments(words: Iterable[str], key: str) -> None:
    """Refuse arguments that the harness sets itself, also where they are shortened (`--trust`).

    Args:
        words: further arguments of the server, one word each.
        key: the configuration key that holds them, for the message.

    Raises:
        ConfigError: names the argument and what to set instead. A value is never repeated: it may be secret.
    """
    for word in words:
        name = word.partition("=")[0]
        if not name.startswith("--") or name == "--":
            continue
        # argparse takes any prefix that only one argument has.
        own = name if name in _OWN else next((known for known in _OWN if known.startswith(name)), None)
        if own is not None:
            raise ConfigError(f"{key} may not hold {name}: use {_OWN[own]}")


def check_url(url: str) -> None:
    """Refuse an address that carries a user or a password, since plans and records keep it.

    Raises:
        ConfigError: it does, or it is no address of a server. The address is not repeated.
    """
    try:
        parts = urlsplit(url)
        bare = parts.username is None and parts.password is None
        valid = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        bare, valid = True, False
    if not bare:
        raise ConfigError(
            f"server.url may not hold a user or a password, plans and records keep it: set {API_KEY} instead"
        )
    if not valid:
        raise ConfigError("server.url must look like http://host:port")
