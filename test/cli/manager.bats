#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# berth as a service of systemd, without systemd: sockets that it is passed, notices that it gives.

load common

# Waits, at most 10 s, until a file has a line that matches.
wait_for() { # FILE PATTERN
	for _ in $(seq 500); do
		! grep -qE "$2" "$1" 2>/dev/null || return 0
		sleep 0.02
	done
	cat "$1"
	return 1
}

write_fleet() {
	fleet=$scratch/fleet.yaml
	aids=$(cd "$(dirname "$BERTH")/aids" && pwd)
	port=$(free_ports 1)
	cat >"$fleet" <<-EOT
		version: 1
		name: managed
		runtimes: {sys: {engine: generic, source: system}}
		services:
		  a: {runtime: sys, port: $port, command: [$aids/fake_engine, --port, "{port}", --name, a], identity: /v1/models}
		router: {listen: "127.0.0.1:1"}
	EOT
}

# Starts what hears the notices, at $NOTIFY_SOCKET.
hear() { # PATH
	: >"$scratch/notices"
	python3 test/aids/notified.py "$1" >"$scratch/notices" 3>&- &
	heard=$!
	export NOTIFY_SOCKET=$1
	wait_for "$scratch/notices" '^bound$'
}

teardown() {
	for pid in ${berth:-} ${heard:-}; do
		kill "$pid" && wait "$pid" || true
	done
	rm -rf "$scratch"
}

@test "a passed socket is served, whatever the fleet file says, and notices are given on the way" {
	write_fleet
	hear "$scratch/notify"
	: >"$scratch/out"
	WATCHDOG_USEC=100000 python3 test/aids/passed.py "$BERTH" up -f "$fleet" >"$scratch/out" 2>&1 3>&- &
	berth=$!
	wait_for "$scratch/notices" '^READY=1 STATUS=serving, 1 of 1 services ready$'
	wait_for "$scratch/notices" '^WATCHDOG=1$'
	at=$(head -1 "$scratch/out")
	grep -q "^router     http://127.0.0.1:$at\$" "$scratch/out"
	[ "$(curl -sS "http://127.0.0.1:$at/v1/models" | jq -r '.data[0].id')" = a ]
	kill -TERM "$berth"
	wait "$berth"
	berth=
	wait_for "$scratch/notices" '^STOPPING=1 STATUS=stopping, 1 of 1 services ready$'
	grep -q '^STATUS=starting, 0 of 1 services ready$' "$scratch/notices"
}

@test "berth route: a passed socket, and an abstract address for notices" {
	write_fleet
	hear "@berth-$$-$BATS_TEST_NUMBER"
	: >"$scratch/out"
	python3 test/aids/passed.py "$BERTH" route -f "$fleet" >"$scratch/out" 2>"$scratch/err" 3>&- &
	berth=$!
	wait_for "$scratch/notices" '^READY=1 STATUS=serving$'
	at=$(head -1 "$scratch/out")
	[ "$(curl -sS "http://127.0.0.1:$at/v1/models" | jq -r '.data[0].id')" = a ]
	grep -q "^router  http://127.0.0.1:$at\$" "$scratch/err"
}

@test "a descriptor that is no listening socket is refused" {
	write_fleet
	# shellcheck disable=SC2016
	run bash -c 'exec 3</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec "$1" route -f "$2"' _ "$BERTH" "$fleet"
	[ "$status" -eq 1 ]
	[ "$output" = "berth route: descriptor 3, passed by the service manager, is no listening socket; use ListenStream= with Accept=no" ]
}
