#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What perf/router measures with: conversations with real engines.

router_load.py turns ADDRESS MODEL [header] [kill PID]   16 closed-loop clients without think time, 6 turns, one scaffold of 800 tokens, 200 more each turn, 8 tokens of answer; with `kill` an engine is killed after half of the answers:
                                                        "PROMPT_TOKENS CACHED_% MEAN_S LONGEST_CLIENT/MEAN LONGEST_ANSWER/MEAN BUSIER/MEAN FAILED"
router_load.py adversary ADDRESS MODEL                   64 conversations of one turn behind one scaffold of 1,600 tokens, four at a time: the same line
"""
import http.client
import json
import os
import random
import signal
import statistics
import sys
import threading
import time

WORDS = "river stone cloud tree lamp paper north seven quiet copper slow garden".split()
WORD_TOKENS = 5.75  # a word and its space, of the tiny model, which has a token for each byte
MAX_TOKENS = 8


def words(seed, tokens):
    r = random.Random(seed)
    return " ".join(r.choice(WORDS) for _ in range(round(tokens / WORD_TOKENS)))


class Load:
    """Closed loop without think time: each client asks its next turn as soon as it has the answer to the last."""

    def __init__(self, address, model, clients, conversations, turns, scaffold, header=False, kill=0):
        self.address, self.model, self.turns, self.header, self.kill = address, model, turns, header, kill
        self.clients, self.conversations = clients, conversations
        self.scaffold = words("scaffold", scaffold)
        self.lock = threading.Lock()
        self.next = self.prompt = self.cached = self.failed = self.answers = 0
        self.replicas, self.waits, self.seconds = {}, [], []

    def take(self):
        with self.lock:
            self.next += 1
            return self.next - 1 if self.next <= self.conversations else None

    def count(self, response, answer, waited):
        with self.lock:
            self.waits.append(waited)
            self.answers += 1
            if self.kill and self.answers == self.conversations * self.turns // 2:
                os.kill(self.kill, signal.SIGKILL)
            if response.status != 200:
                self.failed += 1
                print(response.status, answer, file=sys.stderr)
                return False
            self.prompt += answer["timings"]["prompt_n"] + answer["timings"]["cache_n"]
            self.cached += answer["timings"]["cache_n"]
            name = response.getheader("X-Berth-Replica", "?")
            self.replicas[name] = self.replicas.get(name, 0) + 1
            return True

    def converse(self, connection, number):
        messages = [{"role": "system", "content": self.scaffold}]
        headers = {"Content-Type": "application/json"}
        if self.header:
            headers["X-Session-Id"] = f"conversation-{number}"
        for turn in range(self.turns):
            # what is new in a prompt: the last answer, this question, and the template's marks
            messages.append({"role": "user", "content": words(f"{number} {turn}", 200 - (MAX_TOKENS + 20 if turn else 20))})
            sent = time.monotonic()
            connection.request("POST", "/v1/chat/completions", json.dumps({"model": self.model, "max_tokens": MAX_TOKENS, "temperature": 0, "messages": messages}), headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
            if self.count(response, answer, time.monotonic() - sent):
                messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})

    def client(self):
        connection, began = http.client.HTTPConnection(self.address, timeout=300), time.monotonic()
        while (number := self.take()) is not None:
            self.converse(connection, number)
        with self.lock:
            self.seconds.append(time.monotonic() - began)

    def run(self):
        threads = [threading.Thread(target=self.client) for _ in range(self.clients)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        mean, wait = statistics.mean(self.seconds), statistics.mean(self.waits)
        load = max(self.replicas.values()) * len(self.replicas) / sum(self.replicas.values())
        print(f"{self.prompt} {100 * self.cached / self.prompt:.1f} {mean:.2f} {max(self.seconds) / mean:.2f} {max(self.waits) / wait:.2f} {load:.2f} {self.failed}")


def main(what, address, model, *args):
    if what == "turns":
        Load(address, model, 16, 16, 6, 800, "header" in args, int(args[args.index("kill") + 1]) if "kill" in args else 0).run()
    elif what == "adversary":
        Load(address, model, 4, 64, 1, 1600).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
