#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# What a deploy brings to a host and what it leaves there: models from a hub, keys of engines, copies of berth.

bats_require_minimum_version 1.5.0
load common

teardown() {
	[ -z "${hub_pid:-}" ] || stop_hub
}

# A hub in h1's own network, with a model that the fleet below names. Its token is hf_SECRETSECRET.
start_hub() { # [OPTIONS...]
	mkdir -p "$LAB/root/org/tiny"
	cp assets/tiny/berth-tiny-q8_0.gguf "$LAB/root/org/tiny/"
	# bytes behind the tensors are no fault of a model, and take a while
	head -c 20000000 /dev/urandom >>"$LAB/root/org/tiny/berth-tiny-q8_0.gguf"
	touch "$LAB/root/org/tiny/.private"
	mkfifo "$LAB/in" "$LAB/hub"
	FAKE_HUB_TOKEN=hf_SECRETSECRET lab net h1 "${BERTH%/*}/aids/fake_hub" "$LAB/root" "$@" <"$LAB/in" >"$LAB/hub" 3>&- &
	hub_pid=$!
	exec 8>"$LAB/in" 9<"$LAB/hub"
	read -r hub_port _ <&9
	export HF_ENDPOINT=http://127.0.0.1:$hub_port
}

stop_hub() {
	exec 8>&- 9<&-
	wait "$hub_pid" || true
	hub_pid=
	rm -rf "$LAB/in" "$LAB/hub" "$LAB/root"
}

hub_fleet() {
	write_fleet -e 's|^  tiny: .*|&\n  far: {source: "hf:org/tiny", weights: berth-tiny-q8_0.gguf}|' -e 's/model: tiny/model: far/'
}

stat_of() { lab net h1 curl -sf "$HF_ENDPOINT/_stats" | awk -v n="$1" '$1 == n {print $2}'; }

@test "a pinned model that a host has not got is fetched there, goes on after a cut, and the token is nowhere" {
	settle
	before=$(pid_of h1 a)
	start_hub --rate 4000000
	hub_fleet
	HF_TOKEN=hf_SECRETSECRET lab net h1 "$BERTH" lock -f "$FLEET" far
	lab net h1 curl -sf "$HF_ENDPOINT/_zero" >/dev/null
	run berth plan
	[[ $output == *"files of model 'far' are not there, and are fetched first"* ]]
	HF_TOKEN=hf_SECRETSECRET berth deploy >"$LAB/out" 2>&1 3>&- &
	job=$!
	for _ in $(seq 200); do [ "$(stat_of bytes)" -gt 8000000 ] && break; sleep 0.05; done
	# while it comes the old one serves, and the token is in nobody's words or first environment over there
	[ "$(pid_of h1 a)" = "$before" ]
	answers h1 7771 a
	words=$(on h1 sh -c 'cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr "\0" " "')
	[[ $words == *"_apply deploy"* && $words == *--secrets* && $words != *SECRETSECRET* ]]
	# a second deploy keeps off
	run berth deploy
	[ "$status" -eq 1 ]
	[[ $output == *"another deploy of fleet 'home' is at work on this machine"* ]]
	on h1 pkill -9 -f ' _apply deploy'
	wait "$job" || true
	[ "$(pid_of h1 a)" = "$before" ]
	# without the token it cannot go on, and says what is missing; nothing was touched
	run env -u HF_TOKEN test/hosts/lab run "$LAB/hosts" env -u HF_TOKEN "HOME=$LAB/nobody" "$BERTH" deploy -f "$FLEET"
	echo "$output"
	[ "$status" -eq 1 ]
	[[ $output == *"401"* && $output == *"not all files of its models could be fetched"* ]]
	[ "$(pid_of h1 a)" = "$before" ]
	HF_TOKEN=hf_SECRETSECRET run berth deploy
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"1 started and proven"* ]]
	answers h1 7771 a
	# all of it went out once, but for what was in flight at the cut
	[ "$(stat_of bytes)" -lt $((20000000 + 12000000)) ]
	run on h1 grep -rl SECRETSECRET /var/lib/berth /etc/systemd /root /run/berth /tmp
	[ "$output" = "" ]
	run on h1 journalctl --no-pager -o cat
	[[ $output != *SECRETSECRET* ]]
}

