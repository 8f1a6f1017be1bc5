#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# What the predictor says against what the real engine says, to the byte: a sample of the grid that `make check-fit` walks whole.

setup_file() {
	cd "$BATS_TEST_DIRNAME/../.." || return 1
	export BUILD=${BUILD:-build}
}

@test "weights, KV, indexer, state and output are the engine's to the byte" {
	[ "$(uname -m)" = x86_64 ] || skip "the observer is for x86-64"
	run test/fit/run --sample
	echo "$output"
	[ "$status" -eq 0 ]
	[[ "$output" =~ ([0-9]+)\ of\ ([0-9]+)\ cells\ exact ]]
	[ "${BASH_REMATCH[1]}" -eq "${BASH_REMATCH[2]}" ]
	[ "${BASH_REMATCH[1]}" -ge 150 ]
}

@test "a wrong byte is seen: the comparison fails when the prediction is of other flags" {
	[ "$(uname -m)" = x86_64 ] || skip "the observer is for x86-64"
	shim=$BATS_TEST_TMPDIR/predict
	printf '#!/bin/sh\nsed "s/\\t-ub\\t/\\t-b\\t/; s/\\t-c\\t4096/\\t-c\\t8192/" | "%s/aids/fitpredict"\n' "$(realpath "$BUILD")" >"$shim"
	chmod +x "$shim"
	run test/fit/run --sample --only '^(llama-dense|gemma3-dense)' --predict "$shim"
	echo "$output"
	[ "$status" -eq 1 ]
	[[ "$output" == *"off: "*"llama-dense.gguf"*"KV cache"*"engine"* ]]
}
