#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# berth drill: no engine is needed, and nothing that the fleet names is touched.

load common

write_fleet() {
	fleet=$scratch/fleet.yaml
	cat >"$fleet" <<-EOT
		version: 1
		name: drilled
		runtimes:
		  own: {engine: llama.cpp, source: "path:$scratch/nowhere"}
		models:
		  m: {source: "file:$scratch", weights: m.gguf}
		services:
		  alpha: {runtime: own, model: m, port: 17770, context: 4096, slots: 2}
		  beta: {runtime: own, model: m, port: 17771, context: 4096, slots: 1}
		  gamma: {runtime: own, model: m, port: 17772, context: 4096}
		endpoints:
		  medium: {services: [alpha, beta, gamma], policy: ${1:-adaptive}, aliases: [gpt-4o]}
		  small: {services: [gamma]}
		router: {listen: "127.0.0.1:18080"}
	EOT
}

@test "every case passes, at each endpoint" {
	write_fleet
	run_split "$BERTH" drill -f "$fleet"
	echo "$output"
	[ "$status" -eq 0 ]
	[ -z "$errors" ]
	[[ $output == ENDPOINT*FAILURE*RESULT*medium*refused*passed*small*"unknown model"*passed*"59 passed, 0 failed, 1 skipped" ]]
	[ "$(wc -L <<<"$output")" -le 100 ]
	[ ! -e "$BERTH_STATE" ]
	[ ! -e "$BERTH_RUN" ]
}

@test "a fleet whose clients need keys is drilled with a key of the drill's own" {
	write_fleet
	sed -i 's/^router: {/router: {keys-file: keys, cors: ["https:\/\/chat.example"], /' "$fleet"
	run_split "$BERTH" drill --json -f "$fleet"
	[ "$status" -eq 0 ]
	jq -e '.failed == 0 and .passed == 59' <<<"$output"
	[ ! -e "$scratch/keys" ]
}

@test "repeats, as JSON" {
	write_fleet hash
	run_split "$BERTH" drill --repeat 3 --json -f "$fleet"
	[ "$status" -eq 0 ]
	jq -e '.failed == 0 and .passed == 59 and ([.cases[] | select(.result == "passed") | .runs] | unique) == [3] and (.cases[0] | .mean_ms > 0 and .max_ms >= .mean_ms)' <<<"$output"
}

@test "a number of repeats that is none: exit 2" {
	write_fleet
	for n in 0 -1 x 1001; do
		run_split "$BERTH" drill --repeat="$n" -f "$fleet"
		[ "$status" -eq 2 ]
	done
}
