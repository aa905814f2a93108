"""Names of runs that never meet: two runs started in the same second, here or on a cluster, differ."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson


def config_hash(config: Mapping[str, Any]) -> str:
    """12 hex digits of the SHA-256 of a configuration's canonical JSON; the order of keys is irrelevant."""
    body = orjson.dumps(dict(config), option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return hashlib.sha256(body).hexdigest()[:12]


def new_run_id(config: Mapping[str, Any]) -> str:
    """`<UTC time>-<config hash>-<random>`: sorts by time, and is unique without any look at the disk."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return f"{stamp}-{config_hash(config)}-{secrets.token_hex(4)}"
