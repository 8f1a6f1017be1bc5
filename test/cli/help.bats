#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# Help, man pages and usage errors: one source, one form, 80 columns.

load common

@test "without a command the list goes to stderr, exit 2" {
	run_split "$BERTH"
	[ "$status" -eq 2 ]
	[ -z "$output" ]
	[[ $errors == "Usage: berth COMMAND"* ]]
}

@test "berth -h, --help and help print the same list to stdout" {
	run_split "$BERTH" -h
	[ "$status" -eq 0 ]
	[ -z "$errors" ]
	[ "$output" = "$("$BERTH" help)" ]
	[ "$output" = "$("$BERTH" --help)" ]
	[[ $output == *"  up "* && $output == *"  runtime "* ]]
}

@test "--version names the program and a version" {
	run_split "$BERTH" --version
	[ "$status" -eq 0 ]
	[[ $output =~ ^berth\ [0-9]+\.[0-9]+\.[0-9]+$ ]]
}

@test "each command's help: stdout, exit 0, synopsis first, at most 79 columns" {
	[ "$("$BERTH" help --list | wc -l)" -ge 9 ]
	for c in $("$BERTH" help --list); do
		run_split "$BERTH" "$c" -h
		[ "$status" -eq 0 ]
		[ -z "$errors" ]
		[[ $output == "Usage: berth $c "* ]]
		[ "$output" = "$("$BERTH" help "$c")" ]
		[ "$output" = "$("$BERTH" "$c" --help)" ]
		while IFS= read -r line; do
			[ "${#line}" -le 79 ] || { echo "$c: $line"; false; }
		done <<<"$output"
	done
	while IFS= read -r line; do
		[ "${#line}" -le 79 ]
	done < <("$BERTH" help)
}

@test "each man page: renders without a warning and has the help's synopsis and options" {
	command -v man >/dev/null || skip "man-db is not installed"
	for c in $("$BERTH" help --list); do
		"$BERTH" help --man "$c" >"$scratch/$c.1"
		run env MANROFFSEQ='' MANWIDTH=200 LC_ALL=C.UTF-8 man --warnings -E UTF-8 -l -Tutf8 "$scratch/$c.1"
		[ "$status" -eq 0 ]
		[[ $output != *warning* ]]
		page=$(sed 's/.\x08//g; s/\x1b\[[0-9;]*m//g' <<<"$output" | tr -s ' \n' ' ')
		synopsis=$("$BERTH" "$c" -h | sed -n '1s/^Usage: //p')
		[[ $page == *"SYNOPSIS $synopsis DESCRIPTION"* ]] || { echo "$c: $synopsis"; false; }
		for option in $("$BERTH" "$c" -h | sed -n 's/^  \(-., \|    \)\(--[a-z-]*\).*/\2/p'); do
			[[ $page == *"$option"* ]] || { echo "$c: $option"; false; }
		done
	done
}

@test "berth(1) lists every command" {
	run_split "$BERTH" help --man
	[ "$status" -eq 0 ]
	[[ $output == *".SH DESCRIPTION"*"fleet.yaml"*".SH COMMANDS"* ]]
	for c in $("$BERTH" help --list); do
		[[ $output == *".BR berth\\-$c (1)"* ]]
	done
}

@test "paragraphs stay apart, in help and man page; examples are filled again behind" {
	[[ $("$BERTH" status -h) == *"worker started"*$'\n\n--json prints'*$'\n\nA fleet that is not up'* ]]
	for c in $("$BERTH" help --list); do
		"$BERTH" help --man "$c" >"$scratch/$c.1"
		[ "$(grep -c '^\.nf$' "$scratch/$c.1")" = "$(grep -c '^\.fi$' "$scratch/$c.1")" ]
	done
	[ "$(sed -n '/^.SH DESCRIPTION/,/^.SH OPTIONS/p' "$scratch/status.1" | grep -c '^\.PP$')" -ge 2 ]
}

@test "a misspelt command is told the nearest one" {
	run_split "$BERTH" stauts
	[ "$status" -eq 2 ]
	[ "$errors" = "berth: there is no command 'stauts'; did you mean 'berth status'?" ]
	run_split "$BERTH" qqqqqq
	[ "$status" -eq 2 ]
	[ "$errors" = "berth: there is no command 'qqqqqq'; 'berth help' lists them" ]
}

@test "a misspelt option is told the nearest one" {
	run_split "$BERTH" check --jsn
	[ "$status" -eq 2 ]
	[ "$errors" = "berth check: unknown option '--jsn'; did you mean '--json'?" ]
	run_split "$BERTH" check -q
	[ "$status" -eq 2 ]
	[ "$errors" = "berth check: unknown option '-q'; see 'berth check -h'" ]
}

@test "an option without its value, with one too many, a word too many" {
	run_split "$BERTH" check -f
	[ "$status" -eq 2 ]
	[ "$errors" = "berth check: option '--file' needs a value (FILE); see 'berth check -h'" ]
	run_split "$BERTH" check --json=yes
	[ "$status" -eq 2 ]
	[ "$errors" = "berth check: option '--json' takes no value; see 'berth check -h'" ]
	run_split "$BERTH" reload now
	[ "$status" -eq 2 ]
	[ "$errors" = "berth reload: takes no words: 'now'; see 'berth reload -h'" ]
	run_split "$BERTH" check big.yaml
	[ "$status" -eq 2 ]
	[ "$errors" = "berth check: takes no word 'big.yaml'; did you mean '-f big.yaml'?" ]
}

@test "option forms are the same: -f X, -fX, --file X, --file=X, and -- ends options" {
	for form in "-f /nowhere/x.yaml" "-f/nowhere/x.yaml" "--file /nowhere/x.yaml" "--file=/nowhere/x.yaml"; do
		# shellcheck disable=SC2086 # two words
		run_split "$BERTH" check $form
		[ "$status" -eq 2 ]
		[[ $errors == *"/nowhere/x.yaml"* ]]
	done
	run_split "$BERTH" reload -- -f
	[ "$status" -eq 2 ]
	[ "$errors" = "berth reload: takes no words: '-f'; see 'berth reload -h'" ]
}

@test "a closed stdout is an exit code, not a crash" {
	run bash -c "\"$BERTH\" help >&-"
	[ "$status" -eq 1 ]
}

@test "hidden commands are not listed" {
	run_split "$BERTH" help --list
	[[ $output != *_route* ]]
}

@test "a host that is given as a word; a history that is empty" {
	run_split "$BERTH" doctor big
	[ "$status" -eq 2 ]
	[ "$errors" = "berth doctor: takes no word 'big'; did you mean '--host big'?" ]
	printf 'version: 1\nname: empty\nruntimes: {r: {engine: generic, source: system}}\nservices: {a: {runtime: r, port: 7970, command: [x]}}\n' >"$scratch/f.yaml"
	run_split "$BERTH" history -f "$scratch/f.yaml"
	[ "$status" -eq 0 ]
	[ "$output" = "nothing of this fleet was deployed here" ]
}
