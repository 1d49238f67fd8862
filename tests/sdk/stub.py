#!/usr/bin/env python3
"""A stand-in for an OpenAI endpoint, to test the beds themselves: `stub.py [PORT]`.

Serves http://127.0.0.1:PORT/KIND/v1, where KIND says how a stream ends (`ENDS`). Prints its port.
The key `sk-test` is known, `sk-limited` is over its quota; the model is `m`.
"""

import json
import os
import socket
import struct
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ENDS = (
    "good",  # the whole answer
    "reset",  # TCP reset in the middle
    "fin",  # the connection closes without the last chunk
    "error_then_fin",  # likewise, after an error event: what the gateway does
    "error_then_end",  # an error event, then a clean end of the body
    "no_done",  # a clean end of the body in the middle
    "torn_event",  # likewise, in the middle of an event
    "short_length",  # fewer bytes than the Content-Length said
)
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
LOST = {"message": "replica lost", "type": "upstream_error", "param": None, "code": "x"}


def event(value):
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def stream_events(body, chat):
    """The events of a whole answer, without the `[DONE]`."""
    base = {"id": "x", "model": "m", "created": 1}
    base["object"] = "chat.completion.chunk" if chat else "text_completion"
    for index in range(body.get("n") or 1):
        for word, finish in (("Hel", None), ("lo", None), ("", "stop")):
            piece = {"delta": {"content": word}} if chat else {"text": word}
            choice = {"index": index, "finish_reason": finish, "logprobs": None, **piece}
            yield event({**base, "choices": [choice]})
    if (body.get("stream_options") or {}).get("include_usage"):
        yield event({**base, "choices": [], "usage": USAGE})


class Stub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, value, headers=()):
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in (("content-type", "application/json"), *headers):
            self.send_header(name, text)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def fail(self, status, code, headers=()):
        error = {"message": code, "type": "invalid_request_error", "param": None, "code": code}
        self.answer(status, {"error": error}, headers)

    def refused(self, model):
        key = (self.headers.get("authorization") or "").removeprefix("Bearer ")
        if key == "sk-limited":
            self.fail(429, "rate_limit_exceeded", [("retry-after", "2")])
        elif key != "sk-test":
            self.fail(401, "invalid_api_key")
        elif model != "m":
            self.fail(404, "model_not_found")
        return key != "sk-test" or model != "m"

    def do_GET(self):
        one = {"id": "m", "object": "model", "created": 1, "owned_by": "stub"}
        _, _, name = self.path.partition("/v1/models")
        if not self.refused(name[1:] or "m"):
            self.answer(200, one if name else {"object": "list", "data": [one]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.refused(body.get("model")):
            return
        if isinstance(body.get("temperature"), str):
            return self.fail(400, "invalid_value")
        _, kind, _, endpoint = self.path.split("/", 3)
        if endpoint == "embeddings":
            return self.fail(404, "not_found")
        chat = endpoint == "chat/completions"
        if body.get("stream"):
            return self.stream(kind, list(stream_events(body, chat)))
        message = {"role": "assistant", "content": "Hello"}
        if body.get("tools"):
            message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
        piece = {"message": message} if chat else {"text": "Hello"}
        choices = [
            {"index": i, "finish_reason": "tool_calls" if body.get("tools") else "stop", **piece}
            for i in range(body.get("n") or 1)
        ]
        self.answer(200, {"id": "x", "model": "m", "choices": choices, "usage": USAGE})

    def stream(self, kind, events):
        """Sends `events`, cut as `kind` says; all but the good one lose the end of the answer."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        whole = b"".join([*events, event(b"[DONE]")])
        chunked = kind != "short_length"
        sized = ("transfer-encoding", "chunked") if chunked else ("content-length", len(whole))
        self.send_header(sized[0], str(sized[1]))
        self.end_headers()
        kept = [*events, event(b"[DONE]")] if kind == "good" else events[:2]
        if kind.startswith("error_then"):
            kept.append(event({"error": LOST}))
        if kind == "torn_event":
            kept.append(events[1][: len(events[1]) // 2])
        for data in kept:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)
        if kind in ("good", "error_then_end", "no_done", "torn_event"):
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = kind != "good"
        if kind == "reset":
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            os.close(self.connection.detach())


def serve(port=0):
    """A server on loopback, not yet running."""
    server = ThreadingHTTPServer(("127.0.0.1", port), Stub)
    server.daemon_threads = True
    return server


if __name__ == "__main__":
    SERVER = serve(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print(SERVER.server_address[1], flush=True)
    SERVER.serve_forever()
