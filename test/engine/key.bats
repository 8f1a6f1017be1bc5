#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# An engine that other machines can reach: it asks for its key, the router shows it, nobody else learns it.

load common

# The fleet of one service that listens on every address of this machine; its key is in $scratch/key.
write_wide() {
	write_fleet
	key=K-$(head -c 18 /dev/urandom | od -An -tx1 | tr -d ' \n')
	(umask 077 && echo "$key" >"$scratch/key")
	sed -i -E "s|port: $port_b,|bind: 0.0.0.0, key: $scratch/key, port: $port_b,|; s|services: \[alpha, beta\]|services: [beta]|" "$fleet"
}

code() { curl -sS -o /dev/null -w '%{http_code}' --max-time 60 "$@"; }
chat='{"model":"beta","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}'

@test "an engine with a key: 401 without it at every address, and it answers through the router" {
	write_wide
	bring_up
	[[ $output == *"beta"*"ready"* ]]
	for host in 127.0.0.1 $(hostname -I | grep -oE '^[0-9.]+'); do
		[ "$(code "http://$host:$port_b/v1/chat/completions" -d "$chat")" = 401 ]
		[ "$(code "http://$host:$port_b/v1/chat/completions" -d "$chat" -H 'Authorization: Bearer K-of-somebody')" = 401 ]
		[ "$(code "http://$host:$port_b/v1/chat/completions" -d "$chat" -H "Authorization: Bearer $key")" = 200 ]
	done
	ask "What is a slot?" -H 'Authorization: Bearer K-of-a-client' -o "$scratch/body"
	jq -e '.choices[0].message.content | test("[a-z]{3}")' "$scratch/body"
	run_split "$BERTH" check --live --json -f "$fleet"
	[ "$(jq -r '.[] | select(.contract == "live" and (.subject == "service beta" or .subject == "endpoint tiny")) | .verdict' <<<"$output")" = $'ok\nok' ]
	[[ $output$errors != *"$key"* ]]
	# nothing that people or other processes can see has it
	[ -z "$(cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -aFf "$scratch/key")" ]
	[ -z "$(cat /proc/[0-9]*/environ 2>/dev/null | tr '\0' ' ' | grep -aFf "$scratch/key")" ]
	[ -z "$(grep -raFf "$scratch/key" "$BERTH_STATE/fleets/$name" "$BERTH_RUN")" ]
	[[ $("$BERTH" status --json -f "$fleet") != *"$key"* ]]
	id=$(sed -nE 's/^x-berth-request-id: *([^[:space:]]*).*/\1/Ip' <(ask hi -D - -o /dev/null))
	[[ $("$BERTH" route explain "$id" --json -f "$fleet") != *"$key"* ]]
	# another life has it too
	kill -9 "$(status_of beta pid)"
	wait_for 30 restarted
	ask "What is a slot?" -o "$scratch/body"
	jq -e '.choices[0].message.content | test("[a-z]{3}")' "$scratch/body"
}

restarted() { [ "$(status_of beta restarts)" = 1 ] && is_state beta ready; }

@test "a key file that others may read, that is empty or not there: nothing is started" {
	write_wide
	chmod 644 "$scratch/key"
	run_split "$BERTH" up -d -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $errors == *"key file '$scratch/key' can be read or written by others (mode 644); chmod 600 '$scratch/key'"* ]]
	(umask 077 && : >"$scratch/key.new" && mv "$scratch/key.new" "$scratch/key")
	run_split "$BERTH" up -d -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $errors == *"key file '$scratch/key' is empty"* ]]
	rm "$scratch/key"
	run_split "$BERTH" up -d -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $errors == *"cannot read key file '$scratch/key'"* ]]
}

@test "a router with another key than the engine: it says so, and the service is not ready until the files are the same" {
	write_wide
	bring_up
	sed -e "s|name: $name|name: $name-r|" -e "s|127.0.0.1:$router_port|127.0.0.1:$spare_port|" -e "s|key: $scratch/key|key: $scratch/other|" "$fleet" >"$scratch/route.yaml"
	(umask 077 && echo K-another-one-entirely >"$scratch/other")
	"$BERTH" route -f "$scratch/route.yaml" >"$scratch/out" 2>&1 3>&- &
	leftovers+=($!)
	wait_for 20 grep -q "it does not take the key in .$scratch/other." "$scratch/out" || { cat "$scratch/out"; "$BERTH" status -f "$scratch/route.yaml"; false; }
	far() { "$BERTH" status --json -f "$scratch/route.yaml" | jq -r '.services[] | select(.name == "beta") | .state'; }
	[ "$(far)" = "wrong key" ]
	[ "$(code "http://127.0.0.1:$spare_port/v1/chat/completions" -d "${chat/beta/tiny}")" = 503 ]
	(umask 077 && cp "$scratch/key" "$scratch/other")
	is_ready() { [ "$(far)" = ready ]; }
	wait_for 20 is_ready
	[ "$(code "http://127.0.0.1:$spare_port/v1/chat/completions" -d "${chat/beta/tiny}")" = 200 ]
}
