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
