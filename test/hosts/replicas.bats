#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# Replicas behind the router on a real host: deployed one at a time while clients ask, with what they declare proven; and who answers on a port.

bats_require_minimum_version 1.5.0

setup_file() {
	[ "$(id -u)" = 0 ] || skip "needs root"
	why=$(test/hosts/lab possible) || skip "$why"
	export LAB
	LAB=$(mktemp -d /tmp/berth-lab-XXXXXX)
	export BERTH=${BERTH:-$PWD/build/berth} NO_COLOR=1 FLEET=$LAB/fleet.yaml KEY=
	export BERTH_STATE=${BERTH_TEST_STATE:-$PWD/build/test-state}
	write_fleet
	"$BERTH" runtime add -f "$FLEET" >/dev/null 2>&1
	test/hosts/lab up "$LAB/hosts" $$
	for h in h1 h2; do
		on "$h" mkdir -p /srv/models
		lab run scp -q assets/tiny/berth-tiny-f16.gguf "$h:/srv/models/"
	done
	# other machines reach the router, so clients have keys
	sed "s,/root/keys,$LAB/keys," "$FLEET" >"$LAB/here.yaml"
	"$BERTH" key add tester -f "$LAB/here.yaml" >"$LAB/key" 2>/dev/null
	lab run scp -q "$LAB/keys" h1:/root/keys
	berth deploy >"$LAB/out" 2>&1 || { cat "$LAB/out"; return 1; }
}

teardown_file() {
	[ -n "${LAB:-}" ] || return 0
	test/hosts/lab down "$LAB/hosts"
	rm -rf "$LAB"
}

