#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# Another build of berth takes over a fleet that is up: engines and streams go on.

load common
load life

teardown() {
	[ -z "${outside:-}" ] || kill "$outside" || true
	end_life
	rm -rf "$scratch"
}

# A fleet run by a copy of berth that can be replaced.
start_copy() { # SERVICE...
	mkdir "$scratch/bin"
	cp "$BERTH" "$scratch/bin/berth"
	BERTH=$scratch/bin/berth
	write_fleet "$@"
	bring_up
}

# Another file in its place, as an installer makes it.
replace_copy() { # FILE
	cp "$1" "$scratch/bin/berth.new"
	chmod 755 "$scratch/bin/berth.new"
	mv "$scratch/bin/berth.new" "$scratch/bin/berth"
}

@test "another build takes over: the same supervisor and engine processes, another router, a stream across it" {
	ports 1
	original=$BERTH
	start_copy "a: {runtime: sys, port: ${port[0]}, identity: /v1/models, command: [$aids/fake_engine, --port, '{port}', --name, a, --events, '100', --gap, '50']}"
	engine=$(status_of '.services[0].pid')
	worker=$(status_of .router.pid)
	image=$(stat -Lc %i "/proc/$up_pid/exe")
	stream a
	replace_copy "$original"
	run_split "$BERTH" upgrade -f "$fleet"
	[ "$status" -eq 0 ]
	[[ $errors == "fleet 'life' is run by berth "* ]]
	wait_status .router.leaving 1
	[ "$(status_of '.pid, .upgrades, .services[0].pid, .services[0].state, .services[0].starts' | tr '\n' ' ')" = "$up_pid 1 $engine ready 1 " ]
	[ "$(stat -Lc %i "/proc/$up_pid/exe")" != "$image" ]
	[ "$(status_of .router.pid)" != "$worker" ]
	[ "$(status_of .router.url)" = "$url" ]
	[ "$(curl -sS "$url/v1/models" | jq -r '.data[0].id')" = a ]
	streamed 100
	wait_status .router.leaving 0
	# its engine is still its child: it sees the end and starts another one
	kill -KILL "$engine"
	wait_status '.services[0].restarts' 1
	wait_status '.services[0].state' ready
	run_split "$BERTH" upgrade -f "$fleet"
	[ "$status" -eq 0 ]
	[ "$(status_of .upgrades)" = 2 ]
	"$BERTH" down -f "$fleet" 2>/dev/null
	[ ! -e "$BERTH_RUN/life/control.sock" ]
	[ ! -e "/proc/$engine" ]
}

@test "what the router knows of conversations, to the last, goes on to the next one" {
	local first next
	ports 2
	original=$BERTH
	start_copy "a: {runtime: sys, port: ${port[0]}, identity: /v1/models, command: [$aids/fake_engine, --port, '{port}', --name, a]}" \
		"b: {runtime: sys, port: ${port[1]}, identity: /v1/models, command: [$aids/fake_engine, --port, '{port}', --name, b]}" \
		'endpoints: {m: {services: [a, b]}}'
	turn() { # the replica, and why it
		curl -sS -o /dev/null -D - "$url/v1/chat/completions" -H 'x-session-id: talk' -d '{"model":"m","messages":[{"role":"user","content":"one"}]}' |
			tr -d '\r' | sed -n 's/^X-Berth-\(Replica\|Decision\): //p' | tr '\n' ' '
	}
	first=$(turn)
	[[ $first == *cold* ]]
	replace_copy "$original"
	"$BERTH" upgrade -f "$fleet"
	next=$(turn)
	[ "$next" = "${first/cold/affine}" ]
}

@test "a program that cannot take over changes nothing" {
	ports 1
	start_copy "a: {runtime: sys, port: ${port[0]}, identity: /v1/models, command: [$aids/fake_engine, --port, '{port}', --name, a]}"
	printf '#!/bin/sh\necho this is no berth >&2\nexit 3\n' >"$scratch/other"
	cp "$BERTH" "$scratch/good"
	replace_copy "$scratch/other"
	run_split "$scratch/good" upgrade -f "$fleet"
	[ "$status" -eq 1 ]
	[ "$errors" = "berth upgrade: '$scratch/bin/berth' cannot take over: exit 3: this is no berth; nothing has changed" ]
	BERTH=$scratch/good
	[ "$(status_of '.upgrades, .services[0].state' | tr '\n' ' ')" = "0 ready " ]
	curl -sS "$url/v1/models" | grep -q '"a"'
	# what is declared is not what runs
	replace_copy "$scratch/good"
	sed -i 's/--name, a/--name, b/' "$fleet"
	run_split "$BERTH" upgrade -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $errors == *"service 'a' is not declared as it runs; 'berth reload' and 'berth restart' first; nothing has changed" ]]
	[ "$(status_of .upgrades)" = 0 ]
}

