"""Faults a real server cannot be made to show, by a scripted HTTP server on loopback."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from harness.errors import ServerError
from harness.server.client import Client

ABORTED = {"output_ids": [], "meta_info": {"finish_reason": {"type": "abort", "message": "too long"}}}
GOOD = {"output_ids": [1, 2], "meta_info": {"completion_tokens": 2, "finish_reason": {"type": "length"}}}


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