lab() {
	local what=$1
	shift
	test/hosts/lab "$what" "$LAB/hosts" "$@"
}
on() { lab exec "$@"; }
berth() { lab run "$BERTH" "$@" -f "$FLEET"; }
key() { grep -o 'berth_[A-Za-z0-9_-]*' "$LAB/key" | head -n 1; }
ask_router() { lab run curl -s -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $(key)" http://10.77.0.1:8080/v1/models; }
routed() { on h1 curl -s --unix-socket /run/berth/pair/control.sock http://berth/status | jq -r "$1"; }
pid_of() { on "$1" systemctl show -P MainPID "berth-pair-$2"; }
# SED: b on the other host, where the router reaches it with a key
b_on_h2='s,  b: {host: h1,  b: {host: h2\, bind: 10.77.0.2\, key: /root/b.key,'
drained() { routed '[.services[] | select(.drained) | .name] | join(" ")'; }

ready() { routed '[.services[] | select(.state == "ready") | .name] | join(" ")'; }

# write_fleet [SED...]: two replicas on h1, changed as asked.
write_fleet() {
	cat >"$FLEET" <<'YAML'
version: 1
name: pair
hosts:
  h1: {ssh: h1, memory: 8GiB}
  h2: {ssh: h2, memory: 8GiB}
runtimes:
  llama: {engine: llama.cpp, source: "debian:forky", packages: [llama.cpp-tools, llama.cpp-tools-extra, libggml0-backend-rpc]}
models:
  tiny: {source: "file:/srv/models", weights: berth-tiny-f16.gguf}
services:
  a: {host: h1, runtime: llama, model: tiny, port: 7771, context: 2048, slots: 2, threads: 1, unit: systemd}
  b: {host: h1, runtime: llama, model: tiny, port: 7772, context: 2048, slots: 2, threads: 1, unit: systemd}
endpoints:
  both: {services: [a, b], aliases: [gpt-4o]}
router: {host: h1, listen: "10.77.0.1:8080", keys-file: /root/keys, unit: systemd}
YAML
	[ $# -eq 0 ] || sed -i "$@" "$FLEET"
}

# under_load CMD...: with clients at the router all the while. $load has what they got.
under_load() {
	local job
	rm -f "$LAB/stop"
	lab run python3 "$PWD/test/aids/redeploy_load.py" 10.77.0.1:8080 both "$(key)" "$LAB/stop" >"$LAB/load" 2>&1 &
	job=$!
	sleep 1
	run "$@"
	sleep 1
	touch "$LAB/stop"
	wait "$job" || { cat "$LAB/load"; return 1; }
	load=$(tail -n 1 "$LAB/load")
	echo "$load"
}

@test "the router is a unit: enabled, proven, and nothing to do the next time" {
	[ "$(ask_router)" = 200 ]
	[ "$(on h1 systemctl is-enabled berth-pair-router)" = enabled ]
	before=$(pid_of h1 router)
	run berth deploy
	echo "$output"
	[[ $output == *"h1: nothing to do"* ]]
	[ "$(pid_of h1 router)" = "$before" ]
}

@test "two replicas are deployed one at a time under load: nothing fails, no stream is cut" {
	before_a=$(pid_of h1 a) before_b=$(pid_of h1 b)
	write_fleet 's/threads: 1,/threads: 2,/'
	under_load berth deploy
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"3 started and proven"* ]]
	[ "$(pid_of h1 a)" != "$before_a" ]
	[ "$(pid_of h1 b)" != "$before_b" ]
	[[ $load == *" 0 failed, 0 cut, by replica "*'"a"'*'"b"'* ]]
	[ -z "$(drained)" ]
}

@test "a first replica that fails is put back, and the second is not touched" {
	before_b=$(pid_of h1 b)
	write_fleet 's/threads: 1,/threads: 2, args: [--no-such-flag],/'
	under_load berth deploy
	echo "$output"
	[ "$status" -eq 1 ]
	[[ $output == *"what was there before runs again"*"invalid argument: --no-such-flag"* ]]
	[ "$(pid_of h1 b)" = "$before_b" ]
	[[ $load == *" 0 failed, 0 cut, "* ]]
	[ -z "$(drained)" ]
	on h1 curl -sf http://127.0.0.1:7771/health
}

@test "what a service declares and does not do enters the version before again" {
	write_fleet 's/threads: 1,/threads: 1, serves: {tools: true},/'
	under_load berth deploy
	echo "$output"
	[ "$status" -eq 1 ]
	[[ $output == *"tool call: a tool that must be called was not"*"what was there before runs again"* ]]
	[[ $load == *" 0 failed, 0 cut, "* ]]
	on h1 sh -c 'tr "\0" " " </proc/$(systemctl show -P MainPID berth-pair-a)/cmdline' | grep -q -- ' -t 2 '
}

@test "replicas on two hosts, the router on one of them: nothing fails either" {
	write_fleet -e 's/threads: 1,/threads: 1, args: [--no-warmup],/' -e "$b_on_h2"
	# the key is on neither host yet: nothing is touched
	run berth deploy
	[ "$status" -ne 0 ]
	[[ $output == *"cannot read key file '/root/b.key'"* ]]
	(umask 077 && head -c 32 /dev/urandom | base64 >"$LAB/b.key")
	lab run scp -pq "$LAB/b.key" h1:/root/
	lab run scp -pq "$LAB/b.key" h2:/root/
	berth deploy
	[ "$(lab run curl -s -o /dev/null -w '%{http_code}' http://10.77.0.2:7772/slots)" = 401 ]
	on h2 sh -c '! grep -rqFf /root/b.key /etc/systemd/system && ! cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | tr "\\0" "\\n" | grep -qFf /root/b.key'
	for _ in $(seq 100); do [ "$(ready)" = "a b" ] && break; sleep 0.1; done
	before_a=$(pid_of h1 a) before_b=$(pid_of h2 b)
	write_fleet -e 's/threads: 1,/threads: 2,/' -e "$b_on_h2"
	under_load berth deploy
	echo "$output"
	[ "$status" -eq 0 ]
	[ "$(pid_of h1 a)" != "$before_a" ]
	[ "$(pid_of h2 b)" != "$before_b" ]
	# what asked before the stop whether it rests had the key: the one refusal is curl's
	[ "$(on h2 journalctl -u berth-pair-b -o cat | grep -c 'unauthorized')" = 1 ]
	[[ $load == *" 0 failed, 0 cut, by replica "*'"a"'*'"b"'* ]]
	[ -z "$(drained)" ]
}

@test "another fleet file and another build of berth: the router's process and its streams stay" {
	before=$(pid_of h1 router)
	upgrades=$(routed .upgrades)
	cp "$BERTH" "$LAB/berth"
	printf 'another build' >>"$LAB/berth"
	write_fleet -e 's/threads: 1,/threads: 2,/' -e "$b_on_h2" -e 's/aliases: .gpt-4o./aliases: [gpt-4o, gpt-5]/'
	under_load lab run "$LAB/berth" deploy -f "$FLEET"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"router: reload: fleet file changed, and another build of berth"* ]]
	[ "$(pid_of h1 router)" = "$before" ]
	[ "$(routed .upgrades)" = $((upgrades + 1)) ]
	[ "$(routed '.endpoints[0].aliases | join(" ")')" = "gpt-4o gpt-5" ]
	[[ $load == *" 0 failed, 0 cut, "* ]]
}

