#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# Health of services that berth did not start: who answers, who serves another model, who comes back.

load common
load life

teardown() {
	for pid in "${engine[@]}"; do
		kill "$pid" 2>/dev/null || true
	done
	end_life
	rm -rf "$scratch"
}

# Starts an engine that nobody supervises.
outside() { # PORT NAME
	"$aids/fake_engine" --port "$1" --name "$2" >>"$scratch/engines" 2>&1 3>&- &
	engine+=($!)
}

state() { # SERVICE
	echo ".services[] | select(.name == \"$1\") | .state"
}

@test "health and identity of what others run decide where requests go" {
	engine=()
	ports 3
	outside "${port[0]}" a
	outside "${port[1]}" wrong
	write_fleet "a: {runtime: sys, port: ${port[0]}, identity: /v1/models, command: ['true']}" "b: {runtime: sys, port: ${port[1]}, identity: /v1/models, command: ['true']}" \
		"c: {runtime: sys, port: ${port[2]}, command: ['true']}" "endpoints: {all: {services: [a, b, c], policy: roundrobin}, b: {services: [b]}}"
	: >"$scratch/err"
	"$BERTH" route -f "$fleet" >/dev/null 2>"$scratch/err" 3>&- &
	up_pid=$!
	wait_status .state up
	url=$(status_of .router.url)
	wait_status "$(state a)" ready
	wait_status "$(state b)" "another model"
	wait_status "$(state c)" "no answer"
	[[ $("$BERTH" status -f "$fleet") == *"b: "*"wrong"* ]]
	# nobody is sent to the other model
	for _ in 1 2 3 4; do
		curl -sS "$url/v1/chat/completions" -d '{"model":"all","stream":true}' | grep -qE 'a-?2'
	done
	[ "$(curl -sS -o /dev/null -w '%{http_code}' "$url/v1/chat/completions" -d '{"model":"b"}')" = 503 ]
	# what goes is seen, what comes back too
	kill "${engine[0]}"
	wait "${engine[0]}" || true
	wait_status "$(state a)" "no answer"
	outside "${port[0]}" a
	wait_status "$(state a)" ready
	curl -sS "$url/v1/chat/completions" -d '{"model":"all","stream":true}' | grep -qE 'a-?2'
	grep -q "service 'a': answers again" "$scratch/err"
}

@test "a log that nobody reads costs lines, not requests" {
	engine=()
	ports 1
	outside "${port[0]}" a
	write_fleet "a: {runtime: sys, port: ${port[0]}, command: ['true']}"
	mkfifo "$scratch/log"
	exec 8<>"$scratch/log"
	python3 -c 'import fcntl; fcntl.fcntl(8, 1031, 4096)' # F_SETPIPE_SZ: a few lines
	"$BERTH" route -f "$fleet" >&8 2>"$scratch/err" 3>&- &
	up_pid=$!
	wait_status .state up
	wait_status "$(state a)" ready
	url=$(status_of .router.url)
	# each round is longer than a moment, after which lines are written
	for _ in 1 2 3; do
		for _ in $(seq 20); do
			[ "$(curl -sS -o /dev/null -w '%{http_code}' "$url/v1/chat/completions" -d '{"model":"a"}')" = 200 ]
		done
		sleep 1.1
	done
	[ "$(curl -sS -o /dev/null -w '%{http_code}' "$url/v1/chat/completions" -d '{"model":"a"}')" = 200 ]
	# what is there is whole lines
	head -n 3 <&8 | jq -e '.endpoint == "a"' >/dev/null
	exec 8>&-
}
