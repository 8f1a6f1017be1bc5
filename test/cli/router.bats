#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# The router in front of replicas that fail as they are told, as a process under its supervisor.

load common

setup_file() { export BERTH=${BERTH:-$PWD/build/berth}; }

@test "router: no fault of a replica is seen by a client before content" {
	run python3 perf/router_faults.py matrix 3
	[ "$status" -eq 0 ]
	[ "$(awk '$3 == 0' <<<"$output" | wc -l)" -eq 12 ]
}

@test "router: a client that leaves ends its request at the replica in every phase" {
	run python3 perf/router_faults.py cancel 3
	[ "$status" -eq 0 ]
}

@test "router: connections that a replica closes are no errors" {
	run python3 perf/router_faults.py stale 200
	[ "$status" -eq 0 ]
}

@test "router: replicas are killed for 30 s under load: nobody sees it before content, and nothing is left" {
	run python3 test/aids/kill_loop.py 30
	echo "$output"
	[ "$status" -eq 0 ]
}
