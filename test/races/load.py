#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Everything that a fleet can be asked to do, at once: what a thread sanitizer is to look at.

load.py BERTH AIDS SECONDS   AIDS: the folder of fake_engine

`berth up` with a router of two loops over TLS, three replicas under its supervisor and two services on demand that never run together. For so long clients ask for short answers and streams, leave in every phase, send turns twice at the same time
and have the services on demand take turns, while a replica is killed every few seconds, the fleet file changes and is read again (SIGHUP, `berth reload`), the certificate changes, another build takes over (`berth upgrade`), requests are cancelled, and status and
metrics are read. Every answer that looks whole is right to the last byte. At the end nothing is under way and `berth down` ends all of it.

Reports of sanitizers are found where TSAN_OPTIONS and ASAN_OPTIONS send them; this program sees to that. Prints TAP.
"""
import asyncio
import glob
import json
import os
import random
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time

AIDS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "aids")
sys.path.insert(0, AIDS)
from replicas import Client, free_ports, request_bytes  # noqa: E402

CLIENTS = 12
REPLICAS = ("r0", "r1", "r2")
WANTED = ("whole", "stream", "joined", "joined at another loop", "on demand", "left", "kills", "SIGHUPs", "certificates", "upgrades", "cancelled")
MORE_S = 120  # until each of these happened, on a slow machine
ENDS_S = 60  # for an answer that waits for a replica that was killed, on a machine that does other things too
BUSY = (410, 502, 503, 504)  # 410: cancelled by its owner


class Failed(Exception):
    pass


class Fleet:
    def __init__(self, folder, berth, aids):
        self.folder = folder
        for aid in (os.path.join(AIDS, "replicas.py"), os.path.join(aids, "fake_engine")):
            shutil.copy2(aid, folder)  # engines see little else
        self.berth, self.original = os.path.join(folder, "bin", "berth"), berth
        self.file = os.path.join(folder, "fleet.yaml")
        self.env = dict(os.environ, BERTH_STATE=os.path.join(folder, "state"), BERTH_RUN=os.path.join(folder, "run"), NO_COLOR="1")
        logs = os.path.join(folder, "sanitizer")
        self.env["TSAN_OPTIONS"] = f"log_path={logs} halt_on_error=0 exitcode=0 second_deadlock_stack=1"
        self.env["ASAN_OPTIONS"] = f"log_path={logs} halt_on_error=1 detect_leaks=1"
        self.env["UBSAN_OPTIONS"] = f"log_path={logs} halt_on_error=1 print_stacktrace=1"
        self.ports = [s.getsockname()[1] for s in free_ports(7)]
        self.port, self.version, self.pair_number = self.ports[6], 0, 0
        self.install()
        self.pairs = [self.make_pair(i) for i in range(2)]
        self.pair()
        self.write()

    def install(self):
        """A file of its own in the place of the program, as an installer makes it."""
        os.makedirs(os.path.dirname(self.berth), exist_ok=True)
        shutil.copy2(self.original, self.berth + ".new")
        os.rename(self.berth + ".new", self.berth)

    def make_pair(self, number):
        key, pem = (os.path.join(self.folder, f"{number}.{end}") for end in ("key", "pem"))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN=races{number}", "-keyout", key, "-out", pem],
                       check=True, capture_output=True)
        os.chmod(key, 0o600)
        return pem, key

    def pair(self):
        self.pair_number += 1
        for path, name in zip(self.pairs[self.pair_number % 2], ("pem", "key")):
            shutil.copy2(path, os.path.join(self.folder, f"router.{name}.new"))
        for name in ("pem", "key"):
            os.rename(os.path.join(self.folder, f"router.{name}.new"), os.path.join(self.folder, f"router.{name}"))

    def write(self):
        """Another version of the file: names and policies that are in force at once."""
        self.version += 1
        policy = ("adaptive", "least", "sticky", "roundrobin")[self.version % 4]
        text = "version: 1\nname: races\nruntimes: {sys: {engine: generic, source: system}}\nservices:\n"
        for name, port in zip(REPLICAS, self.ports):
            text += f'  {name}: {{runtime: sys, port: {port}, slots: 4, command: ["{sys.executable}", "{self.folder}/replicas.py", serve, "{{port}}"]}}\n'
        for name, port in zip(("d0", "d1"), self.ports[3:]):
            text += f'  {name}: {{runtime: sys, port: {port}, slots: 2, start: on-demand, command: ["{self.folder}/fake_engine", --port, "{{port}}", --name, {name}, --alone, "{self.ports[5]}", --load, "100", --work, "50"]}}\n'
        text += f"endpoints:\n  m: {{services: [{', '.join(REPLICAS)}], policy: {policy}, aliases: [v{self.version}]}}\n  d0: {{services: [d0]}}\n  d1: {{services: [d1]}}\n"
        text += f'router: {{listen: "127.0.0.1:{self.port}", loops: 2, tls: {{certificate: router.pem, key: router.key}}}}\n'
        with open(self.file + ".new", "w", encoding="utf-8") as f:
            f.write(text)
        os.rename(self.file + ".new", self.file)

    async def run(self, *words):
        p = await asyncio.create_subprocess_exec(self.berth, *words, "-f", self.file, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = await p.communicate()
        if p.returncode != 0 and b"before a response" in err:
            raise ConnectionError(err)  # another build took over in this moment
        return p.returncode, out.decode(), err.decode()

    async def status(self):
        code, out, err = await self.run("status", "--json")
        if code != 0:
            raise Failed(f"berth status: {err}")
        return json.loads(out)

    async def control(self, method, path):
        reader, writer = await asyncio.open_unix_connection(os.path.join(self.folder, "run", "races", "control.sock"))
        writer.write(f"{method} {path} HTTP/1.0\r\nHost: a\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer.partition(b"\r\n\r\n")[2].decode()

    def reports(self):
        """What sanitizers have said: the supervisor's and the commands' where their options say, the router's in its log, as it gets no environment."""
        found = []
        for path in sorted(glob.glob(os.path.join(self.folder, "sanitizer.*")) + glob.glob(os.path.join(self.folder, "state", "fleets", "races", "logs", "*.log"))):
            with open(path, encoding="utf-8", errors="replace") as f:
                text = f.read()
            at = re.search(r"^(WARNING: ThreadSanitizer|=+\s*$|==\d+==\s*ERROR|.*: runtime error: )", text, re.M)
            if at:
                found.append(os.path.basename(path) + ":\n" + text[at.start():at.start() + 6000])
        return found


