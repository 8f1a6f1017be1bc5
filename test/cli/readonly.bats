#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# Commands that only ask (fit, check, init --print) where nothing can be written: without a state folder, and with one that is read-only, whose ledger is read all the same.

load common

box=examples/boxes/two-r9700-27b.yaml

headers() {
	mkdir -p "$scratch/h"
	"${BERTH%/*}/aids/fitmodels" --out "$scratch/h" qwen38-27b qwen38-27b-dflash2 >/dev/null
}

# Runs a command that sees $BERTH_STATE as a read-only file system: in a mount namespace, of a user namespace of its own where we are not root.
read_only() {
	# shellcheck disable=SC2016
	run_split unshare -rm sh -c 'mount --bind "$BERTH_STATE" "$BERTH_STATE" && mount -o remount,bind,ro "$BERTH_STATE" && ! touch "$BERTH_STATE/x" 2>/dev/null && exec "$@"' sh "$@"
}

@test "without a state folder nothing is measured, and none is made" {
	headers
	export BERTH_STATE=$scratch/none/state
	"${BERTH%/*}/mkmodel" "$scratch/m.gguf" >/dev/null
	run_split "$BERTH" fit -f $box --headers "$scratch/h"
	[ "$status" -eq 0 ]
	[ -z "$errors" ]
	[[ $output == "big: fits: "* ]]
	run_split "$BERTH" fit -f $box --headers "$scratch/h" --table split
	[ "$status" -eq 0 ]
	run_split "$BERTH" check -f $box --headers "$scratch/h"
	[[ $output == *" fit "*"service medium"* ]]
	run_split "$BERTH" init --print "$scratch/m.gguf"
	[ "$status" -eq 0 ]
	[[ $output == *"$scratch"* ]]
	[ ! -e "$scratch/none" ]
}

@test "a read-only state folder: its ledger is read, what would write to it says why not" {
	unshare -rm true || skip "no mount namespaces here"
	headers
	"$BERTH" fit -f $box --headers "$scratch/h" --known-bad "drafts stop at noon"
	"${BERTH%/*}/mkmodel" "$scratch/m.gguf" >/dev/null
	read_only "$BERTH" fit -f $box --headers "$scratch/h"
	[[ $(tr -s ' \n' ' ' <<<"$output") == *"drafts stop at noon"* ]]
	[[ $errors != *ledger* ]]
	read_only "$BERTH" check -f $box --headers "$scratch/h"
	[[ $output == *" fit "*"service medium"* ]]
	[[ $errors != *ledger* ]]
	read_only "$BERTH" init --print "$scratch/m.gguf"
	[ "$status" -eq 0 ]
	read_only "$BERTH" fit -f $box --headers "$scratch/h" --known-bad "again"
	[ "$status" -eq 1 ]
	[[ $errors == *"ledger"*"may not be written"* ]]
	[ "$(ls "$BERTH_STATE")" = "$(printf '%s\n' ledger.db store)" ]
}
