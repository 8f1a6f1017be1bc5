#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# Measuring with the real engine: the program of unit tests that skips them where no runtime is installed runs here with one.

load common

@test "what the engine says of hollow models and of a real start" {
	write_fleet
	"$BERTH" runtime add -f "$fleet"
	run env -u CMOCKA_MESSAGE_OUTPUT BUILD="$(dirname "$BERTH")" BERTH_TEST_STATE="$BERTH_STATE" timeout 300 "$(dirname "$BERTH")/test/test_measure_engine"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output != *SKIPPED* ]]
}

# Measures in a state folder of its own, until its folders are there.
begin_measuring() {
	"$BERTH" fit -f "$fleet" alpha --measure >/dev/null 2>&1 3>&- &
	measuring=$!
	leftovers+=("$measuring")
	for _ in $(seq 2000); do
		! compgen -G "$BERTH_STATE/measure/measure-work-*" >/dev/null || return 0
		sleep 0.01
	done
	return 1
}

@test "a measurement that is ended clears away; what a killed one left is gone with the next" {
	write_fleet
	"$BERTH" runtime add -f "$fleet"
	mkdir "$scratch/state"
	cp -a "$BERTH_STATE/store" "$scratch/state/store"
	export BERTH_STATE=$scratch/state
	begin_measuring
	kill -TERM "$measuring"
	status=0
	wait "$measuring" || status=$?
	[ "$status" -eq 143 ]
	[ -z "$(ls "$BERTH_STATE/measure")" ]
	begin_measuring
	kill -KILL "$measuring"
	wait "$measuring" || true
	[ -n "$(ls "$BERTH_STATE/measure")" ]
	"$BERTH" fit -f "$fleet" alpha --measure
	[ -z "$(ls "$BERTH_STATE/measure")" ]
}
