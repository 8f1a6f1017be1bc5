#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""An engine that answers as its request says, for tests of what is seen of requests.

mock_engine.py PORT NAME

GET of anything answers a model list with NAME. POST with "stream": true in its JSON body streams chat chunks: "tokens" of them (default 5), "gap_ms" apart (default 10), the first after
"wait_ms" (default 0). Any other POST is answered with the very bytes of its body, under the request's Content-Type, with the method and target in the field X-Seen.
"""
import http.server
import json
import sys
import time


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, body, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Seen", f"{self.command} {self.path}")
        self.send_header("X-Request-Id", self.headers.get("X-Request-Id", "none"))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        self.answer(json.dumps({"object": "list", "data": [{"id": sys.argv[2]}]}).encode(), "application/json")

    do_HEAD = do_GET

    def chunk(self, text):
        data = text.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def stream(self, ask):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        n, gap = int(ask.get("tokens", 5)), float(ask.get("gap_ms", 10)) / 1000
        time.sleep(float(ask.get("wait_ms", 0)) / 1000)
        try:
            for i in range(n):
                self.chunk('data: {"choices":[{"index":0,"delta":{"content":"w%d "}}]}\n\n' % i)
                time.sleep(gap)
            self.chunk('data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"timings":{"cache_n":30,"prompt_n":10,"prompt_ms":20,"predicted_n":%d,"predicted_ms":%d}}\n\n'
                       "data: [DONE]\n\n" % (n, n * gap * 1000 or 1))
            self.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            ask = json.loads(body)
        except ValueError:
            ask = None
        if isinstance(ask, dict) and ask.get("stream") is True:
            self.stream(ask)
        else:
            self.answer(body, self.headers.get("Content-Type", "application/octet-stream"))

    do_PUT = do_DELETE = do_POST


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