@test "a reboot: the router is back by itself" {
	lab power h1 reboot
	for _ in $(seq 200); do [ "$(ask_router)" = 200 ] && break; sleep 0.1; done
	[ "$(ask_router)" = 200 ]
}

@test "what answers on a unit's port and is not of it is believed in nothing" {
	write_fleet -e 's/threads: 1,/threads: 2,/' -e '/^models/ i\  own: {engine: generic, source: system}' -e '/^endpoints/ i\  g: {host: h1, runtime: own, port: 7779, command: [sleep, infinity], identity: /v1/models, unit: systemd}'
	cat >"$LAB/foreign" <<'EOT'
while read -r line && [ ${#line} -gt 1 ]; do :; done
body='{"data":[{"id":"g"}]}'
printf 'HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s' ${#body} "$body"
EOT
	printf '[Socket]\nListenStream=127.0.0.1:7779\nAccept=yes\n' >"$LAB/foreign.socket"
	printf '[Service]\nStandardInput=socket\nExecStart=/bin/sh /srv/foreign\n' >"$LAB/foreign@.service"
	lab run scp -q "$LAB/foreign" h1:/srv/
	lab run scp -q "$LAB/foreign.socket" "$LAB/foreign@.service" h1:/run/systemd/system/
	on h1 systemctl daemon-reload
	berth deploy >"$LAB/out" 2>&1 &
	job=$!
	for _ in $(seq 300); do on h1 systemctl is-active --quiet berth-pair-g && break; sleep 0.1; done
	on h1 systemctl start foreign.socket
	status=0
	wait "$job" || status=$?
	on h1 systemctl stop foreign.socket
	cat "$LAB/out"
	[ "$status" -eq 1 ]
	grep -q "what answers on port 7779 is systemd (pid 1), which is not of unit 'berth-pair-g.service'" "$LAB/out"
	on h1 sh -c '! test -e /etc/systemd/system/berth-pair-g.service'
}

@test "a router with TLS is asked over TLS; one that shows another certificate is believed in nothing" {
	certificate() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=router.example -keyout "$LAB/tls.key" -out "$LAB/tls.pem" 2>/dev/null && lab run scp -pq "$LAB/$1" "$LAB/${2:-$1}" h1:/root/; }
	tls() { write_fleet -e 's,keys-file,tls: {certificate: /root/tls.pem\, key: /root/tls.key}\, keys-file,' "$@"; }
	certificate tls.pem tls.key
	tls
	berth deploy h1
	[ "$(lab run curl -s --cacert "$LAB/tls.pem" --connect-to router.example:443:10.77.0.1:8080 -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $(key)" https://router.example/v1/models)" = 200 ]
	tls -e 's/threads: 1,/threads: 2,/'
	run berth deploy h1
	echo "$output"
	[ "$status" -eq 0 ]
	certificate tls.pem
	tls -e 's/threads: 1,/threads: 1, args: [--no-warmup],/'
	run berth deploy h1
	echo "$output"
	[ "$status" -eq 1 ]
	[[ $output == *"through the router: chat as 'both': no answer: '10.77.0.1:8080': "*"its certificate is not the one that it should have"*"what was there before runs again"* ]]
}