@test "a router without services is replaced too" {
	ports 1
	mkdir "$scratch/bin"
	cp "$BERTH" "$scratch/bin/berth"
	BERTH=$scratch/bin/berth
	write_fleet "a: {runtime: sys, port: ${port[0]}, command: ['true']}"
	: >"$scratch/err"
	"$BERTH" route -f "$fleet" >/dev/null 2>"$scratch/err" 3>&- &
	up_pid=$!
	wait_status .state up
	url=$(status_of .router.url)
	worker=$(status_of .router.pid)
	run_split "$BERTH" upgrade -f "$fleet"
	[ "$status" -eq 0 ]
	[ "$(status_of .pid)" = "$up_pid" ]
	wait_status .router.leaving 0
	[ "$(status_of .router.pid)" != "$worker" ]
	curl -sS "$url/v1/models" | grep -q '"a"'
}

@test "a drain of what others run is kept, and that an engine is away" {
	ports 2
	mkdir "$scratch/bin"
	cp "$BERTH" "$scratch/bin/berth"
	BERTH=$scratch/bin/berth
	"$aids/fake_engine" --port "${port[0]}" --name a >"$scratch/engine" 2>&1 3>&- &
	outside=$!
	write_fleet "a: {runtime: sys, port: ${port[0]}, command: ['true']}" "b: {runtime: sys, port: ${port[1]}, command: ['true']}"
	: >"$scratch/err"
	"$BERTH" route -f "$fleet" >/dev/null 2>"$scratch/err" 3>&- &
	up_pid=$!
	wait_status '.services[0].state' ready
	wait_status '.services[1].state' 'no answer'
	sock=(--unix-socket "$BERTH_RUN/life/control.sock" -sS -o /dev/null -X POST)
	curl "${sock[@]}" 'http://berth/drain?service=a&for=600'
	[ "$(status_of '.services[0].drained')" = true ]
	run_split "$BERTH" upgrade -f "$fleet"
	[ "$status" -eq 0 ]
	[ "$(status_of '.upgrades, .services[0].drained' | tr '\n' ' ')" = '1 true ' ]
	url=$(status_of .router.url)
	[ "$(curl -sS -o /dev/null -w '%{http_code}' "$url/props?model=a")" = 503 ]
	[ "$(grep -c "service 'b': answers again" "$scratch/err")" = 0 ]
	curl "${sock[@]}" 'http://berth/resume?service=a'
	[ "$(curl -sS -o /dev/null -w '%{http_code}' "$url/props?model=a")" = 404 ] # the engine's own
}

@test "a service that has failed is failed afterwards, and says why" {
	ports 1
	cp "$aids/fake_engine" "$scratch/engine"
	chmod 755 "$scratch" "$scratch/engine" # its account must reach it
	start_copy "a: {runtime: sys, port: ${port[0]}, identity: /v1/models, command: [$scratch/engine, --port, '{port}', --name, a]}"
	printf '#!/bin/sh\nexit 3\n' >"$scratch/engine.new"
	chmod 755 "$scratch/engine.new"
	mv "$scratch/engine.new" "$scratch/engine"
	run_split "$BERTH" restart a -f "$fleet"
	wait_status '.services[0].state' failed
	why=$(status_of '.services[0].error')
	[[ $why == *"exit 3"* ]]
	run_split "$BERTH" upgrade -f "$fleet"
	[ "$status" -eq 0 ]
	[ "$(status_of '.upgrades, .services[0].state' | tr '\n' ' ')" = '1 failed ' ]
	[ "$(status_of '.services[0].error')" = "$why" ]
}

