#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# berth top and route explain, with engines that answer as they are told.

load common

setup() {
	BERTH=${BERTH:-$PWD/build/berth}
	scratch=$(mktemp -d)
	export BERTH_STATE=$scratch/state BERTH_RUN=$scratch/run NO_COLOR=1
	unset XDG_RUNTIME_DIR
	fleet=$scratch/fleet.yaml
	chmod 755 "$scratch"
	cp test/aids/mock_engine.py "$scratch/engine"
	read -r port_a port_b port < <(free_ports 3)
	cat >"$fleet" <<-EOT
		version: 1
		name: seen
		runtimes:
		  mock: {engine: generic, source: system}
		services:
		  alpha: {runtime: mock, port: $port_a, identity: /v1/models, command: [python3, "$scratch/engine", "{port}", alpha]}
		  beta: {runtime: mock, port: $port_b, identity: /v1/models, command: [python3, "$scratch/engine", "{port}", beta]}
		endpoints:
		  medium: {services: [alpha, beta]}
		router: {listen: "127.0.0.1:$port"}
	EOT
	asked=()
}

teardown() {
	[ ${#asked[@]} -eq 0 ] || kill "${asked[@]}" 2>/dev/null || true
	timeout 60 "$BERTH" down -f "$fleet" >/dev/null 2>&1 || true
	rm -rf "$scratch"
}

up() {
	run_split "$BERTH" up -d -f "$fleet" 3>&-
	[ "$status" -eq 0 ] || { echo "$errors"; return 1; }
}

ask() { # ask OUT: a stream without end, in the background
	curl -sN "http://127.0.0.1:$port/v1/chat/completions" -H 'Content-Type: application/json' -o "$1" \
		-d '{"model":"medium","stream":true,"tokens":100000,"messages":[{"role":"user","content":"hello"}]}' 3>&- &
	asked+=($!)
	until grep -q w0 "$1" 2>/dev/null; do sleep 0.02; done
}

@test "a fleet that is down: says so, exit 1" {
	run_split "$BERTH" top -f "$fleet"
	[ "$status" -eq 1 ]
	[ "$errors" = "berth top: fleet 'seen' is not up; 'berth up' brings it up" ]
	run_split "$BERTH" route explain 1 -f "$fleet"
	[ "$status" -eq 1 ]
	[ "$errors" = "berth route: fleet 'seen' is not up; 'berth up' brings it up" ]
	run_split "$BERTH" route explain x -f "$fleet"
	[ "$status" -eq 2 ]
	run_split "$BERTH" route explain -f "$fleet"
	[ "$status" -eq 2 ]
	run_split "$BERTH" route what -f "$fleet"
	[ "$status" -eq 2 ]
}

@test "where there is no terminal: one table; --json" {
	up
	ask "$scratch/one"
	run_split "$BERTH" top -f "$fleet"
	[ "$status" -eq 0 ]
	[[ ${output%%$'\n'*} == "seen  up"*"1 under way, 0 waiting, 0 served"* ]]
	[[ $output == *REPLICA*STATE*SLOTS*alpha*ready*beta*ready*REQUEST*medium*alpha*decode* ]]
	run_split "$BERTH" top --json -f "$fleet"
	jq -e '.status.fleet == "seen" and (.router.requests | length) == 1 and .router.requests[0].phase == "decode" and .router.requests[0].tokens > 0
		and (.router.replicas | map(.name)) == ["alpha", "beta"]' <<<"$output"
	run_split "$BERTH" route explain 1 -f "$fleet"
	[[ $output == "request       1, POST /v1/chat/completions for medium"*"under way     decode"*"chosen    alpha (cold)"* ]]
	run_split "$BERTH" route explain 1 --json -f "$fleet"
	jq -e '.candidates[0].chosen and .candidates[1].replica == "beta"' <<<"$output"
	run_split "$BERTH" route explain 2 -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $errors == *"remembers no request 2"* ]]
	curl -sS -o /dev/null "http://127.0.0.1:$port/v1/chat/completions" -d '{"model":"nobody"}'
	sed -i 's/^router:/routers:/' "$fleet" # what runs is asked, not the file
	run_split "$BERTH" route explain 2 -f "$fleet"
	[[ $output == "request       2, POST /v1/chat/completions"$'\n'"ended         error, status 404, "*$'\n\n'"no replica had it: the router itself answered" ]]
	run_split "$BERTH" top --once -f "$fleet"
	[[ ${output%%$'\n'*} == "seen  up"* ]]
}

@test "the live view: a request is selected, explained and cancelled; q ends it" {
	up
	ask "$scratch/one"
	curl -sS -o /dev/null "http://127.0.0.1:$port/v1/chat/completions" -d '{"model":"nobody"}'
	run test/aids/terminal.py 100 30 'wait=error 404' 'wait=decode' 'keys=\x1b[B' 'wait=7m' 'keys=\r' 'wait=chosen    alpha' 'keys=\x1b' 'wait=explain' 'keys=x' 'wait=request 1 was cancelled' 'wait=cancelled' keys=q -- \
		"$BERTH" top -f "$fleet"
	[ "$status" -eq 0 ]
	[[ $output == *$'ended: exit 0\nterminal: cooked, cursor on, screen main' ]]
	wait "${asked[0]}" || true
	asked=()
	grep -q 'cancelled by the operator' "$scratch/one"
	"$BERTH" top --json -f "$fleet" | jq -e '.router.recent[0].outcome == "cancelled"'
}

@test "whatever ends the live view, the terminal is as it was" {
	up
	for s in INT TERM HUP QUIT; do
		run test/aids/terminal.py 80 24 'wait=REPLICA' "signal=$s" -- "$BERTH" top -f "$fleet"
		[ "$status" -eq 0 ]
		[[ $output == *$"ended: signal $s"$'\nterminal: cooked, cursor on, screen main' ]]
	done
	run test/aids/terminal.py 80 24 'wait=REPLICA' 'keys=\x03' -- "$BERTH" top -f "$fleet"
	[[ $output == *$'ended: signal INT\nterminal: cooked, cursor on, screen main' ]]
}

@test "the live view follows the terminal's size, down to nothing" {
	up
	run test/aids/terminal.py 100 30 'wait=GENERATED' size=30x10 'wait=10;1H' size=3x2 'wait=2;1H' size=200x50 'wait=GENERATED' 'wait=50;1H' keys=q -- "$BERTH" top -f "$fleet"
	[ "$status" -eq 0 ]
	[[ $output == *"ended: exit 0"* ]]
}

@test "the metrics are as Prometheus wants them, and complete after a request" {
	command -v promtool >/dev/null || skip "promtool is not here"
	up
	for i in 1 2; do
		curl -sN "http://127.0.0.1:$port/v1/chat/completions" -o "$scratch/out" -d '{"model":"medium","stream":true,"messages":[{"role":"user","content":"hello"}]}'
	done
	curl -s --unix-socket "$BERTH_RUN/seen/control.sock" http://berth/metrics >"$scratch/metrics"
	promtool check metrics <"$scratch/metrics"
	for f in queue first_byte inter_token duration regret; do
		grep -q "^berth_router_${f}_seconds_bucket{endpoint=\"medium\",replica=\"alpha\",le=\"+Inf\"} [1-9]" "$scratch/metrics"
	done
	grep -q '^berth_router_tokens_total{endpoint="medium",replica="alpha",kind="cached"} 60$' "$scratch/metrics"
	grep -q '^berth_router_decisions_total{endpoint="medium",replica="alpha",decision="affine"} 1$' "$scratch/metrics"
}
