#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# The admin listener: what it has, whom it refuses, and that a drained service gets nothing new. The engine is one that only says who it is.

load common

teardown() {
	"$BERTH" down -f "$fleet" >/dev/null 2>&1 || true
	rm -rf "$scratch"
}

bring_up() {
	chmod 755 "$scratch"
	fleet=$scratch/fleet.yaml
	read -r port router_port < <(free_ports 2)
	cat >"$fleet" <<-EOT
		version: 1
		name: admin
		runtimes:
		  fake: {engine: generic, source: system}
		services:
		  a: {runtime: fake, port: $port, command: ["$PWD/build/aids/fake_engine", --port, "{port}"]}
		router: {listen: "127.0.0.1:$router_port", admin: "127.0.0.1:0"}
	EOT
	"$BERTH" up -d -f "$fleet" >"$scratch/out" 2>"$scratch/err" 3>&-
	admin=$(sed -n 's/^admin *//p' "$scratch/out")
}

code() { curl -sS --max-time 20 -o /dev/null -w '%{http_code}' "$@"; }

@test "metrics, status and draining; nothing that ends the fleet" {
	bring_up
	[ "$(curl -sS --max-time 20 "$admin/status" | jq -r '.state + .router.admin')" = "up$admin" ]
	curl -sS --max-time 20 "$admin/metrics" | grep -q '^berth_router_active 0$'
	[ "$(code -X POST "$admin/down")" = 404 ]
	[ "$(code -X POST "$admin/restart")" = 404 ]
	[ "$(code "$admin/drain?service=a")" = 404 ]
	[ "$(code -X POST "$admin/drain")" = 400 ]
	[ "$(code -X POST "$admin/drain?service=b")" = 404 ]
	ask=("http://127.0.0.1:$router_port/props?model=a")
	[ "$(code "${ask[@]}")" = 404 ] # the engine's own
	[ "$(curl -sS --max-time 20 -X POST "$admin/drain?service=a")" = '{"drained":true}' ]
	[ "$(curl -sS --max-time 20 "$admin/status" | jq '.services[0].drained')" = true ]
	[ "$(code "${ask[@]}")" = 503 ]
	[ "$(curl -sS --max-time 20 -X POST "$admin/resume?service=a")" = '{"drained":false}' ]
	[ "$(code "${ask[@]}")" = 404 ]
}

@test "berth drain waits until a service rests, resume gives it back" {
	bring_up
	ask=("http://127.0.0.1:$router_port/props?model=a")
	run_split "$BERTH" drain -f "$fleet" a
	[ "$status" -eq 0 ]
	[ "$errors" = "a: gets nothing new and works on nothing; 'berth resume a' gives it back" ]
	[ "$(curl -sS --max-time 20 "${ask[@]}" | jq -r .error.message)" = "no replica of 'a' is ready: it is drained" ]
	[[ $("$BERTH" top --once -f "$fleet") == *"a        drained"* ]]
	run_split "$BERTH" drain --for 10m -f "$fleet" a
	[ "$status" -eq 1 ]
	[ "$errors" = "berth drain: service 'a' runs here and would be drained until 'berth resume': leave --for out" ]
	run_split "$BERTH" resume -f "$fleet" a
	[ "$status" -eq 0 ]
	[ "$(code "${ask[@]}")" = 404 ] # the engine's own
	for c in drain resume; do
		run_split "$BERTH" $c -f "$fleet" b
		[ "$status" -eq 1 ]
		[ "$errors" = "berth $c: fleet 'admin' has no service 'b'; 'berth status' lists them" ]
	done
	run_split "$BERTH" drain --for x -f "$fleet" b
	[ "$status" -eq 2 ]
}