@test "what is in the way only once it was asked is told by the command too" {
	ports 1
	start_copy "a: {runtime: sys, port: ${port[0]}, identity: /v1/models, command: [$aids/fake_engine, --port, '{port}', --name, a]}"
	original=$BERTH
	cp "$BERTH" "$scratch/good"
	# one that is gone when its turn has come
	# shellcheck disable=SC2016
	printf '#!/bin/sh\nrm "$0"\n' >"$scratch/other"
	replace_copy "$scratch/other"
	BERTH=$scratch/good
	for _ in 1 2; do
		run_split timeout 30 "$BERTH" upgrade -f "$fleet"
		[ "$status" -eq 1 ]
		[ "$errors" = "berth upgrade: cannot run '$original': No such file or directory; nothing has changed" ]
		[ "$(status_of '.upgrades, .services[0].state' | tr '\n' ' ')" = "0 ready " ]
		replace_copy "$scratch/other"
	done
	replace_copy "$scratch/good"
	"$BERTH" upgrade -f "$fleet" 2>/dev/null
	[ "$(status_of '.upgrades, .upgrade_error' | tr '\n' ' ')" = "1 null " ]
}

@test "one state folder has one supervisor, whatever its run folder: across an upgrade, and until it dies" {
	ports 1
	start_copy "a: {runtime: sys, port: ${port[0]}, identity: /v1/models, command: [$aids/fake_engine, --port, '{port}', --name, a]}"
	engine=$(status_of '.services[0].pid')
	printf -v refusal "fleet 'life' is already up (pid %s) with the run folder '%s' and this state; 'BERTH_RUN=%s berth down' stops it, another BERTH_STATE keeps the two apart" \
		"$up_pid" "$BERTH_RUN" "$BERTH_RUN"
	for _ in 1 2; do
		BERTH_RUN=$scratch/run2 run_split "$BERTH" up -d -f "$fleet"
		[ "$status" -eq 1 ]
		[ "$errors" = "berth up: $refusal" ] || { echo "$errors"; false; }
		for command in status down 'restart a'; do
			# shellcheck disable=SC2086
			BERTH_RUN=$scratch/run2 run_split "$BERTH" $command -f "$fleet"
			[ "$status" -eq 1 ]
			[[ $errors == *"fleet 'life' is up with another run folder (pid $up_pid): 'BERTH_RUN=$BERTH_RUN' in front of the command finds it" ]]
		done
		[ "$(status_of '.services[0].pid, .services[0].state' | tr '\n' ' ')" = "$engine ready " ]
		"$BERTH" upgrade -f "$fleet" 2>/dev/null
	done
	run_split "$BERTH" up -d -f "$fleet"
	[ "$errors" = "berth up: fleet 'life' is already up (pid $up_pid); 'berth down' stops it, 'berth restart' restarts its services" ]
	kill -KILL "$up_pid"
	wait_for 20 is_gone "$engine"
	export BERTH_RUN=$scratch/run2
	bring_up
	[ "$(status_of '.services[0].state')" = ready ]
}

is_gone() { [ ! -e "/proc/$1" ]; }

@test "the state is refused when it is not understood" {
	run_split "$BERTH" _up
	[ "$status" -eq 2 ]
	for text in '' '{}' '[' '{"version":2}'; do
		# shellcheck disable=SC2016
		run bash -c 'exec 9<<<"$2"; exec "$1" _up --check --state-fd 9' _ "$BERTH" "$text"
		[ "$status" -eq 1 ]
		[ -n "$output" ]
	done
}

@test "the fleet file breaks between the answer and the other program's start: what was tried is what it goes on with" {
	ports 1
	start_copy "a: {runtime: sys, port: ${port[0]}, command: [$aids/fake_engine, --port, '{port}', --name, a]}"
	engine=$(status_of '.services[0].pid')
	cp "$fleet" "$scratch/kept"
	python3 - "$BERTH_RUN/life/control.sock" "$fleet" <<-'EOT'
		import socket, sys
		s = socket.socket(socket.AF_UNIX)
		s.settimeout(30)
		s.connect(sys.argv[1])
		s.sendall(b"POST /upgrade HTTP/1.1\r\nHost: berth\r\nContent-Length: 0\r\n\r\n")
		assert s.recv(12) == b"HTTP/1.1 200"
		open(sys.argv[2], "w").close()
	EOT
	cp "$scratch/kept" "$scratch/again"
	for _ in $(seq 200); do
		[ "$(curl -sS --unix-socket "$BERTH_RUN/life/control.sock" http://berth/status | jq .upgrades)" != 1 ] || break
		sleep 0.05
	done
	mv "$scratch/again" "$fleet"
	[ "$(status_of '.pid, .upgrades, .services[0].pid, .services[0].state' | tr '\n' ' ')" = "$up_pid 1 $engine ready " ]
}
