#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# berth check: every broken fleet file is refused with the place and the message that its first line tells, by every command that reads one.

load common

# Columns and wrapped lines as one line.
flat() {
	tr -s ' \n' ' ' <<<"$1"
}

@test "every broken fleet file: exit 2, FILE:LINE:COLUMN: the message, nothing on stdout" {
	n=0
	for f in test/fleet/bad/*.yaml; do
		expect=$(sed -n '1s/^# expect: //p' "$f")
		[ -n "$expect" ] || { echo "$f says nothing of what it expects"; false; }
		run_split "$BERTH" check -f "$f"
		if [ "$status" -ne 2 ] || [ "$errors" != "berth check: $f:$expect" ] || [ -n "$output" ]; then
			printf '%s\n exit %s\n want %s\n got  %s\n' "$f" "$status" "berth check: $f:$expect" "$errors"
			false
		fi
		n=$((n + 1))
	done
	[ "$n" -ge 30 ]
}

@test "up refuses a broken fleet file and makes nothing" {
	f=$(find test/fleet/bad -name '*.yaml' | sort | head -n 1)
	run_split "$BERTH" up -f "$f"
	[ "$status" -eq 2 ]
	[[ $errors == "berth up: $f:"* ]]
	[ ! -e "$BERTH_RUN" ]
}

@test "a fleet file that is not there: exit 2 and what to do" {
	cd "$scratch"
	run_split "$BERTH" check
	[ "$status" -eq 2 ]
	[[ $errors == "berth check: "*"fleet.yaml"*"-f FILE"* ]]
	run_split "$BERTH" check -f nowhere.yaml
	[ "$status" -eq 2 ]
	[[ $errors == *"nowhere.yaml"* ]]
}

@test "the demo fleet: files and flags hold, the runtime is unproven until it is installed" {
	run_split "$BERTH" check -f examples/demo.yaml
	[ "$status" -eq 0 ]
	[[ $output == *"ok"*"file"*"fleet demo"* ]]
	[[ $output == *"ok"*"payload"*"model tiny"* ]]
	[[ $(flat "$output") == *"unproven runtime runtime llama not installed; 'berth up' or 'berth runtime add' installs it"* ]]
	[[ $output == *"ok"*"argv"*"2 services"* ]]
	run_split "$BERTH" check -f examples/demo.yaml --all
	[[ $output == *"ok"*"argv"*"service alpha"*"ok"*"argv"*"service beta"* ]]
	[ "$(awk '{if (length($0) > n) n = length($0)} END {print n}' <<<"$output")" -le 80 ]
}

@test "--json is an array of contracts with stable names" {
	run_split "$BERTH" check -f examples/demo.yaml --json
	[ "$status" -eq 0 ]
	python3 - "$output" <<-'EOT'
		import json, sys
		rows = json.loads(sys.argv[1])
		assert all(set(r) == {"contract", "subject", "verdict", "text", "where", "why", "fix"} for r in rows), rows
		assert {r["contract"] for r in rows} >= {"file", "payload", "runtime", "argv"}, rows
		assert {r["verdict"] for r in rows} <= {"ok", "unproven", "does-not-apply"}, rows
		assert all(r["why"] and not r["fix"] for r in rows), rows
	EOT
}

@test "a missing payload breaks its contract: exit 1, the path is named" {
	sed "s|file:../assets/tiny|file:$scratch|" examples/demo.yaml >"$scratch/fleet.yaml"
	run_split "$BERTH" check -f "$scratch/fleet.yaml"
	[ "$status" -eq 1 ]
	[[ $output == *"BROKEN"*"payload"*"model tiny"*"see below"*"payload: model tiny"*"what"*"$scratch/berth-tiny"*"where"*"$scratch/fleet.yaml:15"*"why"*"fix"* ]]
	[ "$errors" = "berth check: 1 of 29 contracts of fleet 'demo' is broken" ] || { echo "$errors"; false; }
}

@test "what no service of this machine uses is not asked for, beside an engine without a model" {
	cat >"$scratch/fleet.yaml" <<-EOT
		version: 1
		name: f
		hosts:
		  here: {floor: 0}
		  far: {ssh: op@far.example}
		runtimes:
		  own: {engine: generic, source: system}
		  spare: {engine: llama.cpp, source: "path:$scratch/spare"}
		  theirs: {engine: llama.cpp, source: "path:$scratch/theirs"}
		models:
		  m: {source: "file:$scratch", weights: m.gguf}
		  spare: {source: "file:$scratch", weights: spare.gguf}
		services:
		  a: {host: here, runtime: own, port: 7770, command: [serve]}
		  b: {host: far, runtime: theirs, model: m, port: 7771}
	EOT
	run_split "$BERTH" check -f "$scratch/fleet.yaml"
	output=$(flat "$output")
	[[ $output == *"- runtime runtime spare no service uses it"* ]]
	[[ $output == *"unproven runtime runtime theirs used on other hosts only"* ]]
	[[ $output == *"- payload model spare no service uses it"* ]]
	[[ $output == *"unproven payload model m used on other hosts only"* ]]
}

@test "--list names every contract and how it is proven, also without a fleet; a contract by name alone; a name that is none" {
	cd "$scratch"
	run_split "$BERTH" check --list
	[ "$status" -eq 0 ]
	[[ $output == *"limits "*"what clients are told fits into a slot"* ]]
	[ "$(awk '{if (length($0) > n) n = length($0)} END {print n}' <<<"$output")" -le 80 ]
	run_split "$BERTH" check --list --json
	python3 -c 'import json, sys; rows = json.loads(sys.argv[1]); assert len(rows) == 29 and all(set(r) == {"contract", "says", "how", "why", "fix"} and all(r.values()) for r in rows), rows' "$output"
	cd - >/dev/null
	run_split "$BERTH" check ports reach -f examples/demo.yaml --json
	[ "$status" -eq 0 ]
	[ "$(python3 -c 'import json, sys; print(*dict.fromkeys(r["contract"] for r in json.loads(sys.argv[1])))' "$output")" = "ports reach" ]
	run_split "$BERTH" check prots -f examples/demo.yaml
	[ "$status" -eq 2 ]
	[[ $errors == *"there is no contract 'prots'; did you mean 'ports'?"* ]]
}
