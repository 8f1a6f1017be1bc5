#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs a program in a terminal of its own and plays its user.

terminal.py COLUMNS ROWS STEP... -- COMMAND ARG...

Steps, in order: wait=TEXT (until it has been written since the last step), keys=TEXT (Python escapes), size=COLUMNSxROWS, signal=NAME. Then the program must end. Its output goes to stdout; the last
lines are "ended: exit N" or "ended: signal NAME", and "terminal: cooked" or "raw", with "cursor on" or "off" and "screen main" or "other". Exit 1 when something did not come.
"""
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

LIMIT_S = 30


def fail(why):
    print(f"\nterminal.py: {why}")
    sys.exit(1)


class Terminal:
    def __init__(self, columns, rows, argv):
        self.master, self.slave = pty.openpty()
        self.size(columns, rows)
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)
            for fd in range(3):
                os.dup2(self.slave, fd)
            os.environ["TERM"] = "xterm-256color"
            os.execvp(argv[0], argv)
        self.all = b""
        self.since = 0

    def size(self, columns, rows):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, limit):
        ready, _, _ = select.select([self.master], [], [], limit)
        if ready:
            self.all += os.read(self.master, 65536)

    def wait(self, text):
        until = time.monotonic() + LIMIT_S
        while text not in self.all[self.since:]:
            if time.monotonic() > until:
                fail(f"{text!r} did not come; the last was {self.all[self.since:][-2000:]!r}")
            self.read(0.2)
        self.since = len(self.all)

    def end(self):
        until = time.monotonic() + LIMIT_S
        while True:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)
                fail("the program did not end")
        self.read(0.05)
        if os.WIFSIGNALED(status):
            return "signal " + signal.Signals(os.WTERMSIG(status)).name[3:]
        return f"exit {os.WEXITSTATUS(status)}"

    def state(self):
        cooked = termios.tcgetattr(self.slave)[3] & (termios.ICANON | termios.ECHO)
        on = lambda yes, no: self.all.rfind(yes) >= self.all.rfind(no)
        return "{}, cursor {}, screen {}".format("cooked" if cooked == termios.ICANON | termios.ECHO else "raw", "on" if on(b"\x1b[?25h", b"\x1b[?25l") else "off",
                                                 "main" if on(b"\x1b[?1049l", b"\x1b[?1049h") else "other")


def main():
    split = sys.argv.index("--")
    t = Terminal(int(sys.argv[1]), int(sys.argv[2]), sys.argv[split + 1:])
    for step in sys.argv[3:split]:
        what, value = step.split("=", 1)
        if what == "wait":
            t.wait(value.encode())
        elif what == "keys":
            os.write(t.master, value.encode().decode("unicode_escape").encode("latin-1"))
        elif what == "size":
            t.size(*map(int, value.split("x")))
            os.kill(t.pid, signal.SIGWINCH)
        elif what == "signal":
            os.kill(t.pid, signal.Signals["SIG" + value])
    ended = t.end()
    sys.stdout.buffer.write(t.all)
    print(f"\nended: {ended}\nterminal: {t.state()}")


main()
