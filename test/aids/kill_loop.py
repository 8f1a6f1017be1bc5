#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Kills replicas under load and looks at what clients see.

kill_loop.py SECONDS [EVERY_S [REPLICAS [CLIENTS]]]

One replica after the other is killed with SIGKILL every EVERY_S (5) seconds and started again a second later, while clients ask for streams and whole answers of all lengths. Every answer is right to the last byte, or had content and ends as a broken
one; whatever had no content yet is answered. At the end nothing is under way, descriptors are back, memory has not grown. Prints "requests N, whole N, cut N, errors N, kills N, sent again N, descriptors BEFORE AFTER, rss BEFORE AFTER KiB, busy N"; exit 1
when anything is not so.
"""
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

from replicas import Client, Fleet, free_ports, request_bytes

CONVERSATIONS = 200  # as many as the router has to remember
RSS_SLACK_KIB = 2048


class Load:
    def __init__(self, port, clients):
        self.port, self.clients = port, clients
        self.requests = self.whole = self.cut = 0
        self.errors = []
        self.stop = False

    def judge(self, a, name, n, stream):
        text = "".join(f"{name}.{i} " for i in range(n))
        if a.status == 200 and a.whole and not a.error and a.text == text:
            self.whole += 1
        elif a.status == 200 and stream and a.text and text.startswith(a.text) and not a.whole:
            self.cut += 1
        else:
            self.errors.append(f"{name} (stream {stream}): status {a.status}, whole {a.whole}: {a.body[-200:]}")

    async def client(self, number):
        r, c = random.Random(number), None
        while not self.stop:
            name, n, stream = f"k{number}-{self.requests}", r.choice((1, 3, 10, 40)), r.random() < 0.7
            self.requests += 1
            meta = {"id": name, "tokens": n, "first_ms": r.choice((0, 5, 50, 300)), "token_ms": r.choice((0, 1, 5, 20))}
            if not c:
                c = await Client(self.port).open()
            a = await c.ask(request_bytes("m", meta, stream, f"conversation {r.randrange(CONVERSATIONS)}"))
            self.judge(a, name, n, stream)
            if not a.whole or r.random() < 0.1:
                c.close()
                c = None
        if c:
            c.close()


class Pack:
    """The replicas' processes."""

    def __init__(self, ports):
        self.ports, self.procs = ports, [None] * len(ports)

    def start(self, i):
        self.procs[i] = subprocess.Popen([sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "replicas.py"), "serve", str(self.ports[i])])

    def kill(self, i):
        self.procs[i].send_signal(signal.SIGKILL)
        self.procs[i].wait()

    async def ready(self, i):
        for _ in range(500):
            try:
                (await asyncio.open_connection("127.0.0.1", self.ports[i]))[1].close()
                return
            except ConnectionError:
                await asyncio.sleep(0.02)
        raise TimeoutError("a replica does not listen")

    def end(self):
        for p in self.procs:
            if p and p.poll() is None:
                p.kill()
                p.wait()


def held(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        rss = next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))
    return len(os.listdir(f"/proc/{pid}/fd")), rss


def busy(metrics):
    return sum(v for k, v in metrics.items() if k.startswith(("berth_router_active", "berth_router_waiting", "berth_router_replica_busy")))


async def killing(pack, seconds, every):
    end, kills = time.monotonic() + seconds, 0
    while time.monotonic() + every < end:
        await asyncio.sleep(every - 1 if every > 1 else every)
        pack.kill(kills % len(pack.ports))
        await asyncio.sleep(min(1, every))
        pack.start(kills % len(pack.ports))
        await pack.ready(kills % len(pack.ports))
        kills += 1
    await asyncio.sleep(max(0, end - time.monotonic()))
    return kills


async def settled(fleet, pid, fds):
    """What is left once the load is over; kept connections are closed after a few seconds."""
    for _ in range(150):
        left, now = busy(fleet.metrics()), held(pid)
        if left == 0 and now[0] <= fds:
            break
        await asyncio.sleep(0.1)
    return left, now


async def run(folder, seconds, every, n, clients):
    (router, *ports) = [s.getsockname()[1] for s in free_ports(n + 1)]
    pack, names = Pack(ports), [f"r{i}" for i in range(n)]
    try:
        for i in range(n):
            pack.start(i)
        for i in range(n):
            await pack.ready(i)
        with Fleet(folder, dict(zip(names, ports)), {"m": names}, router, slots=8) as fleet:
            pid = fleet.router()["pid"]
            fds = held(pid)[0]
            load = Load(router, clients)
            tasks = [asyncio.create_task(load.client(i)) for i in range(clients)]
            kills = await killing(pack, seconds / 3, every)
            rss = held(pid)[1]
            kills += await killing(pack, 2 * seconds / 3, every)
            load.stop = True
            await asyncio.gather(*tasks)
            left, after = await settled(fleet, pid, fds)
            again = int(fleet.router()["retries"])
            alive = fleet.router()["pid"] == pid
    finally:
        pack.end()
    for e in load.errors[:10]:
        print(e, file=sys.stderr)
    print(f"requests {load.requests}, whole {load.whole}, cut {load.cut}, errors {len(load.errors)}, kills {kills}, sent again {again}, descriptors {fds} {after[0]}, rss {rss} {after[1]} KiB, busy {left:.0f}")
    return alive and not load.errors and left == 0 and after[0] <= fds and after[1] <= rss + RSS_SLACK_KIB and kills > 0 and again > 0


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    numbers = [float(x) for x in sys.argv[1:]] + [5, 3, 16][len(sys.argv) - 2:]
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        return 0 if asyncio.run(run(folder, numbers[0], numbers[1], int(numbers[2]), int(numbers[3]))) else 1


if __name__ == "__main__":
    sys.exit(main())