@test "a key is in no unit, argument or variable, and the engine wants it; one that anybody may read is refused" {
	settle
	on h1 sh -c 'echo sk-SECRETSECRET >/root/a.key && chmod 644 /root/a.key'
	words='["/usr/bin/llama-server", "--port", "{port}", "--host", "{bind}", "-m", "{model}", "--alias", "k", "-c", "512", "--api-key-file", "{credential:api}"]'
	with_key() {
		write_fleet -e "/^  llama:/ a\\  any: {engine: generic, source: \"debian:forky\", packages: [llama.cpp-tools, llama.cpp-tools-extra, libggml0-backend-rpc]}" \
			-e "\$ a\\  k: {host: h1, runtime: any, model: tiny, port: 7777, unit: systemd, command: $words, credentials: {api: /root/a.key}}"
	}
	with_key
	run berth deploy
	echo "$output"
	[ "$status" -eq 1 ]
	[[ $output == *"'/root/a.key' of credential 'api' can be read by everybody: 'chmod 600' it"* ]]
	on h1 chmod 600 /root/a.key
	run berth deploy
	echo "$output"
	[ "$status" -eq 0 ]
	asked() { on h1 curl -s -o /dev/null -w '%{http_code}' "$@" -d '{"prompt": "a", "n_predict": 1}' http://127.0.0.1:7777/completion; }
	[ "$(asked)" = 401 ]
	[ "$(asked -H 'Authorization: Bearer sk-SECRETSECRET')" = 200 ]
	on h1 systemctl show berth-home-k >"$LAB/shown"
	on h1 sh -c 'cat /proc/$(systemctl show -P MainPID berth-home-k)/environ /proc/$(systemctl show -P MainPID berth-home-k)/cmdline' | tr '\0' ' ' >>"$LAB/shown"
	on h1 cat /etc/systemd/system/berth-home-k.service >>"$LAB/shown"
	grep -q 'LoadCredential=api:/root/a.key' "$LAB/shown"
	run grep -c SECRETSECRET "$LAB/shown"
	[ "$output" = 0 ]
	write_fleet
	berth deploy
}

@test "older copies of berth go, but one that is young or runs; of the trash the last 20 stay" {
	settle
	on h1 sh -c 'cd /var/lib/berth/fleets/home && mkdir -p trash && cd trash && for i in $(seq 10 39); do mkdir -p "20250101T0000${i}Z"; done'
	on h1 sh -c 'cd /var/lib/berth/bin && mkdir old young used && cp /usr/bin/sleep used/ && touch -d "-1 day" old used'
	on h1 systemd-run --quiet --unit=user-of-copy /var/lib/berth/bin/used/sleep 600
	write_fleet 's/slots: 2/slots: 1/'
	berth deploy
	run on h1 ls /var/lib/berth/bin
	on h1 systemctl stop user-of-copy
	echo "$output"
	[[ $output == *young* && $output == *used* && $output != *old* ]]
	[ "$(on h1 sh -c 'ls /var/lib/berth/fleets/home/trash | wc -l')" -eq 20 ]
	on h1 grep -rq berth-home-a /var/lib/berth/fleets/home/trash
	on h1 sh -c 'test -d /var/lib/berth/fleets/home/trash/20250101T000039Z && ! test -e /var/lib/berth/fleets/home/trash/20250101T000010Z'
	[ "$(on h1 sh -c 'ls -d /var/lib/berth/bin/*/berth | wc -l')" -eq 1 ]
	on h1 /var/lib/berth/bin/berth --version
}
