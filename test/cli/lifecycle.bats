#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# up, down, restart, status, logs and route as far as they go without an engine.

load common

write_fleet() {
	fleet=$scratch/fleet.yaml
	cat >"$fleet" <<-EOT
		version: 1
		name: lonely
		runtimes:
		  own: {engine: llama.cpp, source: "path:$scratch/nowhere"}
		models:
		  m: {source: "file:$scratch", weights: m.gguf}
		services:
		  medium: {runtime: own, model: m, port: 17770, context: 4096}
		router: {listen: "127.0.0.1:18080"}
	EOT
}

@test "status of a fleet that is down is a table on stdout and a word on stderr, exit 0" {
	write_fleet
	run_split "$BERTH" status -f "$fleet"
	[ "$status" -eq 0 ]
	[ "$errors" = "fleet 'lonely' is not up; 'berth up' brings it up" ]
	[[ $output == SERVICE*medium*down*17770*m* ]]
	[[ $output == *"router     http://127.0.0.1:18080  down"*$'\nendpoints  medium' ]]
	run_split "$BERTH" status --json -f "$fleet"
	[ "$(jq -r '.state, .services[0].state, .router.state, .services[0].memory_bytes' <<<"$output" | tr '\n' ' ')" = "down down down null " ]
	[ ! -e "$BERTH_RUN" ]
	[ ! -e "$BERTH_STATE" ]
}

@test "down and restart of a fleet that is down" {
	write_fleet
	run_split "$BERTH" down -f "$fleet"
	[ "$status" -eq 0 ]
	[ "$errors" = "fleet 'lonely' is not up; 'berth up' brings it up" ]
	run_split "$BERTH" restart -f "$fleet"
	[ "$status" -eq 1 ]
	[ "$errors" = "berth restart: fleet 'lonely' is not up; 'berth up' brings it up" ]
}

@test "a service that the fleet does not have: the nearest one, exit 2" {
	write_fleet
	for c in logs restart; do
		run_split "$BERTH" "$c" -f "$fleet" meduim
		[ "$status" -eq 2 ]
		[ "$errors" = "berth $c: fleet 'lonely' has no service 'meduim'; did you mean 'medium'?" ]
		run_split "$BERTH" "$c" -f "$fleet" zebra
		[ "$status" -eq 2 ]
		[[ $errors == *"has no service 'zebra'; 'berth status' lists them" ]]
	done
}

@test "logs: no log yet, a number of lines that is none, the last lines" {
	write_fleet
	run_split "$BERTH" logs -f "$fleet" medium
	[ "$status" -eq 1 ]
	[[ $errors == *"never started here"* ]]
	run_split "$BERTH" logs -n many -f "$fleet" medium
	[ "$status" -eq 2 ]
	log=$BERTH_STATE/fleets/lonely/logs/medium.log
	mkdir -p "$(dirname "$log")"
	seq 100000 | sed 's/^/line /' >"$log"
	run_split "$BERTH" logs -f "$fleet" medium
	[ "$output" = "$(seq 99901 100000 | sed 's/^/line /')" ]
	run_split "$BERTH" logs -n 1 -f "$fleet" medium
	[ "$output" = "line 100000" ]
	run_split "$BERTH" logs -n 0 -f "$fleet" medium
	[ -z "$output" ]
	[ "$("$BERTH" logs -n 10000000 -f "$fleet" medium | cksum)" = "$(cksum <"$log")" ]
	printf 'no line feed' >>"$log"
	run_split "$BERTH" logs -n 2 -f "$fleet" medium
	[ "$output" = $'line 100000\nno line feed' ]
	# a terminal obeys nothing that a log says; a file gets all of it
	printf '\033[31mred\t\303\244\302\205\377\r\nnext' >"$log"
	script -qec "'$BERTH' logs -f '$fleet' medium" /dev/null | tr -d '\r' >"$scratch/shown"
	[ "$(cat "$scratch/shown")" = $'\\x1b[31mred\t\303\244\\xc2\\x85\\xff\nnext' ]
	[ "$("$BERTH" logs -f "$fleet" medium | cksum)" = "$(cksum <"$log")" ]
	# a reader that leaves early ends a follower too
	timeout 10 "$BERTH" logs -F -f "$fleet" medium | head -n 1
	# a file that is unusable at this moment hides no log
	broken=$BATS_TEST_TMPDIR/broken.yaml
	printf 'version: 1\nname: lonely\nbanana: 1\n' >"$broken"
	run_split "$BERTH" logs -n 1 -f "$broken" medium
	[ "$status" -eq 0 ]
	[ -n "$output" ]
	run_split "$BERTH" logs -f "$broken" ../medium
	[ "$status" -eq 2 ]
}

