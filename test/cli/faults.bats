#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# Fleets whose engines misbehave as told (test/aids/fake_engine.c), and a berth that is killed.

load common

write_fleet() { # more arguments of the engine
	fleet=$scratch/fleet.yaml
	aids=$(cd "$(dirname "$BERTH")/aids" && pwd)
	cat >"$fleet" <<-EOT
		version: 1
		name: faults
		runtimes: {sys: {engine: generic, source: system}}
		services:
		  a: {runtime: sys, port: $port, command: [$aids/fake_engine, --port, "{port}", --name, a$1], identity: /v1/models}
		router: {listen: "127.0.0.1:0"}
	EOT
}

setup_file() {
	# a port that nobody has, for all tests of this file, below those that the kernel gives to connections
	port=$(free_ports 1)
	export port
}

# Waits, at most 5 s, until no process has a word in its command line.
gone() {
	for _ in $(seq 100); do
		pgrep -f -- "$1" >/dev/null || return 0
		sleep 0.05
	done
	pgrep -af -- "$1"
	return 1
}

teardown() {
	for pid in $(pgrep -f -- "fake_engine --port $port"); do
		kill -9 "$pid" || true
	done
	rm -rf "$scratch"
}

@test "berth killed at any moment of a start leaves no engine and no folder" {
	write_fleet ""
	"$BERTH" runtime add -f "$fleet" 2>/dev/null
	for ms in 010 025 040 050 055 060 065 070 075 080 090 100 120 150; do
		"$BERTH" up -f "$fleet" >/dev/null 2>&1 3>&- &
		pid=$!
		sleep "0.$ms"
		kill -9 "$pid" || true # it may have ended by itself: what the one before left is still going away
		wait "$pid" || true
		gone "fake_engine --port $port"
	done
	mkdir "$BERTH_RUN/trial-killed"
	: >"$BERTH_RUN/faults/.berth-0123456789abcdef"
	"$BERTH" up -d -f "$fleet" 3>&-
	"$BERTH" down -f "$fleet"
	[ "$(ls "$BERTH_RUN")" = faults ]
	[ "$(ls -A "$BERTH_RUN/faults")" = lock ]
}

@test "an install that is interrupted leaves nothing, and the signal is what it ended of" {
	mkdir -p "$scratch/build/bin" "$BERTH_STATE"
	printf '#!/bin/sh\nsleep 60.%s\n' "$$" >"$scratch/build/bin/llama-server"
	chmod 755 "$scratch/build/bin/llama-server"
	for signal in INT TERM; do
		# a background job of a shell ignores SIGINT; it must not
		env --default-signal=INT "$BERTH" runtime add "path:$scratch/build" >"$scratch/out" 2>&1 3>&- &
		pid=$!
		for _ in $(seq 100); do
			pgrep -f "^sleep 60.$$" >/dev/null && break
			sleep 0.05
		done
		kill -"$signal" "$pid"
		wait "$pid" && status=0 || status=$?
		[ "$status" -eq $((128 + $(kill -l "$signal"))) ]
		[ -z "$(ls -A "$BERTH_STATE/store/runtimes")" ]
		[ -z "$(ls -A "$BERTH_RUN")" ]
		gone "^sleep 60.$$"
	done
}
