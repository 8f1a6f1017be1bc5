# shellcheck shell=bash
# SPDX-License-Identifier: MIT

# free_ports N: ports that nobody listens at, below those that the kernel gives to connections.
free_ports() {
	python3 -c '
import random, socket, sys
s = []
while len(s) < int(sys.argv[1]):
    x = socket.socket()
    try:
        x.bind(("127.0.0.1", random.randrange(20000, 32000)))
        s.append(x)
    except OSError:
        x.close()
ports = [x.getsockname()[1] for x in s]
for x in s:
    x.close() # before they are told: who reads them binds them
print(*ports)' "$1"
}