@test "a page of somebody else's, or a name that leads here, is refused" {
	bring_up
	host=${admin#http://}
	[ "$(code -H 'Host: evil.example' "$admin/status")" = 403 ]
	[ "$(code -H "Host: evil.example:${host#*:}" "$admin/status")" = 403 ]
	[ "$(code -H 'Host: localhost' "$admin/status")" = 200 ]
	[ "$(code -H 'Origin: https://evil.example' -X POST "$admin/drain?service=a")" = 403 ]
	[ "$(code -H 'Origin: null' -X POST "$admin/drain?service=a")" = 403 ]
	[ "$(code -H "Origin: $admin" "$admin/status")" = 200 ]
	[ "$(curl -sS --max-time 20 "$admin/status" | jq '.services[0].drained')" = false ]
}

# asked HOST [ORIGIN]...: the status of a question with these fields as they are
asked() {
	local host=$1 origin
	shift
	exec 7<>"/dev/tcp/127.0.0.1/${admin##*:}"
	{
		printf 'GET /status HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n' "$host"
		for origin in "$@"; do
			printf 'Origin: %s\r\n' "$origin"
		done
		printf '\r\n'
	} >&7
	read -r -t 20 _ answered _ <&7
	exec 7>&- 7<&-
	echo "$answered"
}

@test "only an address or localhost names it, and only its own page asks: names that were bound anew, look-alikes, several at once" {
	bring_up
	port=${admin##*:}
	for host in "127.0.0.1:$port" "localhost:$port" "LocalHost" "[::1]:$port" "[::1]" "192.0.2.7"; do
		[ "$(asked "$host")" = 200 ] || { echo "$host"; false; }
		[ "$(asked "$host" "http://$host")" = 200 ] || { echo "$host"; false; }
	done
	for host in '' "evil.example:$port" "127.0.0.1.evil.example:$port" "localhost.evil.example" "localhost." "evil-localhost" "127.1" "0x7f000001" "2130706433" "[::1].evil.example" "[::1" \
		"[::1]evil.example:$port" "user@127.0.0.1" "127.0.0.1:$port.evil.example" "127.0.0.1:" "127.0.0.1:0" "127.0.0.1, evil.example" "$(printf '1%.0s' {1..300})"; do
		[[ $(asked "$host") == 40[03] ]] || { echo "$host"; false; }
	done
	own=127.0.0.1:$port
	for origin in null '' "https://$own" "http://localhost:$port" "http://127.0.0.1" "http://$own/" "http://$own.evil.example" "http://evil.example/$own" "http://user@$own" "HTTP://$own" "http://${own}0" \
		"$own" "file://" "http://$own,http://evil.example" "http://$own http://evil.example" "http://$(printf 'a%.0s' {1..5000})"; do
		[ "$(asked "$own" "$origin")" = 403 ] || { echo "$origin"; false; }
	done
	[ "$(asked "$own" "http://$own" "http://evil.example")" = 403 ]
	[ "$(asked "$own" "http://evil.example" "http://$own")" = 403 ]
	[ "$(asked "$own" "$(printf 'http://%s\001' "$own")")" = 400 ]
}

@test "its port is taken: who has it" {
	bring_up
	sed "s/name: admin/name: other/; s/127.0.0.1:0/127.0.0.1:$router_port/; s/$port/$((port + 1))/; s/listen: \"[^\"]*\"/listen: \"127.0.0.1:0\"/" "$fleet" >"$scratch/other.yaml"
	run_split timeout 60 "$BERTH" up -f "$scratch/other.yaml"
	[ "$status" -eq 1 ]
	[[ $errors == *"port $router_port of the admin listener is taken by berth"* ]]
}

@test "who takes all connections of the admin listener takes none of the control socket" {
	bring_up
	python3 - "${admin##*:}" "$scratch/taken" 3>&- <<-'EOT' &
		import socket, sys, time
		held = []
		for i in range(64):
		    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
		    s.sendall(b"POST /drain?service=none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nx")
		    s.recv(15)
		    held.append(s)
		open(sys.argv[2], "w").close()
		time.sleep(30)
	EOT
	holder=$!
	wait_for 20 test -e "$scratch/taken"
	run_split "$BERTH" status --json -f "$fleet"
	kill "$holder"
	[ "$status" -eq 0 ]
	[ "$(jq -r .state <<<"$output")" = up ]
}
