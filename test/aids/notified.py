#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
#
# The service manager's end of NOTIFY_SOCKET: one line on standard output for each notice, its lines joined by blanks. Ends when killed.
#
#   notified.py PATH        PATH beginning with '@': abstract
import socket
import sys

path = sys.argv[1]
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind("\0" + path[1:] if path[0] == "@" else path)
print("bound", flush=True)
while True:
    print(s.recv(4096).decode().replace("\n", " "), flush=True)