@test "up: a fleet file that is not there, a runtime that is not there" {
	run_split "$BERTH" up -f "$scratch/none.yaml"
	[ "$status" -eq 2 ]
	[[ $errors == *"none.yaml"* ]]
	write_fleet
	# the model first: nobody waits for an installation to hear of it
	run_split "$BERTH" up -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $errors == "berth up: service 'medium': model 'm': its weights "*"does not exist"* ]]
	echo x >"$scratch/m.gguf"
	run_split "$BERTH" up -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $errors == "berth up: runtime 'own': "*"$scratch/nowhere"* ]]
	run_split "$BERTH" up -d -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $errors == "berth up: runtime 'own': "*"$scratch/nowhere"* ]]
	run_split "$BERTH" status -f "$fleet"
	[ "$errors" = "fleet 'lonely' is not up; 'berth up' brings it up" ]
}

@test "the router's worker refuses to run without its descriptors" {
	run_split "$BERTH" _route
	[ "$status" -eq 2 ]
	run_split "$BERTH" _route --channel-fd x --listen-fd 4
	[ "$status" -eq 2 ]
	run_split "$BERTH" _route --channel-fd 77 --listen-fd 78
	[ "$status" -eq 1 ]
	[[ $("$BERTH" help) != *_route* ]]
}

@test "route serves the endpoints alone and says 502 while no engine answers" {
	write_fleet
	sed -i 's/127.0.0.1:18080/127.0.0.1:0/' "$fleet"
	"$BERTH" route -f "$fleet" 2>"$scratch/route" 3>&- &
	route=$!
	for _ in $(seq 100); do
		grep -q http "$scratch/route" && break
		sleep 0.05
	done
	url=$(sed -n 's/^router  //p' "$scratch/route")
	[ "$(curl -sS "$url/v1/models" | jq -r '.data[0].id')" = medium ]
	[ "$(curl -sS -o /dev/null -w '%{http_code}' "$url/v1/chat/completions" -d '{"model":"medium"}')" = 502 ]
	kill -TERM "$route"
	wait "$route"
}

@test "what was known of conversations and cannot be read keeps no router from starting" {
	local index=$BERTH_STATE/fleets/lonely/router.index bad
	write_fleet
	sed -i 's/127.0.0.1:18080/127.0.0.1:0/' "$fleet"
	mkdir -p "${index%/*}"
	for bad in 'printf %s "00\"}"' 'printf "00\n00"' 'head -c 4096 /dev/urandom' 'printf ABCD' 'printf ""' 'printf 00zz'; do
		eval "$bad" >"$index"
		"$BERTH" route -f "$fleet" 2>"$scratch/route" 3>&- &
		route=$!
		for _ in $(seq 100); do
			! grep -q ^router "$scratch/route" || break
			sleep 0.05
		done
		url=$(sed -n 's/^router  //p' "$scratch/route")
		[ "$(curl -sS "$url/v1/models" | jq -r '.data[0].id')" = medium ]
		grep -q "router.index' cannot be used: conversations begin anew" "$scratch/route"
		kill -TERM "$route"
		wait "$route"
	done
}

@test "signals while it ends: the end stays an orderly one" {
	local code port pid
	read -r port < <(free_ports 1)
	cat >"$scratch/route.yaml" <<-EOT
		version: 1
		name: ending
		runtimes:
		  other: {engine: generic, source: system}
		services:
		  m: {runtime: other, port: 1, command: ["true"]}
		router: {listen: "127.0.0.1:$port"}
	EOT
	for _ in 1 2 3 4 5; do
		"$BERTH" route -f "$scratch/route.yaml" >/dev/null 2>"$scratch/said" 3>&- &
		pid=$!
		for _ in $(seq 500); do
			! (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
			sleep 0.02
		done
		# one after the other until it is gone: wherever it is in its end, one comes
		code=0
		perl -e '1 while kill TERM => $ARGV[0]' "$pid" 3>&- &
		wait "$pid" || code=$?
		[ "$code" -eq 0 ]
	done
}
