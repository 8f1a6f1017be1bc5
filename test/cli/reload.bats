#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# The fleet file, read again while the fleet is up: what is in force at once, what is started, stopped and pending, and what changes nothing.

load common
load life

teardown() {
	end_life
	rm -rf "$scratch"
}

@test "endpoints and aliases are in force at once, and a stream goes on" {
	ports 2
	a="a: {runtime: sys, port: ${port[0]}, identity: /v1/models, command: [$aids/fake_engine, --port, '{port}', --name, a, --events, '40', --gap, '50']}"
	write_fleet "$a" "endpoints: {first: {services: [a]}}"
	bring_up
	pid=$(status_of '.services[0].pid')
	stream first
	write_fleet "$a" "endpoints: {second: {services: [a], aliases: [other]}}"
	run_split "$BERTH" reload -f "$fleet"
	[ "$status" -eq 0 ]
	[ "$errors" = "fleet 'life' goes by its file" ]
	[ "$(curl -sS "$url/v1/models" | jq -r '.data[].id' | sort | tr '\n' ' ')" = "other second " ]
	[ "$(curl -sS -o /dev/null -w '%{http_code}' "$url/v1/chat/completions" -d '{"model":"first"}')" = 404 ]
	streamed 40
	[ "$(status_of '.services[0].pid, .services[0].pending, .reloads' | tr '\n' ' ')" = "$pid null 1 " ]
}

@test "a service that is declared otherwise is pending until it is restarted; requests go to what runs" {
	ports 2
	write_fleet "a: {runtime: sys, port: ${port[0]}, identity: /v1/models, command: [$aids/fake_engine, --port, '{port}', --name, a]}"
	bring_up
	pid=$(status_of '.services[0].pid')
	write_fleet "a: {runtime: sys, port: ${port[1]}, identity: /v1/models, command: [$aids/fake_engine, --port, '{port}', --name, a, --lines, '3']}"
	run_split "$BERTH" reload -f "$fleet"
	[[ $errors == *$'\n'"pending restart  a" ]]
	[ "$(status_of '.services[0] | .pid, .port, .pending' | tr '\n' ' ')" = "$pid ${port[0]} restart " ]
	[[ $("$BERTH" status -f "$fleet") == *"a: pending restart: "* ]]
	curl -sS "$url/v1/chat/completions" -d '{"model":"a","stream":true}' | grep -qE 'a-?2'
	# the same in other words, and what does not make the process, is no change
	write_fleet "a: {port: ${port[1]}, runtime: sys, slack: 1GiB, reason: test, command: ['$aids/fake_engine', '--port', '{port}', --name, a, --lines, '3'], identity: /v1/models}"
	"$BERTH" reload -f "$fleet" 2>/dev/null
	"$BERTH" restart -f "$fleet" a 2>/dev/null
	[ "$(status_of '.services[0] | .port, .pending' | tr '\n' ' ')" = "${port[1]} null " ]
	[ "$(status_of '.services[0].pid')" != "$pid" ]
	curl -sS "$url/v1/chat/completions" -d '{"model":"a","stream":true}' | grep -qE 'a-?2'
}

@test "services that are new are started; one that is gone is stopped" {
	ports 2
	a="a: {runtime: sys, port: ${port[0]}, identity: /v1/models, command: [$aids/fake_engine, --port, '{port}', --name, a]}"
	b="b: {runtime: sys, port: ${port[1]}, identity: /v1/models, command: [$aids/fake_engine, --port, '{port}', --name, b]}"
	write_fleet "$a"
	bring_up
	write_fleet "$b"
	run_split "$BERTH" reload -f "$fleet"
	[[ $errors == *"started          b"* ]]
	[[ $errors == *"being stopped    a"* ]]
	wait_status '.services | map(select(.name == "b"))[0].state' ready
	curl -sS "$url/v1/chat/completions" -d '{"model":"b","stream":true}' | grep -qE 'b-?2'
	wait_status '.services | length' 1
	run curl -sS "http://127.0.0.1:${port[0]}/health"
	[ "$status" -eq 7 ]
	write_fleet "$b" $'endpoints: {x: {services: [b]}}'
	"$BERTH" reload -f "$fleet" 2>/dev/null
	[ "$(status_of '.services[0].pending')" = null ]
}

@test "a file that cannot be used changes nothing and shows in the status; SIGHUP reads it too" {
	ports 1
	a="a: {runtime: sys, port: ${port[0]}, identity: /v1/models, command: [$aids/fake_engine, --port, '{port}', --name, a]}"
	write_fleet "$a"
	bring_up
	printf 'unknown: 1\n' >>"$fleet"
	run_split "$BERTH" reload -f "$fleet"
	[ "$status" -eq 2 ]
	[[ $errors == "berth reload: $fleet:7:1: "*"'unknown'"*"what was in force stays" ]]
	[[ $(status_of .reload_error) == "$fleet:7:1: "* ]]
	[[ $("$BERTH" status -f "$fleet") == *"the fleet file is not in force: $fleet:7:1: "* ]]
	# no YAML at all, as in the middle of an edit: what runs can be seen all the same
	printf ' - x: [\n' >>"$fleet"
	run_split "$BERTH" reload -f "$fleet"
	[ "$status" -eq 2 ]
	[[ $(status_of '.services[0].state') == ready && $(status_of .reload_error) == "$fleet:8:"* ]]
	curl -sS "$url/v1/chat/completions" -d '{"model":"a","stream":true}' | grep -qE 'a-?2'
	write_fleet "$a" "endpoints: {hup: {services: [a]}}"
	kill -HUP "$(status_of .pid)"
	wait_status .reloads 1
	[ "$(status_of .reload_error)" = null ]
	[ "$(curl -sS "$url/v1/models" | jq -r '.data[0].id')" = hup ]
	sed -i 's/^name: life/name: other/' "$fleet"
	run_split "$BERTH" reload -f "$fleet"
	[ "$status" -eq 1 ]
	[ "$errors" = "berth reload: fleet 'other' is not up; 'berth up' brings it up" ]
}

