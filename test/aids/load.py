#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Asks a router many non-streaming questions at once and counts the answers.

load.py HOST:PORT MODEL TOTAL CONCURRENCY [KILL_AFTER PID]

With the last two, process PID is killed with SIGKILL once KILL_AFTER answers have come. The last line is
"TOTAL asked, N answered, M failed"; exit 1 when any failed.
"""
import http.client
import json
import os
import signal
import sys
import threading

TIMEOUT_S = 60


class Load:
    def __init__(self, address, model, total, kill_after, pid):
        self.host, port = address.rsplit(":", 1)
        self.port, self.model, self.total = int(port), model, total
        self.kill_after, self.pid = kill_after, pid
        self.lock = threading.Lock()
        self.asked = self.answered = 0
        self.replicas = {}
        self.failures = []

    def next(self):
        with self.lock:
            if self.asked == self.total:
                return None
            self.asked += 1
            return self.asked

    def count(self, replica):
        with self.lock:
            self.answered += 1
            self.replicas[replica] = self.replicas.get(replica, 0) + 1
            if self.pid and self.answered == self.kill_after:
                os.kill(self.pid, signal.SIGKILL)

    def ask(self, connection, number):
        body = json.dumps({"model": self.model, "max_tokens": 12, "temperature": 0,
                           "messages": [{"role": "user", "content": f"What is a slot? {number}"}]})
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {text[:200]!r}")
        if not json.loads(text)["choices"][0]["message"]["content"]:
            raise RuntimeError("an answer without text")
        self.count(response.getheader("X-Berth-Replica", "?"))

    def work(self):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        while (number := self.next()) is not None:
            try:
                self.ask(connection, number)
            except Exception as error:  # whatever it is, it is a question without an answer
                connection.close()
                with self.lock:
                    self.failures.append(f"question {number}: {error!r}")
        connection.close()


def main():
    address, model, total, concurrency = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    kill_after, pid = (int(sys.argv[5]), int(sys.argv[6])) if len(sys.argv) > 6 else (0, 0)
    load = Load(address, model, total, kill_after, pid)
    threads = [threading.Thread(target=load.work) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for failure in load.failures[:10]:
        print(failure)
    print("by replica:", json.dumps(load.replicas, sort_keys=True))
    print(f"{load.total} asked, {load.answered} answered, {len(load.failures)} failed")
    return 1 if load.failures or load.answered != load.total else 0


if __name__ == "__main__":
    sys.exit(main())
