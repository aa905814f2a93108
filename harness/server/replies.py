"""What a server sends, before anything is computed from it: its size, its shape, whether its numbers can be.

A server is another program, perhaps on another machine: a record keeps what it says, so each field that is
read is checked, and a wrong one is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import requests

from harness.errors import ServerError
from harness.printable import printable

MOST_BYTES = 512 << 20
"""Largest reply: a million tokens with their log probabilities take a tenth of it."""
_CHUNK_BYTES = 1 << 20
# Records are written by a serialiser that goes no deeper than 254.
_MOST_LEVELS = 32
_MOST_TOKENS = 1 << 31
_COUNTS = ("prompt_tokens", "completion_tokens")
_OPTIONAL_COUNTS = (
    "cached_tokens", "num_retractions", "spec_verify_ct", "spec_num_correct_drafts", "spec_accepted_drafts",
    "spec_accept_token_num", "spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num",
)  # fmt: skip
_HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")


def body_of(response: requests.Response, path: str) -> bytes:
    """The whole body of a streamed response.

    Raises:
        ServerError: it is larger than `MOST_BYTES`.
    """
    body = bytearray()
    for chunk in response.iter_content(_CHUNK_BYTES):
        body += chunk
        if len(body) > MOST_BYTES:
            raise ServerError(
                f"{path} answered more than {MOST_BYTES >> 20} MiB: it is no SGLang server, or lower "
                "max_new_tokens or batch",
                "request_error",
            )
    return bytes(body)


def check_levels(value: Any, path: str) -> None:
    """Refuse a reply that is nested deeper than any server's and than a record can be.

    Raises:
        ServerError: it is.
    """
    level = [value]
    for _ in range(_MOST_LEVELS):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise ServerError(f"{path} answered something nested over {_MOST_LEVELS} levels deep", "request_error")


def _inside(value: Any) -> Iterable[Any]:
    found = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (inner for inner in found if isinstance(inner, (dict, list)))


def check_reply(reply: Any, vocabulary: int | None = None) -> None:
    """Refuse a reply to one prompt that holds an error, or fields that cannot be a request's.

    Args:
        vocabulary: tokens of the model; None: not known.

    Raises:
        ServerError: names the field.
    """
    meta = reply.get("meta_info") if isinstance(reply, dict) else None
    if not isinstance(meta, dict) or "output_ids" not in reply:
        raise ServerError(f"/generate answered without output_ids: {brief(reply)}", "request_error")
    finish = meta.get("finish_reason")
    if isinstance(finish, dict) and finish.get("type") == "abort":
        # A 200 may still carry an aborted request.
        message = brief(finish.get("message", "no reason given"))
        raise ServerError(f"the server aborted the request: {message}", "request_error")
    kind = finish.get("type") if isinstance(finish, dict) else finish
    if kind is not None and not isinstance(kind, str):
        raise _wrong("meta_info.finish_reason", finish, "a text")
    for name in _COUNTS:
        _check_count(f"meta_info.{name}", meta.get(name))
    for name in _OPTIONAL_COUNTS:
        if meta.get(name) is not None:
            _check_count(f"meta_info.{name}", meta[name])
    for name in _HISTOGRAMS:
        _check_histogram(f"meta_info.{name}", meta.get(name))
    latency = meta.get("e2e_latency")
    if latency is not None and not (_is_number(latency) and math.isfinite(latency) and latency >= 0):
        raise _wrong("meta_info.e2e_latency", latency, "a number of seconds")
    _check_ids(reply["output_ids"], int(meta["completion_tokens"]), vocabulary)


def _check_ids(ids: Any, completion_tokens: int, vocabulary: int | None) -> None:
    if not isinstance(ids, list):
        raise _wrong("output_ids", ids, "a list of token ids")
    most = vocabulary or _MOST_TOKENS
    for place, token in enumerate(ids):
        if not _is_count(token) or token >= most:
            wanted = f"a token id below {most}, the size of the model's vocabulary" if vocabulary else "an id"
            raise _wrong(f"output_ids[{place}]", token, wanted)
    if len(ids) != completion_tokens:
        raise ServerError(
            f"/generate answered {len(ids)} output_ids and meta_info.completion_tokens={completion_tokens}: "
            "one of them is wrong; look at the server's version and log",
            "request_error",
        )


def _check_count(name: str, value: Any) -> None:
    if not _is_count(value) or value >= _MOST_TOKENS:
        raise _wrong(name, value, "a count")


def _check_histogram(name: str, value: Any) -> None:
    if value is not None and not (isinstance(value, list) and all(_is_count(n) for n in value)):
        raise _wrong(name, value, "a list of counts")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _wrong(name: str, value: Any, wanted: str) -> ServerError:
    return ServerError(
        f"/generate answered {name}={brief(value)}, not {wanted}: look at the server's version and log",
        "request_error",
    )


def brief(value: Any) -> str:
    """A value of the server's for a message: shortened, on one line, without control characters."""
    text = str(value)
    return printable(text if len(text) <= 300 else text[:300] + "...")
