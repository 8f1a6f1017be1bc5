#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# Every example is a fleet file that berth accepts, and the README's own one too; files that a person must fetch are named with where to get them.

load common

@test "each example is usable: check ends with 0 or 1, never 2" {
	n=0
	for f in examples/*.yaml examples/boxes/*.yaml; do
		run_split "$BERTH" check -f "$f"
		[ "$status" -le 1 ] || { echo "$errors"; false; }
		[[ $output == *"file"*"fleet "* ]]
		n=$((n + 1))
	done
	[ "$n" -ge 4 ]
}

@test "each example that the README lists is there, and the other way round" {
	for f in examples/*.yaml; do
		grep -qF "[$f]($f)" README.md
	done
	while read -r f; do
		[ -f "$f" ]
	done < <(grep -oE '\]\((docs|examples)/[^)]+\)' README.md | tr -d ']()')
}

@test "the README's fleet is usable, and check says what fetches its model" {
	sed -n '/^```yaml$/,/^```$/p' README.md | grep -v '^```' >"$scratch/fleet.yaml"
	run_split "$BERTH" check -f "$scratch/fleet.yaml"
	[ "$status" -eq 1 ]
	output=$(tr -s ' \n' ' ' <<<"$output")
	[[ $output == *"'berth pull "*"' fetches it to "* ]]
	[[ $output == *"$BERTH_STATE/store/payloads/"*"Qwen3-8B-Q4_K_M.gguf"* ]]
}
