"""The few HTTP calls a measurement makes, by `requests`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import requests

from harness.errors import ServerError

SHORT_TIMEOUT_S = 30.0


class Client:
    """Talks to one server on the loopback interface (or a given URL)."""

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy setting must not reroute loopback traffic
        if api_key:
            self._session.headers["Authorization"] = f"Bearer {api_key}"

    def close(self) -> None:
        """Drop open connections."""
        self._session.close()

    def get(self, path: str, timeout_s: float = SHORT_TIMEOUT_S) -> dict[str, Any]:
        """GET a JSON object.

        Raises:
            ServerError: no connection, an error status, or a reply that is not an object.
        """
        try:
            response = self._session.get(self.base_url + path, timeout=timeout_s)
        except requests.RequestException as error:
            raise ServerError(f"no answer from {self.base_url}{path}: {_short(error)}") from error
        return _object(response, path)

    def flush_cache(self, timeout_s: float = 120.0) -> None:
        """Empty the prefix cache and wait until the server has done so."""
        try:
            # The server refuses while a request is still being released; it takes a timeout for that.
            response = self._session.post(
                self.base_url + "/flush_cache", params={"timeout": timeout_s}, timeout=timeout_s + 10
            )
        except requests.RequestException as error:
            raise ServerError(f"the server did not flush its cache: {_short(error)}") from error
        if response.status_code != requests.codes.ok:
            raise ServerError(
                f"the server refused to flush its cache: {response.text[:200]}", "request_error"
            )

    def start_profile(self, **options: Any) -> None:
        """Arm the server's profiler; see SGLang's /start_profile for the options.

        Raises:
            ServerError: it refused or did not answer.
        """
        try:
            response = self._session.post(
                self.base_url + "/start_profile", json=options, timeout=SHORT_TIMEOUT_S
            )
        except requests.RequestException as error:
            raise ServerError(f"the server did not start its profiler: {_short(error)}") from error
        if response.status_code != requests.codes.ok:
            raise ServerError(
                f"the server refused to start its profiler: {response.text[:200]}", "request_error"
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
            response = self._session.post(
                self.base_url + "/generate",
                data=body,
                headers={"Content-Type": "application/json"},
                timeout=timeout_s,
            )
        except requests.Timeout as error:
            raise ServerError(f"the request took longer than {timeout_s:.0f} s", "timeout") from error
        except requests.RequestException as error:
            raise ServerError(f"the connection broke during the request: {_short(error)}") from error
        replies = _json(response, "/generate")
        if isinstance(replies, dict):
            replies = [replies]
        if not isinstance(replies, list) or len(replies) != len(input_ids):
            raise ServerError(
                f"/generate answered {len(input_ids)} prompts with {_brief(replies)}", "request_error"
            )
        for reply in replies:
            _check_reply(reply)
        return replies


def _check_reply(reply: Any) -> None:
    """A 200 may still carry an error or an aborted request."""
    meta = reply.get("meta_info") if isinstance(reply, dict) else None
    if not isinstance(meta, dict) or "output_ids" not in reply:
        raise ServerError(f"/generate answered without output_ids: {_brief(reply)}", "request_error")
    finish = meta.get("finish_reason")
    if isinstance(finish, dict) and finish.get("type") == "abort":
        raise ServerError(
            f"the server aborted the request: {finish.get('message', 'no reason given')}", "request_error"
        )


def _object(response: requests.Response, path: str) -> dict[str, Any]:
    value = _json(response, path)
    if not isinstance(value, dict):
        raise ServerError(f"{path} answered {_brief(value)} instead of an object", "request_error")
    return value


def _json(response: requests.Response, path: str) -> Any:
    try:
        value = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        value = None
    if response.status_code != requests.codes.ok or value is None:
        text = _brief(value if value is not None else response.text)
        raise ServerError(f"{path} answered {response.status_code}: {text}", "request_error")
    if isinstance(value, dict) and "error" in value:
        raise ServerError(f"{path} answered an error: {_brief(value['error'])}", "request_error")
    return value


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 300 else text[:300] + "..."


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {_brief(error)}"
