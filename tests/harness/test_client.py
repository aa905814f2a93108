"""Faults a real server cannot be made to show, by a scripted HTTP server on loopback."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from harness.errors import ServerError
from harness.server import client, replies
from harness.server.client import Client

ABORTED = {"output_ids": [], "meta_info": {"finish_reason": {"type": "abort", "message": "too long"}}}
GOOD = {
    "output_ids": [1, 2],
    "meta_info": {"prompt_tokens": 1, "completion_tokens": 2, "finish_reason": {"type": "length"}},
}


@pytest.fixture
def scripted():
    """Start servers that answer every request with one status and body."""
    servers = []

    def start(status, body):
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(status)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            do_POST = do_GET

            def log_message(self, *args):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return Client(f"http://127.0.0.1:{server.server_port}")

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_reply_per_prompt(scripted):
    assert scripted(200, [GOOD, GOOD]).generate([[1], [2]], {}, 5) == [GOOD, GOOD]
    assert scripted(200, GOOD).generate([[1]], {}, 5) == [GOOD]


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, {"error": {"message": "Internal"}}, "Internal"),
        (200, [{"text": "no ids", "meta_info": {}}], "without output_ids"),
        (200, [ABORTED], "too long"),
        (200, [GOOD, GOOD], "1 prompts"),
        (200, b"<html>busy</html>", "busy"),
        (400, {"error": {"message": "The input (9 tokens) is longer"}}, "is longer"),
        (503, b"", "503"),
    ],
)
def test_errors_also_inside_a_200(scripted, status, body, words):
    with pytest.raises(ServerError, match=words) as caught:
        scripted(status, body).generate([[1]], {}, 5)
    assert caught.value.kind == "request_error"


def test_no_server_is_a_broken_connection():
    with pytest.raises(ServerError, match="connection broke") as caught:
        Client("http://127.0.0.1:9").generate([[1]], {}, 5)
    assert caught.value.kind == "server_died"


def but(ids=(1, 2), **meta):
    return {"output_ids": ids, "meta_info": {**GOOD["meta_info"], **meta}}


def nested(levels):
    return {"a": nested(levels - 1)} if levels else 1


@pytest.mark.parametrize(
    ("reply", "named"),
    [
        (but(None), r"output_ids=None, not a list"),
        (but(["a", 2]), r"output_ids\[0\]=a, not a token id below 500"),
        (but([1, -1]), r"output_ids\[1\]=-1"),
        (but([1, 1.5]), r"output_ids\[1\]=1.5"),
        (but([1, 500]), r"output_ids\[1\]=500"),
        (but([1]), r"1 output_ids and meta_info.completion_tokens=2"),
        (but(completion_tokens=-4), r"meta_info.completion_tokens=-4"),
        (but(completion_tokens="many"), r"meta_info.completion_tokens=many"),
        (but(prompt_tokens=None), r"meta_info.prompt_tokens=None"),
        (but(cached_tokens=[1]), r"meta_info.cached_tokens"),
        (but(e2e_latency="x"), r"meta_info.e2e_latency=x"),
        (but(spec_verify_ct=-1), r"meta_info.spec_verify_ct=-1"),
        (but(spec_correct_drafts_histogram=[1, None]), r"meta_info.spec_correct_drafts_histogram"),
        (but(finish_reason=3), r"meta_info.finish_reason=3"),
        (but(more=nested(900)), "nested over 32 levels"),
        (but(finish_reason={"type": "abort", "message": "\x1b[2Jno\nway"}), r"request: \\x1b\[2Jno\\nway"),
    ],
)
def test_a_field_that_cannot_be_is_named(scripted, reply, named):
    asked = scripted(200, [reply])
    asked.vocabulary = 500
    with pytest.raises(ServerError, match=named) as caught:
        asked.generate([[1]], {}, 5)
    assert caught.value.kind == "request_error"
    assert str(caught.value).isprintable()


def test_replies_have_a_size_and_short_ones_a_time(scripted, monkeypatch):
    monkeypatch.setattr(replies, "MOST_BYTES", 10)
    with pytest.raises(ServerError, match="answered more than"):
        scripted(200, b"x" * 11).get("/server_info")
    monkeypatch.setattr(client, "body_of", lambda *_: time.sleep(30))
    with pytest.raises(ServerError, match="no whole answer within 1 s"):
        scripted(200, {}).get("/server_info", timeout_s=1)
