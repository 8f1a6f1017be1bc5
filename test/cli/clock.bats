#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# The wall clock jumps by a day, back and forth, at each reading: only what is shown of it may depend on it.

load common

setup_file() {
	export FAKE=$PWD/build/aids/fake_engine
	export CLOCK=$PWD/build/clock.so
}

teardown() {
	"$BERTH" down -f "$fleet" >/dev/null 2>&1 || true
	rm -rf "$scratch"
}

status_of() { "$BERTH" status --json -f "$fleet" | jq -r "$1"; }

is() { [ "$(status_of "$1")" = "$2" ]; }

@test "the whole drill passes: queues, deadlines, signs of life, slow starts, limits of keys" {
	fleet=$scratch/fleet.yaml
	cat >"$fleet" <<-EOT
		version: 1
		name: drilled
		runtimes: {own: {engine: llama.cpp, source: "path:$scratch/nowhere"}}
		models: {m: {source: "file:$scratch", weights: m.gguf}}
		services:
		  alpha: {runtime: own, model: m, port: 17770, context: 4096, slots: 2}
		  beta: {runtime: own, model: m, port: 17771, context: 4096, slots: 1}
		endpoints: {medium: {services: [alpha, beta]}}
		router: {listen: "127.0.0.1:18080", keys-file: keys}
	EOT
	run_split env LD_PRELOAD="$CLOCK" "$BERTH" drill --json -f "$fleet"
	[ "$status" -eq 0 ]
	jq -e '.failed == 0 and .passed > 25' <<<"$output"
}

@test "the supervisor stops what is idle after its time and nothing else; holds, drains and restarts as ever" {
	chmod 755 "$scratch"
	fleet=$scratch/fleet.yaml
	read -r port_a port_b port_c router_port < <(free_ports 4)
	cat >"$fleet" <<-EOT
		version: 1
		name: jumps
		runtimes: {fake: {engine: generic, source: system}}
		services:
		  a: {runtime: fake, port: $port_a, start: on-demand, idle-stop: 1h, command: ["$FAKE", --port, "{port}", --name, a]}
		  b: {runtime: fake, port: $port_b, command: ["$FAKE", --port, "{port}", --name, b]}
		router: {listen: "127.0.0.1:$router_port"}
	EOT
	LD_PRELOAD=$CLOCK "$BERTH" up -d -f "$fleet" 2>"$scratch/err" 3>&- || { cat "$scratch/err"; false; }
	ask() { curl -sS "http://127.0.0.1:$router_port/v1/chat/completions" -d "{\"model\":\"$1\",\"messages\":[]}" | jq -r .model; }
	[ "$(ask a)" = a ]
	[ "$(ask b)" = b ]
	is '.services[0].state' ready
	# an engine that dies comes back after its delay, not in a day
	kill -KILL "$(status_of '.services[1].pid')"
	wait_for 20 is '.services[1].restarts' 1
	wait_for 20 is '.services[1].state' ready
	[ "$(status_of '.uptime_ms < 600000 and .services[0].uptime_ms < 600000 and .services[1].start_ms < 600000')" = true ]
	# a is there all the time
	is '.services[0].starts' 1
	is '.services[0].state' ready
	# and goes once it is to go soon
	sed -i 's/idle-stop: 1h/idle-stop: 1s/' "$fleet"
	"$BERTH" reload -f "$fleet" 2>/dev/null
	wait_for 20 is '.services[0].state' idle
	[ "$(ask a)" = a ]
	# the clock did jump
	[ "$(sed -n 's/^time=\([^T]*\)T.*/\1/p' "$BERTH_STATE/fleets/jumps/logs/berth.log" | sort -u | wc -l)" -ge 2 ]
	"$BERTH" down -f "$fleet" 2>/dev/null
}
