#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Opens a page in headless Chromium and plays its user, over a pipe: no port is opened.

browser.py [--size=WxH] [--dark] URL STEP...

Steps, in order: wait=EXPRESSION (until it is true), eval=EXPRESSION (prints its value as JSON), click=SELECTOR, shot=FILE (PNG of the page), size=WxH. What the page logs and what its policy
refuses is printed at the end as "console: ..."; exit 1 when something did not come.
"""
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

LIMIT_S = 30


class Browser:
    def __init__(self):
        self.profile = tempfile.mkdtemp()
        to_read, self.to = os.pipe()
        self.back, back_write = os.pipe()

        def wire():
            a, b = os.dup(to_read), os.dup(back_write)
            os.dup2(a, 3)
            os.dup2(b, 4)

        exe = shutil.which("chromium") or shutil.which("chromium-browser") or sys.exit("browser.py: chromium is not here")
        self.process = subprocess.Popen([exe, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage", "--remote-debugging-pipe",
                                         "--user-data-dir=" + self.profile, "about:blank"], preexec_fn=wire, close_fds=False,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(back_write)
        self.pending, self.n, self.session, self.said = b"", 0, None, []

    def message(self):
        while b"\0" not in self.pending:
            data = os.read(self.back, 1 << 20)
            if not data:
                sys.exit("browser.py: the browser ended")
            self.pending += data
        text, self.pending = self.pending.split(b"\0", 1)
        m = json.loads(text)
        if m.get("method") == "Log.entryAdded":
            self.said.append(m["params"]["entry"]["text"])
        elif m.get("method") == "Runtime.exceptionThrown":
            self.said.append(json.dumps(m["params"]["exceptionDetails"])[:600])
        return m

    def call(self, method, **params):
        self.n += 1
        m = {"id": self.n, "method": method, "params": params}
        if self.session:
            m["sessionId"] = self.session
        os.write(self.to, json.dumps(m).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == self.n:
                if "error" in answer:
                    sys.exit(f"browser.py: {method}: {answer['error']}")
                return answer["result"]

    def open(self, size, dark, url):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")
        self.size(size)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url=url)

    def size(self, size):
        w, h = map(int, size.split("x"))
        self.call("Emulation.setDeviceMetricsOverride", width=w, height=h, deviceScaleFactor=1, mobile=w < 600)

    def eval(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r:
            sys.exit(f"browser.py: {expression}: {r['exceptionDetails'].get('exception', {}).get('description')}")
        return r["result"].get("value")

    def wait(self, expression):
        until = time.monotonic() + LIMIT_S
        while not self.eval(expression):
            if time.monotonic() > until:
                print(self.eval("document.body ? document.body.innerText : ''"))
                sys.exit(f"browser.py: this did not come: {expression}")
            time.sleep(0.05)

    def step(self, what, value):
        if what == "wait":
            self.wait(value)
        elif what == "eval":
            print(json.dumps(self.eval(value)))
        elif what == "click":
            self.eval(f"document.querySelector({json.dumps(value)}).click()")
        elif what == "shot":
            data = self.call("Page.captureScreenshot", format="png")["data"]
            with open(value, "wb") as f:
                f.write(base64.b64decode(data))
        elif what == "size":
            self.size(value)
        else:
            sys.exit(f"browser.py: step '{what}' is not known")

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)


def main():
    size, dark, args = "1280x900", False, sys.argv[1:]
    while args[0].startswith("--"):
        option = args.pop(0)
        dark = dark or option == "--dark"
        size = option[7:] if option.startswith("--size=") else size
    b = Browser()
    try:
        b.open(size, dark, args[0])
        for step in args[1:]:
            b.step(*step.split("=", 1))
        for text in b.said:
            print("console: " + text)
    finally:
        b.close()


main()
