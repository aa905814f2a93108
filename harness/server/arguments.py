"""Which server arguments and addresses a configuration may name, and which it may not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness.config import RunConfig
from harness.errors import ConfigError
from harness.points import WINDOWED_ARMS

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
    "--ssl-keyfile-password": "nothing: servers listen on 127.0.0.1, by plain HTTP",
}
_SECRET = re.compile(
    r"(?:^|[-_])(?:api|auth|access)?(?:key|token|secret|password|passwd|credentials?)$", re.IGNORECASE
)
# NAME=value of variables and options, "name": of JSON.
_NAMED = re.compile(r"([A-Za-z_][\w-]*)=|\"([A-Za-z_][\w-]*)\"\s*:")


def check_server(config: RunConfig) -> None:
    """Refuse what a configuration says of its server and plans and records must not keep, or would belie.

    Raises:
        ConfigError: an argument that the harness sets itself, or a secret; its value is not repeated.
    """
    for key, words in (
        ("model.server_arguments", config.model.server_arguments),
        ("hardware.server_arguments", config.hardware.server_arguments),
        ("server.extra_arguments", config.server.extra_arguments),
    ):
        check_extra_arguments(words, key)
        check_secrets(words, key)
    check_secrets(config.server.container_arguments, "server.container_arguments")
    if config.server.url is not None:
        check_url(config.server.url)
    elif config.server.kind == "url":
        raise ConfigError("server=url measures a running server: add server.url=http://host:port")


def log_problem(arm: str, log_path: str | Path | None) -> str:
    """Why a running server's log does not do for an arm, with what to give; empty where it does."""
    if log_path is None:
        if arm not in WINDOWED_ARMS:
            return ""
        return (
            f"arm={arm} of a running server is told from other arms by its log alone: add "
            "server.log_path=FILE, the server's log as this machine sees it"
        )
    if not Path(log_path).is_file():
        return f"server.log_path={log_path} is no file: name the server's log or leave it out"
    return ""


def check_secrets(words: Iterable[str], key: str) -> None:
    """Refuse words that give a value to a name like HF_TOKEN or --some-password.

    Raises:
        ConfigError: names it and says how to pass it on.
    """
    for word in words:
        names = [option or member for option, member in _NAMED.findall(word)]
        names += [word.lstrip("-").partition("=")[0]] if word.startswith("--") else []
        name = next((name for name in names if _SECRET.search(name)), None)
        if name is not None:
            raise ConfigError(
                f"{key} may not give {name} a value, plans and records keep it: export it as an environment "
                "variable (a container takes it by its name alone, --env NAME)"
            )


def without_secrets(arguments: dict[str, Any]) -> dict[str, Any]:
    """Server arguments as a server reports them, less API keys and passwords, for a record."""
    return {name: _without(value) for name, value in arguments.items() if not _SECRET.search(name)}


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return without_secrets(value)
    return [_without(item) for item in value] if isinstance(value, list) else value


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
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query
    except ValueError:
        bare, valid = True, False
    if not bare:
        raise ConfigError(
            f"server.url may not hold a user or a password, plans and records keep it: set {API_KEY} instead"
        )
    if not valid:
        raise ConfigError("server.url must look like http://host:port")
