#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Replicas that fail as a request says, a fleet in front of them, and a client that sees every byte: for tests and benchmarks of the router.

replicas.py serve PORT [TOKEN_MS]   one replica that speaks enough of the chat API; ends by a signal, or by a request with the fault "poison"

A request says in "metadata" what is to be done with it: {"id": TEXT, "fault": NAME, "tokens": N, "first_ms": N, "token_ms": N}. A fault strikes once for each id, at whichever replica sees it first; "poison" strikes always.
The content of an answer is "ID.0 ID.1 ... ", so that what is missing, or was sent twice, shows.
"""
import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time

NO_TAIL = b"0\r\n\r\n"


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(**what):
    return b"data: " + json.dumps(what).encode() + b"\n\n"


class Replica:
    """One port. `seen` and `left` may be shared by several: ids that came, and when the caller of an id went away."""

    def __init__(self, seen=None, left=None, token_ms=1, idle_close=None):
        self.seen = {} if seen is None else seen
        self.left = {} if left is None else left
        self.token_ms, self.idle_close = token_ms, idle_close
        self.server = None

    async def start(self, port):
        self.server = await asyncio.start_server(self.connection, "127.0.0.1", port, backlog=1024)

    @staticmethod
    def reset(writer):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def connection(self, reader, writer):
        early = b""
        try:
            while (early := await self.request(reader, writer, early)) is not None:
                if self.idle_close is not None:
                    await asyncio.sleep(self.idle_close())
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def request(self, reader, writer, early):
        """None when the connection ends with it, else what came of the next one."""
        head = (early + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        length = max([int(f.split(":")[1]) for f in head if f.lower().startswith("content-length:")] or [0])
        body = await reader.readexactly(length)
        if head[0].startswith("GET /health "):
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{"status":"ok"}')
            return b""
        if head[0].startswith("GET"):  # it does not say what it serves
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return b""
        asked = json.loads(body)
        meta = asked.get("metadata", {})
        name = meta.get("id", "x")
        first = name not in self.seen
        self.seen[name] = self.seen.get(name, 0) + 1
        fault = meta.get("fault") if first or meta.get("fault") == "poison" else None
        if fault == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        watch = asyncio.create_task(self.notice(reader, name))
        try:
            stays = await (self.stream if asked.get("stream") else self.whole)(writer, name, fault, meta)
        finally:
            watch.cancel()
            early = (await asyncio.gather(watch, return_exceptions=True))[0]
        return (early if isinstance(early, bytes) else b"") if stays else None

    async def notice(self, reader, name):
        """Until the answer is there the caller sends nothing: what can be read is its end, or the next request."""
        early = b""
        try:
            early = await reader.read(1)
        except ConnectionError:
            pass
        if not early:
            self.left[name] = time.monotonic()
        return early

    def early(self, writer, fault):
        """Faults before the answer's head; True when one struck."""
        if fault == "reset":
            self.reset(writer)
        elif fault == "garbage":
            writer.write(b"NONSENSE\r\n\r\n")
        elif fault in ("429", "500", "502", "503"):
            writer.write(b"HTTP/1.1 %s No\r\nContent-Type: application/json\r\nContent-Length: 18\r\n\r\n" % fault.encode() + b'{"error":"no such"}'[:18])
        elif fault != "eof":
            return False
        return True

    def timings(self, n):
        return {"prompt_n": 10, "cache_n": 0, "prompt_ms": 1.0, "predicted_n": n, "predicted_ms": 1.0 + n}

    async def whole(self, writer, name, fault, meta):
        if self.early(writer, fault):
            return False
        n = meta.get("tokens", 5)
        await asyncio.sleep((meta.get("first_ms", 0) + n * meta.get("token_ms", self.token_ms)) / 1000)
        text = json.dumps({"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "".join(f"{name}.{i} " for i in range(n))}}],
                           "timings": self.timings(n)}).encode()
        cut = len(text) // 2 if fault == "cut-body" else len(text)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text) + text[:cut])
        await writer.drain()
        return cut == len(text)

    async def stream(self, writer, name, fault, meta):
        if self.early(writer, fault):
            return False
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b":\n\n")
                     + chunk(event(choices=[{"index": 0, "finish_reason": None, "delta": {"role": "assistant", "content": None}}])))
        await writer.drain()
        await asyncio.sleep(meta.get("first_ms", 0) / 1000)
        if fault == "headers-eof":
            return False
        if fault == "headers-reset":
            await asyncio.sleep(0.005)
            self.reset(writer)
            return False
        if fault == "error-event":
            writer.write(chunk(event(error={"code": 500, "message": "out of memory", "type": "server_error"})) + NO_TAIL)
            return True
        n = meta.get("tokens", 5)
        for i in range(n):
            writer.write(chunk(event(choices=[{"index": 0, "finish_reason": None, "delta": {"content": f"{name}.{i} "}}])))
            await writer.drain()
            if fault == "mid" and i == 2:
                await asyncio.sleep(0.005)
                self.reset(writer)
                return False
            await asyncio.sleep(meta.get("token_ms", self.token_ms) / 1000)
        writer.write(chunk(event(choices=[{"index": 0, "finish_reason": "stop", "delta": {}}], timings=self.timings(n))) + chunk(b"data: [DONE]\n\n") + NO_TAIL)
        await writer.drain()
        return True