@test "the certificate is replaced while a stream goes on; one that is not usable is refused" {
	ports 1
	pair one
	pair two
	a="a: {runtime: sys, port: ${port[0]}, identity: /v1/models, command: [$aids/fake_engine, --port, '{port}', --name, a, --events, '40', --gap, '50']}"
	router="{listen: '127.0.0.1:0', tls: {certificate: one.pem, key: one.key}}"
	write_fleet "$a"
	bring_up
	curl -sS --cacert "$scratch/one.pem" "$url/v1/models" >/dev/null
	stream a --cacert "$scratch/one.pem"
	cp "$scratch/two.pem" "$scratch/one.pem"
	run_split "$BERTH" reload -f "$fleet"
	[ "$status" -eq 2 ]
	[[ $errors == *"key: it does not belong to the certificate"* ]]
	cp "$scratch/two.key" "$scratch/one.key"
	"$BERTH" reload -f "$fleet" 2>/dev/null
	curl -sS --cacert "$scratch/two.pem" "$url/v1/models" | grep -q '"a"'
	streamed 40
}

@test "the router moves to another address, and from http to https, without losing a stream" {
	ports 2
	pair one
	a="a: {runtime: sys, port: ${port[0]}, identity: /v1/models, command: [$aids/fake_engine, --port, '{port}', --name, a, --events, '40', --gap, '50']}"
	write_fleet "$a"
	bring_up
	stream a
	router="{listen: 'unix:r.sock'}"
	write_fleet "$a"
	"$BERTH" reload -f "$fleet" 2>/dev/null
	wait_status .router.leaving 1
	[ "$(status_of .router.url)" = "unix:$scratch/r.sock" ]
	curl -sS --unix-socket "$scratch/r.sock" http://berth/v1/models | grep -q '"a"'
	streamed 40
	wait_status .router.leaving 0
	run curl -sS "$url/v1/models"
	[ "$status" -eq 7 ]
	router="{listen: '127.0.0.1:${port[1]}', tls: {certificate: one.pem, key: one.key}}"
	write_fleet "$a"
	"$BERTH" reload -f "$fleet" 2>/dev/null
	wait_status .router.leaving 0
	curl -sS --retry 5 --retry-connrefused --cacert "$scratch/one.pem" "https://127.0.0.1:${port[1]}/v1/models" | grep -q '"a"'
	[ ! -e "$scratch/r.sock" ]
}

@test "what others remove of the router's files is there again: its socket, and the folder for large bodies" {
	ports 1
	router="{listen: 'unix:r.sock', bodies: {spill: 8KiB}}"
	write_fleet "a: {runtime: sys, port: ${port[0]}, identity: /v1/models, command: [$aids/fake_engine, --port, '{port}', --name, a, --events, '80', --gap, '50']}"
	bring_up
	url=http://berth
	unix=(--unix-socket "$scratch/r.sock")
	log=$BERTH_STATE/fleets/life/logs/berth.log
	stream a "${unix[@]}"
	rm "$scratch/r.sock"
	wait_for 20 grep -q "its socket '$scratch/r.sock' had been removed: it is there again" "$log"
	wait_for 20 curl -sS "${unix[@]}" "$url/v1/models" -o "$scratch/models"
	grep -q '"a"' "$scratch/models"
	[ "$(stat -c %a "$scratch/r.sock")" = 600 ]
	streamed 80
	# a body that goes to a file, in a folder that was made again by whoever may
	bodies=$BERTH_STATE/fleets/life/bodies
	owner=$(stat -c '%u %a' "$bodies")
	printf '{"model":"a","messages":[],"x":"%030000d"}' 1 >"$scratch/body"
	rmdir "$bodies"
	wait_for 20 large_body_is_taken
	[ "$(stat -c '%u %a' "$bodies")" = "$owner" ]
	curl -sS --unix-socket "$BERTH_RUN/life/control.sock" http://berth/metrics | grep -q '^berth_router_bodies_spilled_total [1-9]'
	"$BERTH" down -f "$fleet" 2>/dev/null
	[ ! -e "$scratch/r.sock" ]
}

large_body_is_taken() { [ "$(curl -sS "${unix[@]}" "$url/v1/chat/completions" -H 'Content-Type: application/json' --data-binary @"$scratch/body" -o /dev/null -w '%{http_code}')" = 200 ]; }
