#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# The router's listener over TLS and as a socket of this machine, with curl as the client and services that nobody runs: /v1/models
# needs none.

load common

pair() { # NAME: $scratch/NAME.pem and NAME.key
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "/CN=$1" -addext subjectAltName=IP:127.0.0.1 \
		-keyout "$scratch/$1.key" -out "$scratch/$1.pem" 2>/dev/null
	chmod 600 "$scratch/$1.key"
}

write_fleet() { # the router's map
	fleet=$scratch/fleet.yaml
	cat >"$fleet" <<-EOT
		version: 1
		name: secret
		runtimes: {sys: {engine: generic, source: system}}
		services:
		  a: {runtime: sys, port: 9, command: [/bin/false]}
		router: $1
	EOT
}

# Starts `berth route`; $url is what it says.
route() {
	: >"$scratch/err"
	"$BERTH" route -f "$fleet" >"$scratch/out" 2>"$scratch/err" 3>&- &
	route=$!
	for _ in $(seq 200); do
		url=$(sed -n 's/^router  //p' "$scratch/err")
		[ -z "$url" ] || return 0
		kill -0 "$route" || return 1
		sleep 0.02
	done
	return 1
}

# Requests that nobody answers have 30 s, then 30 s more for what ends by itself.
stop() {
	local pid=${route:-}
	route=
	[ -n "$pid" ] && kill -TERM "$pid" 2>/dev/null || return 0
	wait_for 60 is_gone "$pid" || { kill -KILL "$pid"; return 1; }
}

is_gone() { ! kill -0 "$1" 2>/dev/null; }

# One that must not come up; it is not waited for when it does.
route_fails() {
	run_split timeout 60 "$BERTH" route -f "$fleet"
	[ "$status" -eq 1 ]
}

teardown() {
	stop
	rm -rf "$scratch"
}

@test "https: curl trusts the certificate, HTTP/1.1 is chosen, plain HTTP is told so" {
	pair one
	write_fleet "{listen: '127.0.0.1:0', tls: {certificate: one.pem, key: one.key}}"
	route
	[[ $url == https://127.0.0.1:* ]]
	run curl -sS --cacert "$scratch/one.pem" -w '\n%{http_version} %{ssl_verify_result}' "$url/v1/models"
	[ "$status" -eq 0 ]
	[[ $output == *'"id":"a"'*$'\n1.1 0' ]]
	run curl -sS --http0.9 "http${url#https}/v1/models"
	[ "$output" = "this port speaks TLS: use an https address" ]
	run curl -sS --tls-max 1.1 -k "$url/v1/models"
	[ "$status" -eq 35 ]
	stop
}

@test "a key that everybody may read is refused, with what to do" {
	pair one
	chmod 644 "$scratch/one.key"
	write_fleet "{listen: '127.0.0.1:0', tls: {certificate: one.pem, key: one.key}}"
	route_fails
	[ "$errors" = "berth route: key '$scratch/one.key' is open to everybody on this machine; take that away: chmod o= '$scratch/one.key'" ]
	chmod 640 "$scratch/one.key"
	route
}

@test "certificate and key that do not belong together, and files that are not there" {
	pair one
	pair two
	write_fleet "{listen: '127.0.0.1:0', tls: {certificate: one.pem, key: two.key}}"
	route_fails
	[[ $errors == *"certificate '$scratch/one.pem' with key '$scratch/two.key': key: it does not belong to the certificate"* ]]
	write_fleet "{listen: '127.0.0.1:0', tls: {certificate: none.pem, key: two.key}}"
	route_fails
	[ "$errors" = "berth route: cannot read '$scratch/none.pem': No such file or directory" ]
}

@test "a socket of this machine: for its owner, for a group, gone at the end" {
	write_fleet "{listen: 'unix:router.sock'}"
	route
	[ "$url" = "unix:$scratch/router.sock" ]
	[ "$(stat -c %a "$scratch/router.sock")" = 600 ]
	run curl -sS --unix-socket "$scratch/router.sock" http://berth/v1/models
	[[ $output == *'"id":"a"'* ]]
	stop
	[ ! -e "$scratch/router.sock" ]
	group=$(id -gn)
	write_fleet "{listen: 'unix:router.sock', group: $group}"
	route
	[ "$(stat -c '%a %G' "$scratch/router.sock")" = "660 $group" ]
	stop
	write_fleet "{listen: 'unix:router.sock', group: no-such-group}"
	route_fails
	[[ $errors == *"group 'no-such-group' is not known on this machine"* ]]
	[ ! -e "$scratch/router.sock" ]
	echo kept >"$scratch/router.sock"
	write_fleet "{listen: 'unix:router.sock'}"
	route_fails
	[[ $errors == *"something that is no socket is there; remove it, or choose another path"* ]]
	[ "$(cat "$scratch/router.sock")" = kept ]
}

@test "another build takes over while certificate and keys are being replaced: what was in force stays, until the files can be used" {
	pair one
	pair two
	write_fleet "{listen: '127.0.0.1:0', keys-file: keys, tls: {certificate: one.pem, key: one.key}}"
	secret=$("$BERTH" key add -f "$fleet" tester 2>/dev/null)
	route
	ask=(curl -sS -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $secret")
	cp "$scratch/keys" "$scratch/keys.whole"
	cp "$scratch/two.key" "$scratch/one.key" # half of the pair
	echo 'tester sha256:12' >"$scratch/keys"
	"$BERTH" upgrade -f "$fleet"
	[ "$("${ask[@]}" --cacert "$scratch/one.pem" "$url/v1/models")" = 200 ]
	[ "$(curl -sS -o /dev/null -w '%{http_code}' --cacert "$scratch/one.pem" "$url/v1/models")" = 401 ]
	grep -q 'the certificate stays as it was: ' "$scratch/err"
	grep -q 'the keys stay as they were: ' "$scratch/err"
	cp "$scratch/two.pem" "$scratch/one.pem"
	cp "$scratch/keys.whole" "$scratch/keys"
	"$BERTH" reload -f "$fleet"
	[ "$("${ask[@]}" --cacert "$scratch/two.pem" "$url/v1/models")" = 200 ]
	stop
}
