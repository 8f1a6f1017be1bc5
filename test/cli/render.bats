#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# Units of services, as this machine's systemd reads them. That they run is for the tests on real hosts.

load common

fleet() {
	cat >"$scratch/fleet.yaml" <<'YAML'
version: 1
name: home
runtimes:
  own: {engine: generic, source: system}
services:
  child: {runtime: own, port: 7771, command: [/bin/true]}
  plain: {runtime: own, port: 7772, unit: systemd, command: [/bin/echo, "100% of $HOME", 'a"b', 'c\d', "{port}"]}
YAML
}

@test "a unit is what systemd accepts, and every word arrives as it was written" {
	command -v systemd-analyze >/dev/null || skip "no systemd-analyze"
	fleet
	"$BERTH" runtime add -f "$scratch/fleet.yaml" >/dev/null 2>&1
	run "$BERTH" render units -f "$scratch/fleet.yaml" --out "$scratch/units" --verify
	[ "$status" -eq 0 ] || { echo "$output"; false; }
	[ "$(ls "$scratch/units")" = berth-home-plain.service ]
	grep -qx 'ExecStart=/bin/echo "100%% of $$HOME" "a\\"b" "c\\\\d" 7772' "$scratch/units/berth-home-plain.service" || { cat "$scratch/units/berth-home-plain.service"; false; }
}

@test "a container of another program: its words as they are, its model and its credential shown to it" {
	fleet
	sed -i -e "s|^services:|models:\n  tiny: {source: \"file:$PWD/assets/tiny\", weights: berth-tiny-f16.gguf}\n&|" -e "/^runtimes/ a\\  img: {engine: generic, source: \"oci:localhost/p@sha256:$(printf 'a%.0s' $(seq 64))\"}" "$scratch/fleet.yaml"
	echo '  box: {runtime: img, model: tiny, port: 7773, unit: quadlet, command: [/bin/run, -m, "{model}", --key, "{credential:api}"], credentials: {api: /etc/k}}' >>"$scratch/fleet.yaml"
	run "$BERTH" render units box -f "$scratch/fleet.yaml"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"Exec=/bin/run -m $PWD/assets/tiny/berth-tiny-f16.gguf --key /run/credentials/api"* ]]
	[[ $output == *"Volume=/etc/k:/run/credentials/api:ro"* && $output != *"Volume=/bin"* ]]
}

@test "a child is no unit; a fleet without units says so" {
	fleet
	run "$BERTH" render units child -f "$scratch/fleet.yaml"
	[ "$status" -eq 2 ]
	[[ $output == *"service 'child' is a child of 'berth up'"* ]]
	sed -i /plain/d "$scratch/fleet.yaml"
	run "$BERTH" render units -f "$scratch/fleet.yaml"
	[ "$status" -eq 2 ]
	[[ $output == *"no service of fleet 'home' is a unit"* ]]
	run "$BERTH" render dashboards -f "$scratch/fleet.yaml"
	[ "$status" -eq 2 ]
	[[ $output == *"cannot render 'dashboards'"* ]]
}

clients() {
	cat >"$scratch/fleet.yaml" <<YAML
version: 1
name: home
runtimes:
  llama: {engine: llama.cpp, source: system}
models:
  tiny: {source: "file:$PWD/assets/tiny", weights: berth-tiny-f16.gguf, reasoning: {low: low, high: xhigh}}
services:
  a: {runtime: llama, model: tiny, port: 7770, context: 2048, slots: 2}
clients:
  oc: {format: opencode, file: c/oc.json, key-env: BERTH_KEY}
  co: {format: continue, file: c/co.yaml}
  ai: {format: aider, file: c/ai.json}
  li: {format: litellm, file: c/li.yaml, output: 200, compact: 50}
  js: {format: json, file: c/js.json}
YAML
}