class Load:
    def __init__(self, fleet):
        self.fleet, self.stop = fleet, False
        self.counts, self.wrong, self.serial = {}, [], 0
        self.tls = ssl.create_default_context()
        self.tls.check_hostname, self.tls.verify_mode = False, ssl.CERT_NONE

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    def missing(self):
        return [k for k in WANTED if not self.counts.get(k)]

    async def open(self):
        c = Client(self.fleet.port)
        c.reader, c.writer = await asyncio.open_connection("127.0.0.1", self.fleet.port, ssl=self.tls)
        return c

    async def ask(self, data):
        c = await self.open()
        try:
            return await asyncio.wait_for(c.ask(data), ENDS_S)
        finally:
            c.close()

    def judge(self, kind, a, text):
        """Whole and right, or seen to be broken, or turned away as nobody was there."""
        if a.status == 200 and a.whole and not a.error:
            self.count(kind)
            if text is not None and a.text != text:
                self.wrong.append(f"{kind}: {a.body[-200:]}, not {text[-100:]}")
        elif a.status in BUSY or not a.whole or a.error:
            self.count(f"{kind} broken")
        else:
            self.wrong.append(f"{kind}: status {a.status}, whole {a.whole}: {a.body[-200:]}")

    def name(self):
        self.serial += 1
        return f"n{self.serial}"

    async def plain(self, r):
        stream, name, n = r.random() < 0.6, self.name(), r.choice((1, 3, 10, 40))
        meta = {"id": name, "tokens": n, "first_ms": r.choice((0, 5, 50)), "token_ms": r.choice((0, 1, 5))}
        self.judge("stream" if stream else "whole", await self.ask(request_bytes("m", meta, stream, f"conversation {r.randrange(40)}")), "".join(f"{name}.{i} " for i in range(n)))

    async def leave(self, r):
        c = await self.open()
        data = request_bytes("m", {"id": self.name(), "tokens": 50, "first_ms": 20, "token_ms": 5})
        c.writer.write(data[:r.choice((20, len(data) - 5, len(data)))])
        await asyncio.sleep(r.random() * 0.2)
        c.writer.transport.abort()
        self.count("left")

    async def twice(self, r):
        """A turn of a conversation, by two clients at the same time; sometimes one of them leaves."""
        name = self.name()
        body = json.dumps({"model": "m", "stream": True, "metadata": {"id": name, "tokens": 8, "first_ms": 60, "token_ms": 2},
                           "messages": [{"role": r, "content": name} for r in ("user", "assistant", "user")]}).encode()
        data = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        asked = [asyncio.create_task(self.ask(data)) for _ in range(3)]
        await asyncio.sleep(r.random() * 0.05)
        if r.random() < 0.4:
            asked.pop(0).cancel()
        for a in await asyncio.gather(*asked):
            self.judge("joined" if a.fields.get("x-berth-decision") == "joined" else "twice", a, "".join(f"{name}.{i} " for i in range(8)))

    async def demand(self, r):
        body = json.dumps({"model": r.choice(("d0", "d1")), "messages": [{"role": "user", "content": "hello"}]}).encode()
        a = await self.ask(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        self.judge("on demand", a, "ok")

    async def client(self, number):
        r = random.Random(number)
        kinds = (self.demand,) if number < 2 else (self.plain, self.plain, self.plain, self.twice, self.leave)
        while not self.stop:
            try:
                await r.choice(kinds)(r)
            except (ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
                self.count("connection broken")  # a router that was replaced closes what has not asked yet


class Owner:
    """What is done to the fleet meanwhile."""

    def __init__(self, fleet, load):
        self.fleet, self.load = fleet, load

    async def kill(self):
        status = await self.fleet.status()
        up = [s for s in status["services"] if s["name"] in REPLICAS and s["state"] == "ready"]
        if len(up) == len(REPLICAS):
            os.kill(random.choice(up)["pid"], signal.SIGKILL)
            self.load.count("kills")

    async def reload(self):
        self.fleet.write()
        os.kill((await self.fleet.status())["pid"], signal.SIGHUP)
        self.load.count("SIGHUPs")

    async def certificate(self):
        self.fleet.pair()
        code, _, err = await self.fleet.run("reload")
        if code != 0:
            raise Failed(f"berth reload: {err}")
        self.load.count("certificates")

    async def upgrade(self):
        self.fleet.install()
        code, _, err = await self.fleet.run("upgrade")
        self.load.count("upgrades" if code == 0 else "upgrades put off")
        if code != 0 and "nothing has changed" not in err and "does not say that another one" not in err:  # a service began to start meanwhile: the log says so
            raise Failed(f"berth upgrade: {err}")

    async def look(self):
        if re.search(r'^berth_router_joins_total\{loop="other"\} [1-9]', await self.fleet.control("GET", "/metrics"), re.M):
            self.load.count("joined at another loop")
        seen = json.loads(await self.fleet.control("GET", "/requests"))
        running = [q["id"] for q in seen.get("requests", [])]  # none while one router follows another
        if running and random.random() < 0.3:
            await self.fleet.control("POST", f"/requests/{random.choice(running)}/cancel")
            self.load.count("cancelled")

    async def every(self, seconds, what):
        while not self.load.stop:
            await asyncio.sleep(seconds)
            try:
                await what()
            except (ConnectionError, FileNotFoundError, ValueError):
                self.load.count("owner turned away")  # the control socket is another process's for a moment


async def at_rest(fleet):
    """What is under way in the end, once kept connections are closed."""
    for _ in range(300):
        lines = [x for x in (await fleet.control("GET", "/metrics")).splitlines() if x.startswith(("berth_router_active", "berth_router_waiting", "berth_router_replica_busy"))]
        left = sum(float(x.rsplit(" ", 1)[1]) for x in lines)
        if lines and left == 0:
            return 0
        await asyncio.sleep(0.1)
    return lines or "no metrics"


async def play(fleet, seconds):
    code, out, err = await fleet.run("up", "-d")
    if code != 0:
        raise Failed(f"berth up: {out}{err}")
    try:
        load = Load(fleet)
        owner = Owner(fleet, load)
        clients = [asyncio.create_task(load.client(i)) for i in range(CLIENTS)]
        doing = [asyncio.create_task(owner.every(s, what)) for s, what in ((3, owner.kill), (1.3, owner.reload), (1.9, owner.certificate), (4.1, owner.upgrade), (0.3, owner.look))]
        began = time.monotonic()
        while (time.monotonic() < began + seconds or (load.missing() and time.monotonic() < began + seconds + MORE_S)) and not any(t.done() for t in clients + doing):
            await asyncio.sleep(0.2)
        load.stop = True
        await asyncio.gather(*clients, *doing)
        left = await at_rest(fleet)
    finally:
        code, _, err = await fleet.run("down")
    return load, left, code, err


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    berth, aids, seconds = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), float(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        fleet = Fleet(folder, berth, aids)
        load, failed = None, None
        try:
            load, left, code, err = asyncio.run(play(fleet, seconds))
        except Exception as e:  # pylint: disable=broad-except
            failed = e
        reports = fleet.reports()
        results = [(failed is None, f"everything at once for {seconds:.0f} s", failed and f"{type(failed).__name__}: {failed}")]
        if load:
            results += [
                (not load.wrong, "every answer is right, or seen to be broken", "\n".join(load.wrong[:10])),
                (not load.missing(), "all of it happened", ", ".join(load.missing())),
                (left == 0, "nothing is left", left),
                (code == 0, "the fleet goes down", err),
            ]
            print("# " + ", ".join(f"{k} {n}" for k, n in sorted(load.counts.items())))
        results.append((not reports, "no sanitizer has anything to report", "\n".join(reports[:3])))
        for i, (good, what, why) in enumerate(results):
            print(f"{'ok' if good else 'not ok'} {i + 1} - {what}")
            if not good:
                print("\n".join("# " + line for line in str(why).splitlines()))
        if failed or reports:
            keep = os.path.join("build", "races")
            shutil.rmtree(keep, ignore_errors=True)
            shutil.copytree(folder, keep, ignore=lambda d, names: [n for n in names if n in ("bin", "run") or n.endswith(".sock")], ignore_dangling_symlinks=True)
            print(f"# what there is to see is in {keep}")
        return 0 if all(good for good, _, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
