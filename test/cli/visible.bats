#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# What a terminal would obey is shown and not sent: escapes, controls of both sets, turns of the direction of writing, bytes that are no UTF-8. Whatever says it: the command line, a path, a file, another host.

load common

# ESC, the one-byte CSI of the second set, a carriage return, RIGHT-TO-LEFT OVERRIDE, a stray byte.
bad=$'a\e[31mb\u009bc\rd\u202ee\xfff'

# True when the file has nothing in it that a terminal obeys, but ends of lines.
harmless() {
	python3 - "$1" <<-'EOT'
		import sys
		text = open(sys.argv[1], "rb").read().decode("utf-8")
		bad = [c for c in text if c != "\n" and (ord(c) < 32 or 0x7F <= ord(c) <= 0x9F or c in "\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")]
		sys.exit(f"{bad!r} in {text!r}" if bad else 0)
	EOT
}

@test "words of the command line, in every command that takes them" {
	for c in check fit inspect status logs plan deploy rollback history pull verify lock doctor render up down restart reload route drill top bench docs key init; do
		"$BERTH" "$c" "$bad" -f "$scratch/none.yaml" >"$scratch/out" 2>&1 </dev/null && continue
		harmless "$scratch/out" || { echo "berth $c"; false; }
		"$BERTH" "$c" "--$bad" >"$scratch/out" 2>&1 </dev/null && continue
		harmless "$scratch/out" || { echo "berth $c --"; false; }
		"$BERTH" "$c" -f "$scratch/$bad" >"$scratch/out" 2>&1 </dev/null && continue
		harmless "$scratch/out" || { echo "berth $c -f"; false; }
	done
	"$BERTH" "$bad" >"$scratch/out" 2>&1 && false
	harmless "$scratch/out"
	"$BERTH" help "$bad" >"$scratch/out" 2>&1 && false
	harmless "$scratch/out"
}

@test "a folder's name, in errors, tables and JSON" {
	dir=$scratch/$'a\e[31m\u009b\u202e'
	mkdir "$dir"
	printf 'version: 1\nname: f\nruntimes:\n  own: {engine: generic, source: system}\nservices:\n  a: {runtime: own, port: 7770, command: [/bin/true], documents: 1}\n' >"$dir/fleet.yaml"
	run_split "$BERTH" check -f "$dir/fleet.yaml"
	[ "$status" -eq 2 ]
	harmless "$scratch/stderr"
	[[ $errors == *'\x1b[31m'* ]]
	sed -i 's/, documents: 1//' "$dir/fleet.yaml"
	"$BERTH" check -f "$dir/fleet.yaml" --all >"$scratch/out" 2>&1 || true
	harmless "$scratch/out"
	"$BERTH" check -f "$dir/fleet.yaml" --json >"$scratch/out"
	harmless "$scratch/out"
	# the escapes are JSON's own: nothing is lost
	python3 - "$scratch/out" "$dir" <<-'EOT'
		import json, sys
		rows = json.load(open(sys.argv[1]))
		assert any(r["where"] and r["where"].startswith(sys.argv[2]) for r in rows), rows
	EOT
}

@test "a value of the fleet file that is refused is quoted, and only shown" {
	printf 'version: 1\nname: f\nruntimes:\n  own: {engine: "gen\\e[31m\\u202eric", source: system}\n' >"$scratch/fleet.yaml"
	run_split "$BERTH" check -f "$scratch/fleet.yaml"
	[ "$status" -eq 2 ]
	harmless "$scratch/stderr"
}
