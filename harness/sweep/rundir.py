"""Directories of runs that never meet: two runs started in the same second, here or on a cluster, differ."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from harness.errors import ConfigError

IDENTITY_FILE = "run.json"
_ATTEMPTS = 20


def config_hash(config: Mapping[str, Any]) -> str:
    """12 hex digits of the SHA-256 of a configuration's canonical JSON; the order of keys is irrelevant."""
    body = orjson.dumps(dict(config), option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return hashlib.sha256(body).hexdigest()[:12]


def new_run_id(config: Mapping[str, Any]) -> str:
    """`<UTC time>-<config hash>-<random>`: sorts by time, and is unique without any look at the disk."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return f"{stamp}-{config_hash(config)}-{secrets.token_hex(4)}"


def create_run_dir(parent: Path, config: Mapping[str, Any]) -> Path:
    """Make a directory of this run alone under `parent`; one that exists is never taken.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for _ in range(_ATTEMPTS):
            directory = parent / new_run_id(config)
            try:
                directory.mkdir(exist_ok=False)
            except FileExistsError:
                continue
            _write_identity(directory, config)
            return directory
    except OSError as error:
        raise ConfigError(f"cannot make a run directory in {parent}: {error.strerror}") from error
    raise ConfigError(f"{parent} refuses new directories: every name tried was taken")


def claim_run_dir(directory: Path, config: Mapping[str, Any]) -> Path:
    """Use a given directory, made here or by an earlier run of the same configuration.

    Raises:
        ConfigError: it belongs to another configuration, holds files of unknown origin, or cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        owner = _owner(directory)
        if owner is None:
            if any(not path.name.startswith(f".{IDENTITY_FILE}.") for path in directory.iterdir()):
                raise ConfigError(
                    f"{directory} holds files of no known run: choose another or an empty directory"
                )
            owner = _write_identity(directory, config)
    except OSError as error:
        raise ConfigError(f"cannot use {directory}: {error.strerror}") from error
    if owner != config_hash(config):
        raise ConfigError(
            f"{directory} belongs to a run with configuration {owner}, not {config_hash(config)}: "
            "results of different configurations are never merged; choose another directory"
        )
    return directory


def _owner(directory: Path) -> str | None:
    """Configuration hash of the run that a directory belongs to; None where none wrote one."""
    path = directory / IDENTITY_FILE
    try:
        value = orjson.loads(path.read_bytes())
        return str(value["config_hash"])
    except FileNotFoundError:
        return None
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged: remove the directory or choose another") from error


def _write_identity(directory: Path, config: Mapping[str, Any]) -> str:
    """Write the identity unless another process was first; returns the hash that stands there then."""
    digest = config_hash(config)
    scratch = directory / f".{IDENTITY_FILE}.{secrets.token_hex(4)}"
    scratch.write_bytes(orjson.dumps({"config_hash": digest, "pid": os.getpid()}))
    try:
        # A hard link never replaces: of two processes exactly one wins.
        os.link(scratch, directory / IDENTITY_FILE)
    except FileExistsError:
        return _owner(directory) or digest
    finally:
        scratch.unlink(missing_ok=True)
    return digest
