#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# What is asked of systemctl and made of its answers, whatever they are: another program of that name stands in front.

load common

# A fleet of so many units, and a systemctl that counts its calls and answers by the function of that name in the file.
make_units() {
	mkdir -p "$scratch/bin" "$scratch/home"
	export HOME=$scratch/home XDG_CONFIG_HOME=$scratch/home/.config BERTH_CONFIG=$scratch/home/.config/berth
	{
		printf 'version: 1\nname: many\nhosts:\n  big: {scope: user}\nruntimes:\n  own: {engine: generic, source: system}\nservices:\n'
		for i in $(seq "$1"); do printf '  s%d: {host: big, runtime: own, port: %d, command: [/bin/true], unit: systemd}\n' "$i" $((4000 + i)); done
	} >"$scratch/fleet.yaml"
	cat >"$scratch/bin/systemctl" <<-'EOT'
		#!/bin/bash
		here=${0%/*}
		echo "$*" >>"$here/calls"
		while [ "$1" != -- ]; do shift; done
		shift
		source "$here/answer"
	EOT
	chmod 755 "$scratch/bin/systemctl"
	export PATH=$scratch/bin:$PATH
}

states() {
	"$BERTH" status --json -f "$scratch/fleet.yaml" 2>/dev/null | python3 -c 'import json, sys; print(*sorted({s["state"] for s in json.load(sys.stdin)["services"]}))'
}

@test "units are asked about together, and each gets its own answer" {
	make_units 150
	cat >"$scratch/bin/answer" <<-'EOT'
		first=1
		for u; do
			[ -n "$first" ] || echo
			first=
			case $u in
			*-s7.service) printf 'LoadState=loaded\nActiveState=failed\nMainPID=0\n' ;;
			*-s70.service) printf 'LoadState=loaded\nActiveState=inactive\nMainPID=0\n' ;;
			*) printf 'LoadState=not-found\nActiveState=inactive\nMainPID=0\n' ;;
			esac
		done
	EOT
	"$BERTH" status --json -f "$scratch/fleet.yaml" >"$scratch/json" 2>/dev/null
	[ "$(wc -l <"$scratch/bin/calls")" -eq 3 ] || { cut -c1-200 "$scratch/bin/calls"; false; }
	python3 - "$scratch/json" <<-'EOT'
		import json, sys
		by = {s["name"]: s["state"] for s in json.load(open(sys.argv[1]))["services"]}
		assert by.pop("s7") == "failed", by
		assert by.pop("s70") == "stopped", by
		assert set(by.values()) == {"absent"} and len(by) == 148, by
	EOT
}

@test "answers that are none: too few, too many, none, noise, a flood, an error with escapes; nothing is guessed" {
	make_units 3
	printf "printf 'LoadState=loaded\\\\nActiveState=failed\\\\n'\n" >"$scratch/bin/answer"
	[ "$(states)" = unknown ]
	printf 'for i in 1 2 3 4; do printf "LoadState=loaded\\n\\n"; done\n' >"$scratch/bin/answer"
	[ "$(states)" = unknown ]
	: >"$scratch/bin/answer"
	[ "$(states)" = unknown ]
	printf 'head -c 200000 /dev/urandom\n' >"$scratch/bin/answer"
	states | grep -qx -e unknown -e absent # noise may hold two empty lines, and then says nothing
	printf 'yes MainPID=999999999999999999999 | head -c 3000000\n' >"$scratch/bin/answer"
	[ "$(states)" = unknown ]
	printf 'printf "\\033[31mno\\033]0;x\\a bus\\nmore\\n" >&2; exit 1\n' >"$scratch/bin/answer"
	[ "$(states)" = unknown ]
	run_split "$BERTH" status -f "$scratch/fleet.yaml"
	# where systemd does not run at all, that is said in place of its words
	[ ! -d /run/systemd/system ] || [[ $output == *'\x1b[31mno\x1b]0;x\x07 bus'* ]]
	[[ $output != *$'\e'* ]]
	run_split "$BERTH" plan -f "$scratch/fleet.yaml"
	[ "$status" -eq 1 ]
	[[ $errors$output != *$'\e'* ]]
	for v in 'MainPID=-1' 'MainPID=99999999999999999999' 'NRestarts=x' 'ExecMainStartTimestamp=@' 'FragmentPath='"$(printf 'a%.0s' {1..9000})" 'InvocationID='"$(printf 'b%.0s' {1..900})"; do
		printf 'for i in 1 2 3; do printf "LoadState=loaded\\nActiveState=active\\n%s\\n\\n"; done\n' "$v" >"$scratch/bin/answer"
		"$BERTH" status --json -f "$scratch/fleet.yaml" 2>/dev/null | python3 -c 'import json, sys; assert len(json.load(sys.stdin)["services"]) == 3'
	done
}
