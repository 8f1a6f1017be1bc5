#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# Services on demand, with engines that only say that they answer. Nobody can plan what such an engine takes, so two of them never run together; --alone makes the second one die if they did.

load common

setup_file() {
	export FAKE=$PWD/build/aids/fake_engine
}

teardown() {
	"$BERTH" down -f "$fleet" >/dev/null 2>&1 || true
	rm -rf "$scratch"
}

# write_fleet OPTIONS_OF_A OPTIONS_OF_B KEYS_OF_A KEYS_OF_B [MORE]
write_fleet() {
	chmod 755 "$scratch"
	fleet=$scratch/fleet.yaml
	read -r port_a port_b alone router_port < <(free_ports 4)
	cat >"$fleet" <<-EOT
		version: 1
		name: demand
		runtimes:
		  fake: {engine: generic, source: system}
		services:
		  a: {runtime: fake, port: $port_a, start: on-demand$3, command: ["$FAKE", --port, "{port}", --name, a, --alone, "$alone"$1]}
		  b: {runtime: fake, port: $port_b, start: on-demand$4, command: ["$FAKE", --port, "{port}", --name, b, --alone, "$alone"$2]}
		${5:-}
		router: {listen: "127.0.0.1:$router_port"}
	EOT
}

bring_up() {
	timeout 60 "$BERTH" up -d -f "$fleet" >"$scratch/out" 2>"$scratch/err" 3>&- || { cat "$scratch/err"; return 1; }
}

ask() { # ask SERVICE [more curl options]
	local model=$1
	shift
	curl -sS --max-time 60 "http://127.0.0.1:$router_port/v1/chat/completions" "$@" -d "{\"model\":\"$model\",\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}"
}

stream() {
	curl -sSN --max-time 60 "http://127.0.0.1:$router_port/v1/chat/completions" -d "{\"model\":\"$1\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}"
}

state() { "$BERTH" status --json -f "$fleet" | jq -r --arg s "$1" '.services[] | select(.name == $s) | .state'; }

is_state() { [ "$(state "$1")" = "$2" ]; }

@test "nothing runs before it is asked for; two models take turns, every request is answered" {
	write_fleet ', --load, "300"' ', --load, "300"' '' ''
	bring_up
	grep -q 'a  *idle (on demand)' "$scratch/out"
	[ "$("$BERTH" status -f "$fleet" | grep -c 'idle (on demand)')" = 2 ]
	for _ in 1 2 3; do
		for s in a b; do
			[ "$(ask $s | jq -r .model)" = "$s" ]
		done
	done
	[ "$(state a)" = idle ]
	[ "$(state b)" = ready ]
	[ "$("$BERTH" status --json -f "$fleet" | jq '[.services[].starts] | add')" = 6 ]
}

@test "many requests share one load; a running stream is not ended for another model" {
	write_fleet ', --load, "300", --work, "2000"' '' '' ''
	bring_up
	stream a >"$scratch/stream" &
	for i in 1 2 3 4 5 6; do
		ask a -o "$scratch/answer-$i" &
	done
	wait_for 20 is_state a ready
	[ "$(ask b | jq -r .model)" = b ]
	wait
	[ "$(grep -c 'data: {"choices":\[{"index":0,"finish_reason":null' "$scratch/stream")" = 10 ]
	grep -q '^data: \[DONE\]' "$scratch/stream"
	[ "$(cat "$scratch"/answer-* | jq -r .model | sort | uniq -c | tr -s ' ')" = " 6 a" ]
	[ "$("$BERTH" status --json -f "$fleet" | jq -c '[.services[].starts]')" = "[1,1]" ]
}

@test "a load that fails is told to who waits, in its API's form, and tried again later" {
	touch "$scratch/broken"
	write_fleet ', --exit, "5", --flag-file, "'"$scratch"'/broken"' '' '' ''
	bring_up
	run ask a -w '\n%{http_code}'
	[ "${lines[1]}" = 503 ]
	[[ $(jq -r .error.message <<<"${lines[0]}") == "no replica of 'a' is ready: the engine ended while loading (exit 5)"* ]]
	message=$(curl -sS --max-time 20 "http://127.0.0.1:$router_port/v1/messages" -d '{"model":"a","max_tokens":1,"messages":[]}')
	[ "$(jq -r '.type + " " + .error.type' <<<"$message")" = "error overloaded_error" ]
	[ "$(ask b | jq -r .model)" = b ] # another is not held up
	rm "$scratch/broken"
	wait_for 30 answers_a
}

answers_a() { [ "$(ask a | jq -r .model)" = a ]; }