class Answer:
    """What came back, and how it ended: `whole` when its framing was complete."""

    def __init__(self):
        self.status, self.fields, self.body, self.whole = 0, {}, b"", False
        self.first = self.ended = None

    @property
    def text(self):
        if "event-stream" not in self.fields.get("content-type", ""):
            try:
                return json.loads(self.body)["choices"][0]["message"]["content"]
            except (ValueError, KeyError, TypeError):
                return None
        out = ""
        for e in self.events():
            if e.get("choices"):
                out += e["choices"][0]["delta"].get("content") or ""
        return out

    def events(self):
        for part in self.body.split(b"\n\n"):
            for line in part.split(b"\n"):
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])

    @property
    def error(self):
        return any("error" in e for e in self.events())


def request_bytes(model, meta, stream=True, text=None, fields=""):
    body = json.dumps({"model": model, "stream": stream, "metadata": meta, "messages": [{"role": "user", "content": text or meta.get("id", "x")}]}).encode()
    return f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n{fields}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Client:
    """One connection to the router."""

    def __init__(self, port):
        self.port = port
        self.reader = self.writer = None

    async def open(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    def close(self):
        self.writer.close()

    async def ask(self, data):
        a = Answer()
        self.writer.write(data)
        try:
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            a.status = int(head[0].split()[1])
            a.fields = {n.lower(): v.strip() for n, _, v in (f.partition(":") for f in head[1:] if f)}
            if "content-length" in a.fields:
                a.body = await self.reader.readexactly(int(a.fields["content-length"]))
            else:
                while (size := int(await self.reader.readuntil(b"\r\n"), 16)) > 0:
                    a.body += (await self.reader.readexactly(size + 2))[:-2]
                    a.first = a.first or (time.monotonic() if b'"content": "' in a.body else None)
                await self.reader.readexactly(2)
            a.whole = True
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        a.ended = time.monotonic()
        return a


async def ask(port, data):
    c = await Client(port).open()
    try:
        return await c.ask(data)
    finally:
        c.close()


class Fleet:
    """`berth up` with a router in front of replicas that it takes for another machine's, and so does not start."""

    def __init__(self, folder, services, endpoints, port, slots=4, policy="adaptive"):
        self.folder, self.port, self.name = folder, port, f"lab{port}"
        self.berth = os.environ.get("BERTH", "build/berth")
        self.file = os.path.join(folder, f"{self.name}.yaml")
        self.env = dict(os.environ, BERTH_STATE=os.path.join(folder, "state"), BERTH_RUN=os.path.join(folder, "run"))
        with open(os.path.join(folder, "m.gguf"), "wb"):
            pass
        with open(self.file, "w", encoding="utf-8") as f:
            f.write(f'version: 1\nname: {self.name}\nhosts:\n  other: {{ssh: "x@127.0.0.1", address: 127.0.0.1}}\nruntimes:\n  llama: {{engine: llama.cpp, source: system}}\n'
                    f'models:\n  m: {{source: "file:{folder}", weights: m.gguf}}\nservices:\n')
            for service, at in services.items():
                f.write(f"  {service}: {{host: other, runtime: llama, model: m, port: {at}, context: 65536, slots: {slots}}}\n")
            f.write("endpoints:\n")
            for endpoint, names in endpoints.items():
                f.write(f"  {endpoint}: {{services: [{', '.join(names)}], policy: {policy}}}\n")
            f.write(f'router: {{listen: "127.0.0.1:{port}"}}\n')

    def run(self, *words):
        return subprocess.run([self.berth, *words, "-f", self.file], env=self.env, capture_output=True, text=True, check=True).stdout

    def __enter__(self):
        self.run("up", "-d")
        return self

    def __exit__(self, *what):
        self.run("down")

    def router(self):
        return json.loads(self.run("status", "--json"))["router"]

    def metrics(self):
        """Name with labels -> value."""
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(os.path.join(self.folder, "run", self.name, "control.sock"))
            s.sendall(b"GET /metrics HTTP/1.0\r\nHost: a\r\n\r\n")
            text = b"".join(iter(lambda: s.recv(65536), b"")).decode()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("berth_")}


def free_ports(n):
    """Ports of loopback that nobody uses, as bound sockets that do not listen: who connects is refused."""
    out = []
    for _ in range(n):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("127.0.0.1", 0))
        out.append(s)
    return out


async def serve(port, token_ms):
    r = Replica(token_ms=token_ms)
    await r.start(port)
    await r.server.serve_forever()


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] != "serve":
        sys.exit(__doc__)
    asyncio.run(serve(int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 1))
