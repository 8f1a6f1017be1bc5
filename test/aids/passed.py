#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
#
# Runs a command as systemd does with socket activation: a listening socket as descriptor 3, told by LISTEN_FDS and LISTEN_PID, which the shell
# cannot know. Prints the port first.
#
#   passed.py COMMAND...
import os
import socket
import sys

s = socket.socket()
s.bind(("127.0.0.1", 0))
s.listen(16)
print(s.getsockname()[1], flush=True)
os.dup2(s.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()), LISTEN_FDNAMES="berth.socket")
os.execvp(sys.argv[1], sys.argv[1:])
