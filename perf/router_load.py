#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What perf/router measures with: conversations, and a stream whose events carry the time at which they were sent.

router_load.py turns ADDRESS MODEL CLIENTS TURNS [header]   prompt tokens, share from cache, mean and longest time of a client, load of replicas
router_load.py events PORT                                   serves a stream of 200 events, 5 ms apart
router_load.py delay PORT...                                 median and largest delay of such a stream through each port
"""
import http.client
import json
import random
import socketserver
import statistics
import sys
import threading
import time

EVENTS = 200
WORDS = "river stone cloud tree lamp paper north seven quiet copper slow garden".split()
SCAFFOLD_WORDS, TURN_WORDS = 40, 8  # about 200 and 45 tokens of the tiny model


def words(seed, n):
    r = random.Random(seed)
    return " ".join(r.choice(WORDS) for _ in range(n))


class Turns:
    """Closed loop without think time: each client asks its next turn as soon as it has the answer to the last."""

    def __init__(self, address, model, clients, turns, header):
        self.address, self.model, self.turns, self.header = address, model, turns, header
        self.lock = threading.Lock()
        self.prompt = self.cached = self.failed = 0
        self.replicas = {}
        self.waits, self.seconds = [], []
        self.threads = [threading.Thread(target=self.client, args=(i,)) for i in range(clients)]

    def client(self, number):
        connection = http.client.HTTPConnection(self.address, timeout=300)
        messages = [{"role": "system", "content": words("scaffold", SCAFFOLD_WORDS)}]
        headers = {"Content-Type": "application/json"}
        if self.header:
            headers["X-Session-Id"] = f"conversation-{number}"
        began = time.monotonic()
        for turn in range(self.turns):
            messages.append({"role": "user", "content": words(f"{number} {turn}", TURN_WORDS)})
            sent = time.monotonic()
            connection.request("POST", "/v1/chat/completions", json.dumps({"model": self.model, "max_tokens": 8, "temperature": 0, "messages": messages}), headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
            with self.lock:
                self.waits.append(time.monotonic() - sent)
                if response.status != 200:
                    self.failed += 1
                    print(response.status, answer, file=sys.stderr)
                    continue
                self.prompt += answer["timings"]["prompt_n"] + answer["timings"]["cache_n"]
                self.cached += answer["timings"]["cache_n"]
                name = response.getheader("X-Berth-Replica", "?")
                self.replicas[name] = self.replicas.get(name, 0) + 1
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        with self.lock:
            self.seconds.append(time.monotonic() - began)

    def run(self):
        for t in self.threads:
            t.start()
        for t in self.threads:
            t.join()
        mean = statistics.mean(self.seconds)
        load = max(self.replicas.values()) * len(self.replicas) / sum(self.replicas.values())
        print(f"{self.prompt} {100 * self.cached / self.prompt:.1f} {mean:.2f} {max(self.seconds) / mean:.2f} {load:.2f} {self.failed}")


class Events(socketserver.StreamRequestHandler):
    def handle(self):
        while True:
            line = self.rfile.readline()
            if not line:
                return
            length = 0
            while (field := self.rfile.readline()) not in (b"\r\n", b""):
                if field.lower().startswith(b"content-length:"):
                    length = int(field.split(b":")[1])
            self.rfile.read(length)
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(EVENTS):
                time.sleep(0.005)
                event = f'data: {{"at":{time.monotonic_ns()}}}\n\n'.encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True


def delay(port):
    connection = http.client.HTTPConnection(f"127.0.0.1:{port}", timeout=60)
    connection.request("POST", "/v1/chat/completions", '{"model":"m","stream":true}')
    response, delays, reads, rest = connection.getresponse(), [], 0, b""
    while data := response.read1(65536):
        now = time.monotonic_ns()
        reads += 1
        rest += data
        *events, rest = rest.split(b"\n\n")
        delays += [now - json.loads(e[6:])["at"] for e in events if b'"at"' in e]
    print(f"{port} {statistics.median(delays) / 1e6:.3f} {max(delays) / 1e6:.3f} {reads}")


def main(what, *args):
    if what == "turns":
        Turns(args[0], args[1], int(args[2]), int(args[3]), args[4:] == ("header",)).run()
    elif what == "events":
        Server(("127.0.0.1", int(args[0])), Events).serve_forever()
    elif what == "delay":
        for port in args:
            delay(port)


if __name__ == "__main__":
    main(*sys.argv[1:])
