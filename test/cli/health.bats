#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# Health of services that berth did not start: who answers, who serves another model, who comes back, where their hosts are.

load common
load life

teardown() {
	rm -f "$scratch/hold"
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

@test "a host's name that hangs holds nothing up; one that is not known is told; of two addresses the one that answers is used" {
	engine=()
	ports 2
	outside "${port[0]}" a
	outside "${port[1]}" b
	write_fleet "a: {host: here, runtime: sys, port: ${port[0]}, command: ['true']}" "s: {host: slow, runtime: sys, port: ${port[1]}, command: ['true']}" \
		"t: {host: two, runtime: sys, port: ${port[0]}, command: ['true']}" "n: {host: nobody, runtime: sys, port: ${port[0]}, command: ['true']}"
	sed -i '1a hosts: {here: {}, slow: {ssh: op@slow.invalid}, two: {ssh: op@two.invalid}, nobody: {ssh: op@nobody.invalid}}' "$fleet"
	touch "$scratch/hold"
	: >"$scratch/err"
	NAMES_HOLD=$scratch/hold LD_PRELOAD=$aids/../names.so "$BERTH" route -f "$fleet" >/dev/null 2>"$scratch/err" 3>&- &
	up_pid=$!
	wait_status .state up
	url=$(status_of .router.url)
	# who waits for the name of its host waits; streams of others begin and end meanwhile
	curl -sS "$url/v1/chat/completions" -d '{"model":"s","stream":true}' >"$scratch/waits" 3>&- &
	waits=$!
	for _ in 1 2 3; do
		stream a
		wait "$stream_pid"
		grep -q DONE "$scratch/stream"
	done
	[ "$(status_of "$(state s)")" = "no answer" ]
	[[ $("$BERTH" status -f "$fleet") == *"s: "*"the name of its host is being looked up"* ]]
	[ ! -s "$scratch/waits" ]
	rm "$scratch/hold"
	wait "$waits"
	grep -q DONE "$scratch/waits"
	wait_status "$(state s)" ready
	# the other address
	wait_status "$(state t)" ready
	curl -sS "$url/v1/chat/completions" -d '{"model":"t","stream":true}' | grep -q DONE
	# no address
	wait_status "$(state n)" "no answer"
	[[ $("$BERTH" status -f "$fleet") == *"n: "*"host 'nobody.invalid' is not known: Name or service not known"* ]]
	[ "$(curl -sS "$url/v1/chat/completions" -d '{"model":"n"}' | jq -r .error.message)" = "no replica of 'n' is ready: host 'nobody.invalid' is not known: Name or service not known" ]
	# a reload forgets nothing
	touch "$scratch/hold"
	"$BERTH" reload -f "$fleet"
	curl -sS "$url/v1/chat/completions" -d '{"model":"s","stream":true}' | grep -q DONE
	"$BERTH" down -f "$fleet"
	# an end waits for no name
	NAMES_HOLD=$scratch/hold LD_PRELOAD=$aids/../names.so "$BERTH" route -f "$fleet" >/dev/null 2>>"$scratch/err" 3>&- &
	up_pid=$!
	wait_status .state up
	kill "$up_pid"
	wait "$up_pid"
	[ -e "$scratch/hold" ]
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