@test "files of clients: the window is one slot's, the answer is what shortening leaves, keys are named and never written" {
	clients
	run_split "$BERTH" render clients --write -f "$scratch/fleet.yaml"
	[ "$status" -eq 0 ] || { echo "$errors"; false; }
	python3 - "$scratch/c" <<-'EOT'
		import json, sys
		d = sys.argv[1]
		p = json.load(open(d + "/oc.json"))["provider"]["home"]
		assert p["options"] == {"baseURL": "http://127.0.0.1:8080/v1", "apiKey": "{env:BERTH_KEY}"}, p
		m = p["models"]["a"]
		assert m["limit"] == {"context": 1024, "output": 308}, m
		assert m["modalities"]["input"] == ["text"] and m["variants"]["high"] == {"reasoningEffort": "xhigh"}, m
		a = json.load(open(d + "/ai.json"))["openai/a"]
		assert (a["max_input_tokens"], a["max_output_tokens"]) == (716, 308), a
		j = json.load(open(d + "/js.json"))
		assert j["models"]["a"]["compact_at"] == 716 and j["key_env"] is None, j
	EOT
	grep -q 'contextLength: 1024' "$scratch/c/co.yaml"
	grep -q 'max_input_tokens: 824' "$scratch/c/li.yaml"
	run_split "$BERTH" check clients limits modalities reasoning -f "$scratch/fleet.yaml"
	[ "$status" -eq 0 ] || { echo "$output"; false; }
}

@test "a client's file that differs is only replaced when that is asked for; one alone can be redirected" {
	clients
	"$BERTH" render clients oc -f "$scratch/fleet.yaml" >"$scratch/oc.json"
	python3 -m json.tool "$scratch/oc.json" >/dev/null
	mkdir "$scratch/c"
	echo mine >"$scratch/c/oc.json"
	run_split "$BERTH" render clients oc --write -f "$scratch/fleet.yaml"
	[ "$status" -eq 1 ]
	[[ $errors == *"oc.json' is there and differs"* ]]
	[ "$(cat "$scratch/c/oc.json")" = mine ]
	# what was there stays, with its rights and owner
	chmod 600 "$scratch/c/oc.json"
	[ "$(id -u)" -ne 0 ] || chown 4711:4712 "$scratch/c/oc.json"
	owner=$(stat -c %u:%g:%a "$scratch/c/oc.json")
	run_split "$BERTH" render clients oc --write --replace -f "$scratch/fleet.yaml"
	[ "$status" -eq 0 ]
	cmp "$scratch/c/oc.json" "$scratch/oc.json"
	[ "$(stat -c %u:%g:%a "$scratch/c/oc.json")" = "$owner" ]
	[ "$(cat "$scratch/c/oc.json~")" = mine ]
	[ "$(stat -c %a "$scratch/c/oc.json~")" = 600 ]
	# again: nothing differs, and nothing is made
	rm "$scratch/c/oc.json~"
	run_split "$BERTH" render clients oc --write --replace -f "$scratch/fleet.yaml"
	[ "$status" -eq 0 ] && [ ! -e "$scratch/c/oc.json~" ]
	# a link stays a link
	mv "$scratch/c/oc.json" "$scratch/real.json" && ln -s ../real.json "$scratch/c/oc.json" && echo old >"$scratch/real.json"
	run_split "$BERTH" render clients oc --write --replace -f "$scratch/fleet.yaml"
	[ "$status" -eq 0 ] && [ -L "$scratch/c/oc.json" ]
	cmp "$scratch/real.json" "$scratch/oc.json"
	run_split "$BERTH" render clients nobody -f "$scratch/fleet.yaml"
	[ "$status" -eq 2 ]
	[[ $errors == *"no client 'nobody'"* ]]
	sed -i 's/output: 200, compact: 50/output: 600/' "$scratch/fleet.yaml"
	run_split "$BERTH" render clients li -f "$scratch/fleet.yaml"
	[ "$status" -eq 1 ]
	[[ $errors == *"an answer of 600 tokens does not fit behind 70 % of the 1024 that a slot of 'a' holds; at most 308 do"* ]]
}

@test "a client's file as editors leave it: byte order mark, comments, commas at ends; what is broken has its line" {
	clients
	"$BERTH" render clients --write -f "$scratch/fleet.yaml" 2>/dev/null
	f=$scratch/c/oc.json
	{ printf '\xef\xbb\xbf// mine: "a [[[{{{\n/* "quoted" ]] */'; sed 's/}$/},/; $s/,$//' "$f"; } >"$scratch/new" # every object ends in a comma
	sed -i ':a;N;$!ba;s/},\(\n *}\)/}, \/\/ last\1/g' "$scratch/new"
	mv "$scratch/new" "$f"
	run_split "$BERTH" check clients limits modalities reasoning -f "$scratch/fleet.yaml"
	[ "$status" -eq 0 ] || { echo "$output"; cat "$f"; false; }
	echo '"oops' >>"$f"
	run_split "$BERTH" check clients -f "$scratch/fleet.yaml"
	[ "$status" -eq 1 ]
	[[ $output == *"oc.json"* ]]
}
