#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What perf/router asks of a router whose replicas fail and whose clients leave.

router_faults.py matrix [REPEATS]   each fault so many times (20): the client gets the whole answer of another replica; after content an error and an end that is none. "CASE MEDIAN_MS WRONG"
router_faults.py cancel [REPEATS]   how soon a replica learns that the client is gone: "PHASE MEDIAN_MS MOST_MS MISSED"
router_faults.py stale [REQUESTS]   replicas that close each connection soon after an answer: "REQUESTS ERRORS"
"""
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "test", "aids"))
from replicas import Client, Fleet, Replica, ask, free_ports, request_bytes  # noqa: E402

# Faults, and whether they strike streams, whole answers, or both.
CASES = [("refused", "both"), ("reset", "both"), ("eof", "both"), ("503", "both"), ("429", "both"), ("500", "both"), ("garbage", "both"), ("headers-eof", "stream"),
         ("headers-reset", "stream"), ("error-event", "stream"), ("cut-body", "whole"), ("mid", "stream")]


def tokens(name, n):
    return "".join(f"{name}.{i} " for i in range(n))


def is_right(case, a, name, seen):
    if case == "mid":
        return a.status == 200 and not a.whole and a.error and a.text == tokens(name, 3) and seen[name] == 1
    # Two replicas saw it, or one twice: over a connection that was kept, and over a new one.
    return a.status == 200 and a.whole and not a.error and a.text == tokens(name, 5) and seen[name] == (1 if case == "refused" else 2)


async def matrix(folder, repeats):
    seen, wrong_all = {}, 0
    refusing, (router, *ports) = free_ports(repeats), [s.getsockname()[1] for s in free_ports(3)]
    replicas = [Replica(seen) for _ in ports]
    for r, port in zip(replicas, ports):
        await r.start(port)
    services = {"a": ports[0], "b": ports[1]} | {f"r{i}": s.getsockname()[1] for i, s in enumerate(refusing)}
    # A replica that refused is passed over for a while: each one is met once, first among those that never had a turn.
    endpoints = {"m": ["a", "b"]} | {f"refused{i}": [f"r{i}", "a"] for i in range(repeats)}
    with Fleet(folder, services, endpoints, router, policy="roundrobin"):
        for case, kind in CASES:
            times, wrong = [], 0
            for i in range(repeats):
                name = f"{case}-{i}"
                stream = kind == "stream" or (kind == "both" and i % 2 == 0)
                data = request_bytes(f"refused{i}" if case == "refused" else "m", {"id": name, "fault": case, "token_ms": 0}, stream)
                began = time.monotonic()
                a = await asyncio.wait_for(ask(router, data), 30)
                times.append((a.ended - began) * 1000)
                if not is_right(case, a, name, seen):
                    wrong += 1
                    print(f"{name}: status {a.status}, whole {a.whole}, seen {seen.get(name)}, {a.fields.get('x-berth-attempts')} attempts: {a.body[-300:]}", file=sys.stderr)
            wrong_all += wrong
            print(f"{case} {statistics.median(times):.2f} {wrong}", flush=True)
    return wrong_all


async def until(condition, what, limit=5):
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        await asyncio.sleep(0.001)


async def leave(router, replica, phase, name):
    """One client that leaves in that phase; milliseconds until the replica knows, or None when it never had the request, which in the queue is right."""
    meta = {"id": name, "tokens": 100000, "first_ms": 60000 if phase == "prompt" else 0, "token_ms": 20}
    blocker = None
    if phase == "queue":
        blocker = await Client(router).open()
        blocker.writer.write(request_bytes("m", {"id": "block " + name, "tokens": 100000, "token_ms": 20}))
        await until(lambda: "block " + name in replica.seen, "the first request")
    c = await Client(router).open()
    c.writer.write(request_bytes("m", meta))
    if phase == "queue":
        await asyncio.sleep(0.1)
    elif phase == "prompt":
        await until(lambda: name in replica.seen, "the request")
        await asyncio.sleep(0.02)
    else:
        await c.reader.readuntil(b'"content": "')
    gone = time.monotonic()
    c.close()
    if blocker:
        # Its place goes to the next one only after it: what left the queue is never seen.
        await asyncio.sleep(0.03)
        blocker.close()
        a = await asyncio.wait_for(ask(router, request_bytes("m", {"id": "after " + name})), 10)
        return None if name not in replica.seen and a.status == 200 else 1e9
    await until(lambda: name in replica.left, "the end")
    return (replica.left[name] - gone) * 1000


async def cancel(folder, repeats):
    (router, port) = [s.getsockname()[1] for s in free_ports(2)]
    replica, bad = Replica(), 0
    await replica.start(port)
    with Fleet(folder, {"a": port}, {"m": ["a"]}, router, slots=1):
        for phase in ("queue", "prompt", "answer"):
            times = [await leave(router, replica, phase, f"{phase}-{i}") for i in range(repeats)]
            known = [t for t in times if t is not None]
            missed = sum(t > 1e6 for t in known)
            bad += missed
            print(f"{phase} {statistics.median(known) if known else 0:.2f} {max(known) if known else 0:.2f} {missed}", flush=True)
    return bad


async def stale(folder, requests):
    (router, *ports) = [s.getsockname()[1] for s in free_ports(3)]
    r, errors = random.Random(1), 0
    for port in ports:
        await Replica(idle_close=lambda: r.random() * 0.004).start(port)
    with Fleet(folder, {"a": ports[0], "b": ports[1]}, {"m": ["a", "b"]}, router):
        c = await Client(router).open()
        for i in range(requests):
            name = f"stale-{i}"
            a = await asyncio.wait_for(c.ask(request_bytes("m", {"id": name, "token_ms": 0}, i % 2 == 0)), 30)
            if a.status != 200 or not a.whole or a.text != tokens(name, 5):
                errors += 1
                print(f"{name}: status {a.status}: {a.body[-200:]}", file=sys.stderr)
                c = await Client(router).open()
            await asyncio.sleep(r.random() * 0.004)
    print(f"{requests} {errors}")
    return errors


def main():
    what = {"matrix": (matrix, 20), "cancel": (cancel, 20), "stale": (stale, 1000)}
    if len(sys.argv) < 2 or sys.argv[1] not in what:
        sys.exit(__doc__)
    fn, n = what[sys.argv[1]]
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        return 1 if asyncio.run(fn(folder, int(sys.argv[2]) if len(sys.argv) > 2 else n)) else 0


if __name__ == "__main__":
    sys.exit(main())
