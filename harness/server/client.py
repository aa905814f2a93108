"""The few HTTP calls a measurement makes, by `requests`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import requests

from harness.errors import ServerError
from harness.server.replies import body_of, brief, check_levels, check_reply

SHORT_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class _Reply:
    """Status and body of an answer that was read to its end."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        return self.body[:2000].decode("utf-8", "replace")


class Client:
    """Talks to one server on the loopback interface (or a given URL)."""

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        self._session = requests.Session()
        # Nothing that this program reads is worth unpacking, and what is packed has no size.
        self._session.headers["Accept-Encoding"] = "identity"
        self.vocabulary: int | None = None  # the model's, where it is known: ids beyond it are refused
        self._session.trust_env = False  # a proxy setting must not reroute loopback traffic
        if api_key:
            self._session.headers["Authorization"] = f"Bearer {api_key}"

    def close(self) -> None:
        """Drop open connections."""
        self._session.close()

    def _send(self, method: str, path: str, timeout_s: float | None, **options: Any) -> _Reply:
        url = self.base_url + path
        return _reply(self._session.request(method, url, timeout=timeout_s, stream=True, **options), path)

    def _within(self, limit_s: float, method: str, path: str, **options: Any) -> _Reply:
        """`_send` with a limit on all of it: the library's is for each read, and a byte a second passes it.

        Raises:
            requests.RequestException: as `requests` does, also where the limit is reached.
        """
        outcome: list[_Reply | Exception] = []

        def send() -> None:
            try:
                outcome.append(self._send(method, path, limit_s, **options))
            except Exception as error:  # noqa: BLE001  (raised again in the waiting thread)
                outcome.append(error)

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        thread.join(limit_s)
        if not outcome:
            raise requests.Timeout(f"no whole answer within {limit_s:.0f} s")
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    def get(self, path: str, timeout_s: float = SHORT_TIMEOUT_S) -> dict[str, Any]:
        """GET a JSON object.

        Raises:
            ServerError: no connection, an error status, or a reply that is not an object.
        """
        try:
            response = self._within(timeout_s, "GET", path)
        except requests.RequestException as error:
            raise ServerError(f"no answer from {self.base_url}{path}: {_short(error)}") from error
        return _object(response, path)

    def flush_cache(self, timeout_s: float = 120.0) -> None:
        """Empty the prefix cache and wait until the server has done so."""
        try:
            # The server refuses while a request is still being released; it takes a timeout for that.
            response = self._within(timeout_s + 10, "POST", "/flush_cache", params={"timeout": timeout_s})
        except requests.RequestException as error:
            raise ServerError(f"the server did not flush its cache: {_short(error)}") from error
        if response.status != requests.codes.ok:
            raise ServerError(
                f"the server refused to flush its cache: {brief(response.text)}", "request_error"
            )

    def start_profile(self, **options: Any) -> None:
        """Arm the server's profiler; see SGLang's /start_profile for the options.

        Raises:
            ServerError: it refused or did not answer.
        """
        try:
            response = self._within(SHORT_TIMEOUT_S, "POST", "/start_profile", json=options)
        except requests.RequestException as error:
            raise ServerError(f"the server did not start its profiler: {_short(error)}") from error
        if response.status != requests.codes.ok:
            raise ServerError(
                f"the server refused to start its profiler: {brief(response.text)}", "request_error"
            )

    def generate(
        self,
        input_ids: Sequence[Sequence[int]],
        sampling: dict[str, Any] | list[dict[str, Any]],
        timeout_s: float | None,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """Send prompts as token ids in one batch and return one reply each (`output_ids`, `meta_info`).

        `sampling` is for all prompts, or a list with one for each; `options` are further fields of the
        request, such as `return_logprob`.

        Raises:
            ServerError: kind `request_error` where the server answered with an error (also inside a 200),
                `timeout` after `timeout_s`, `server_died` where the connection broke.
        """
        prompts = [list(ids) for ids in input_ids]
        body = orjson.dumps({"input_ids": prompts, "sampling_params": sampling, **options})
        try:
            headers = {"Content-Type": "application/json"}
            response = self._send("POST", "/generate", timeout_s, data=body, headers=headers)
        except requests.Timeout as error:
            raise ServerError(f"the request took longer than {timeout_s:.0f} s", "timeout") from error
        except requests.RequestException as error:
            raise ServerError(f"the connection broke during the request: {_short(error)}") from error
        replies = _json(response, "/generate")
        if isinstance(replies, dict):
            replies = [replies]
        if not isinstance(replies, list) or len(replies) != len(input_ids):
            raise ServerError(
                f"/generate answered {len(input_ids)} prompts with {brief(replies)}", "request_error"
            )
        for reply in replies:
            check_reply(reply, self.vocabulary)
        return replies


def _reply(response: requests.Response, path: str) -> _Reply:
    with response:
        return _Reply(response.status_code, body_of(response, path))


def _object(response: _Reply, path: str) -> dict[str, Any]:
    value = _json(response, path)
    if not isinstance(value, dict):
        raise ServerError(f"{path} answered {brief(value)} instead of an object", "request_error")
    return value


def _json(response: _Reply, path: str) -> Any:
    try:
        value = orjson.loads(response.body)
    except orjson.JSONDecodeError:
        value = None
    if response.status != requests.codes.ok or value is None:
        text = brief(value if value is not None else response.text)
        raise ServerError(f"{path} answered {response.status}: {text}", "request_error")
    check_levels(value, path)
    if isinstance(value, dict) and "error" in value:
        raise ServerError(f"{path} answered an error: {brief(value['error'])}", "request_error")
    return value


def _short(error: Exception) -> str:
    """The system's own words where it has some (connection refused, no such name), else the library's."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        inner = inner.__cause__ or inner.__context__
    return f"{type(error).__name__}: {brief(error)}"