@test "idle ones are stopped, pinned ones stay, preloads are there at once" {
	write_fleet '' '' ', idle-stop: 1s, preload: true' ', pin: true'
	bring_up
	wait_for 20 is_state a ready
	wait_for 20 is_state a idle
	[ "$(ask b | jq -r .model)" = b ]
	run ask a -w '\n%{http_code}'
	[ "${lines[1]}" = 503 ]
	[[ ${lines[0]} == *"does not fit into this machine's memory beside what must stay up"* ]]
	[ "$(state b)" = ready ]
	# a restart of all leaves the idle one alone
	"$BERTH" restart -f "$fleet"
	[ "$(state a)" = idle ]
	run_split "$BERTH" restart -f "$fleet" a
	[ "$status" -eq 0 ]
	[ "$errors" = "a: idle; the next request for it starts it" ]
	# what a reload mends is tried at once
	[ "$(ask a -o "$scratch/refused" -w '%{http_code}')" = 503 ]
	sed -i 's/, pin: true//' "$fleet"
	"$BERTH" reload -f "$fleet"
	[ "$(ask a | jq -r .model)" = a ]
}

@test "a client that waits for a load hears of it, and one that leaves takes nothing along" {
	write_fleet ', --load, "10000"' '' '' ''
	bring_up
	curl -sSN --max-time 1 "http://127.0.0.1:$router_port/v1/chat/completions" -d '{"model":"a","stream":true,"messages":[]}' || true
	stream a >"$scratch/stream"
	grep -q '^: keep-alive' "$scratch/stream"
	grep -q '^data: \[DONE\]' "$scratch/stream"
	[ "$("$BERTH" status --json -f "$fleet" | jq '.services[0].starts')" = 1 ]
}

waiting() { [ "$(curl -sS --max-time 10 --unix-socket "$BERTH_RUN/demand/control.sock" http://berth/metrics | sed -n 's/^berth_router_waiting //p')" = "$1" ]; }

@test "a stop does not wait for a load: who waits is told in its API's form" {
	write_fleet ', --load, "3600000"' '' '' ''
	bring_up
	ask a -D "$scratch/head" >"$scratch/answer" &
	curl -sSN --max-time 60 "http://127.0.0.1:$router_port/v1/messages" -d '{"model":"a","max_tokens":1,"stream":true,"messages":[]}' >"$scratch/stream" 2>/dev/null &
	wait_for 20 waiting 2
	wait_for 20 is_state a loading
	timeout 25 "$BERTH" down -f "$fleet" # requests under way have 30 s
	wait
	grep -q '^HTTP/1.1 503 ' "$scratch/head"
	grep -qi '^Retry-After: [0-9]' "$scratch/head"
	[ "$(jq -r .error.message "$scratch/answer")" = "no replica of 'a' is ready: the fleet is being stopped" ]
	[ "$(sed -n 's/^data: //p' "$scratch/stream" | tail -1 | jq -r '.type + " " + .error.type')" = "error overloaded_error" ] ||
		[ "$(jq -r '.type + " " + .error.type' "$scratch/stream")" = "error overloaded_error" ]
}

pid_of() { "$BERTH" status --json -f "$fleet" | jq -r --arg s "$1" '.services[] | select(.name == $s) | .pid'; }

@test "one that is killed while it is ready is started again by the next request, which waits for it" {
	write_fleet ', --load, "500"' '' '' ''
	bring_up
	[ "$(ask a | jq -r .model)" = a ]
	kill -9 "$(pid_of a)"
	wait_for 20 is_state a idle
	[ "$(ask a | jq -r .model)" = a ]
	[ "$("$BERTH" status --json -f "$fleet" | jq -c '[.services[].starts]')" = "[2,0]" ]
}

@test "one that was ready and cannot load any more holds nobody's place" {
	write_fleet ', --exit, "5", --flag-file, "'"$scratch"'/broken"' '' '' ''
	bring_up
	[ "$(ask a | jq -r .model)" = a ]
	touch "$scratch/broken"
	kill -9 "$(pid_of a)"
	wait_for 20 is_state a idle
	run ask a -w '\n%{http_code}'
	[ "${lines[1]}" = 503 ]
	[ "$(ask b | jq -r .model)" = b ]
}

@test "a restart keeps its place: no other starts in between" {
	write_fleet ', --load, "300", --work, "20000"' '' '' ''
	bring_up
	stream a >"$scratch/stream" 2>&1 3>&- &
	wait_for 20 grep -q '"content"' "$scratch/stream"
	ask b >"$scratch/b" 3>&- &
	wait_for 20 waits_for b
	run_split "$BERTH" restart -f "$fleet" a # an engine of no known kind is not waited for: the stream is cut
	[ "$status" -eq 0 ]
	wait
	[ "$(jq -r .model "$scratch/b")" = b ] # --alone: it would have ended beside the other
	[ "$("$BERTH" status --json -f "$fleet" | jq -c '[.services[].starts]')" = "[2,1]" ]
}

waits_for() { curl -sS --unix-socket "$BERTH_RUN/demand/control.sock" http://berth/requests | jq -e --arg e "$1" '.requests[] | select(.endpoint == $e and .phase == "load")' >/dev/null; }

@test "one that is declared to be always up is started by the reading, and its end is mended" {
	write_fleet '' '' '' ''
	bring_up
	[ "$(state a)" = idle ]
	sed -i '/ a: {/s/start: on-demand/start: always/' "$fleet"
	run_split "$BERTH" reload -f "$fleet"
	[ "$status" -eq 0 ]
	wait_for 20 is_state a ready
	kill -9 "$(pid_of a)"
	wait_for 20 is_state a starting
	wait_for 20 is_state a ready
}
