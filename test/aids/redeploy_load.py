#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Asks a router without a pause, plainly and as streams, until a file appears, and counts what clients did not get.

redeploy_load.py HOST:PORT MODEL KEY STOP_FILE

Four clients ask plainly, four read streams of some hundred events. The last line is "N answered, M streams whole, F failed, C cut, by replica {...}"; exit 1 when any failed or was cut, or nothing was asked.
"""
import http.client
import json
import os
import sys
import threading

TIMEOUT_S = 120


class Load:
    def __init__(self, address, model, key, stop):
        self.host, port = address.rsplit(":", 1)
        self.port, self.model, self.stop = int(port), model, stop
        self.fields = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        self.lock = threading.Lock()
        self.answered = self.whole = 0
        self.failed, self.cut = [], []
        self.replicas = {}

    def ask(self, stream, number):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        body = {"model": self.model, "max_tokens": 400 if stream else 16, "stream": stream, "messages": [{"role": "user", "content": f"Tell me a story. {number}"}]}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), self.fields)
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {answer.read()[:200]!r}")
        with self.lock:
            replica = answer.getheader("X-Berth-Replica", "?")
            self.replicas[replica] = self.replicas.get(replica, 0) + 1
        text = answer.read()
        connection.close()
        if not stream:
            json.loads(text)["choices"][0]["message"]
        elif not text.rstrip().endswith(b"data: [DONE]") or b'"finish_reason":"' not in text or b'"error"' in text:
            return False
        return True

    def work(self, stream, client):
        number = 0
        while not os.path.exists(self.stop):
            number += 1
            try:
                whole = self.ask(stream, f"{client}.{number}")
            except Exception as error:  # whatever it is, it is a question without an answer
                with self.lock:
                    self.failed.append(repr(error))
                continue
            with self.lock:
                if not whole:
                    self.cut.append(f"stream {client}.{number}")
                elif stream:
                    self.whole += 1
                else:
                    self.answered += 1


def main():
    load = Load(*sys.argv[1:5])
    threads = [threading.Thread(target=load.work, args=(client % 2 == 1, client)) for client in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for what in (load.failed + load.cut)[:10]:
        print(what)
    print(f"{load.answered} answered, {load.whole} streams whole, {len(load.failed)} failed, {len(load.cut)} cut, by replica {json.dumps(load.replicas, sort_keys=True)}")
    return 1 if load.failed or load.cut or not load.answered or not load.whole else 0


if __name__ == "__main__":
    sys.exit(main())
