#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# berth doctor on recorded machines: what it prints, its exit codes, cards into the fleet file, proofs of collectives.

load common

machine() { # NAME: BERTH_HW_ROOT is that machine
	export BERTH_HW_ROOT=$scratch/machine
	test/hw/unpack "test/hw/$1.tree" "$BERTH_HW_ROOT"
}

# A fleet with one service; its hosts part is on stdin.
fleet() {
	{
		printf 'version: 1\nname: home   # mine\n'
		cat
		printf 'runtimes:\n  llama: {engine: llama.cpp, source: system}\nmodels:\n  m: {source: "file:models", weights: m.gguf}\nservices:\n  s: {runtime: llama, model: m, port: 7770}\n'
	} >"$scratch/fleet.yaml"
}

@test "a machine with something bad: exit 1, the worst first, within 80 columns" {
	machine riser
	cd "$scratch"
	run_split "$BERTH" doctor
	[ "$status" -eq 1 ]
	[ -z "$errors" ]
	[[ $output == *"0000:03:00.0  Radeon AI PRO R9700  31.86 GiB  3.86 GiB  gen5 x16 63.0 GB/s"* ]]
	[[ $(grep -m1 -E '^(bad|warn|note)' <<<"$output") == "bad   log  0000:03:00.0" ]]
	[[ $output == *"      do  update kernel and firmware"* ]]
	while IFS= read -r line; do
		[ "${#line}" -le 80 ] || { echo "$line"; false; }
	done <<<"$output"
}

@test "a machine with warnings only: exit 0; -v shows each bridge" {
	machine chipset-x4
	cd "$scratch"
	run_split "$BERTH" doctor
	[ "$status" -eq 0 ]
	[[ $output == *"warn  atomics  0000:0c:00.0"* ]]
	[[ $output != *BRIDGE* ]]
	run_split "$BERTH" doctor -v
	[ "$status" -eq 0 ]
	[[ $output == *"0000:04:00.0  up    gen4 x4   gen4 x4   hands on none"* ]]
	[[ $output == *"0000:00:01.1  root  gen4 x16  gen5 x16  carries out"* ]]
	while IFS= read -r line; do
		[ "${#line}" -le 80 ] || { echo "$line"; false; }
	done <<<"$output"
}

@test "an ordinary virtual machine: nothing is wrong with having no card" {
	machine bare
	cd "$scratch"
	run_split "$BERTH" doctor
	[ "$status" -eq 0 ]
	[[ $output == *"there is no card that engines compute on"* ]]
}

@test "--json: the same facts" {
	machine chipset-x4
	cd "$scratch"
	run_split "$BERTH" doctor --json
	[ "$status" -eq 0 ]
	[ "$(jq -r .worst <<<"$output")" = warn ]
	[ "$(jq -r '.devices[1].atomics_stop_at' <<<"$output")" = 0000:04:00.0 ]
	[ "$(jq -r '.devices[0].atomics' <<<"$output")" = through ]
	[ "$(jq -r '.devices[1].narrowest | "\(.at) \(.width) \(.bytes_s)"' <<<"$output")" = "0000:00:02.1 4 7876923076" ]
	[ "$(jq -r '.devices[1].way | length' <<<"$output")" = 6 ]
	[ "$(jq -r '.devices[0].firmware.mes' <<<"$output")" = 0x00000084 ]
	[ "$(jq -r '[.findings[] | select(.level == "warn")] | length' <<<"$output")" = 1 ]
}

@test "this very machine can be looked at" {
	cd "$scratch"
	run_split "$BERTH" doctor --json
	[ "$status" -le 1 ]
	[ "$(jq -r '.machine.memory_bytes > 0' <<<"$output")" = true ]
	[ "$(jq -r '.findings | length > 0' <<<"$output")" = true ]
}

@test "--write: cards into the fleet file, every other byte as it was" {
	machine chipset-x4
	fleet <<<$'hosts:\n  here:\n    floor: 2GiB   # of each'
	cp "$scratch/fleet.yaml" "$scratch/before"
	run_split "$BERTH" doctor --write --dry-run -f "$scratch/fleet.yaml"
	[ "$status" -eq 0 ]
	[[ $output == *'+      - {name: Vulkan1, memory: 24560MiB, pci: "0000:0c:00.0", link: 7.9GB/s}'* ]]
	[[ $output == *"would be changed so" ]]
	cmp "$scratch/before" "$scratch/fleet.yaml"
	chmod 640 "$scratch/fleet.yaml"
	run_split "$BERTH" doctor --write -f "$scratch/fleet.yaml"
	[ "$status" -eq 0 ]
	[ "$(stat -c %a "$scratch/fleet.yaml")" = 640 ]
	[ "$(diff "$scratch/before" "$scratch/fleet.yaml")" = "$(printf '4a5,7\n>     devices:\n>       - {name: Vulkan0, memory: 24560MiB, pci: "0000:03:00.0", link: 31.5GB/s}\n>       - {name: Vulkan1, memory: 24560MiB, pci: "0000:0c:00.0", link: 7.9GB/s}')" ]
	run_split "$BERTH" doctor --write -f "$scratch/fleet.yaml"
	[ "$status" -eq 0 ]
	[ "$output" = "the fleet file says what is here: nothing to write" ]
	run_split "$BERTH" doctor -f "$scratch/fleet.yaml"
	[[ $output == "here: AMD Ryzen 9 7950X"* ]]
	[[ $output != *inventory* ]]
}

@test "--write refuses an ambiguous place, and says where" {
	machine chipset-x4
	fleet <<<'hosts: {here: {floor: 2GiB}}'
	cp "$scratch/fleet.yaml" "$scratch/before"
	run_split "$BERTH" doctor --write -f "$scratch/fleet.yaml"
	[ "$status" -eq 2 ]
	[[ $errors == *"fleet.yaml:3: the host is written in one line"* ]]
	cmp "$scratch/before" "$scratch/fleet.yaml"
}

@test "drift: a card that is gone is bad" {
	machine one-3090
	fleet <<<$'hosts:\n  here:\n    devices:\n      - {name: CUDA0, memory: 24GiB, pci: "0000:02:00.0"}'
	run_split "$BERTH" doctor -f "$scratch/fleet.yaml"
	[ "$status" -eq 1 ]
	[[ $output == *"is declared at 0000:02:00.0 and is not there"* ]]
}

@test "--prove: records what a test of collectives proved, and nothing else" {
	machine two-r9700
	cd "$scratch"
	run_split "$BERTH" doctor
	[[ $output == *"unproven: no collective has run on these cards"* ]]
	cat >"$scratch/one" <<-'END'
		#!/bin/sh
		echo '#  Rank  0 Group  0 Pid 1 on box device  0 [0000:03:00] AMD'
		echo '# Out of bounds values : 0 OK'
		echo '# Avg bus bandwidth    : 6.5'
	END
	sed '2a echo "#  Rank  1 Group  0 Pid 1 on box device  1 [0000:07:00] AMD"' "$scratch/one" >"$scratch/all_reduce_perf"
	printf '#!/bin/sh\necho no device >&2\nexit 3\n' >"$scratch/broken"
	chmod +x "$scratch/one" "$scratch/all_reduce_perf" "$scratch/broken"
	run_split "$BERTH" doctor --prove -- "$scratch/one"
	[ "$status" -eq 1 ]
	[[ $errors == *"nothing is proven: the test did not run on 0000:07:00.0"* ]]
	run_split "$BERTH" doctor --prove -- "$scratch/broken"
	[ "$status" -eq 1 ]
	[[ $errors == *"failed: exit 3: no device"* ]]
	run_split "$BERTH" doctor -v
	[[ $output == *unproven* ]]
	run_split "$BERTH" doctor --prove -- "$scratch/all_reduce_perf" -g 2
	[ "$status" -eq 0 ]
	[ "$output" = "collectives are proven on these cards: 6.5 GB/s, by all_reduce_perf" ]
	run_split "$BERTH" doctor -v
	[[ $output != *unproven* ]]
	[[ $output == *"ok    collectives  proven on exactly these cards"* ]]
}

@test "usage: words that do not belong together" {
	cd "$scratch"
	for words in "--prove" "all_reduce_perf" "--host big --write" "--dry-run"; do
		# shellcheck disable=SC2086 # several words
		run_split "$BERTH" doctor $words
		[ "$status" -eq 2 ]
	done
	run_split "$BERTH" doctor --write
	[ "$status" -eq 2 ]
	[[ $errors == *fleet.yaml* ]]
}

@test "--host: another machine's report, made by berth's copy there" {
	[ "$(id -u)" -eq 0 ] || skip "the copy goes to /var/lib/berth"
	unshare -m true 2>/dev/null || skip "no mount namespace here"
	machine riser
	fleet <<<$'hosts:\n  here: {floor: 1GiB}\n  big: {ssh: op@big, scope: system}'
	sed -i 's/s: {runtime/s: {host: here, runtime/' "$scratch/fleet.yaml"
	# an ssh that stays here: its last word is the command
	mkdir "$scratch/bin"
	cat >"$scratch/bin/ssh" <<-'END'
		#!/bin/sh
		case "$*" in *"-O exit"*) exit 0 ;; esac
		for word; do command=$word; done
		exec sh -c "$command"
	END
	chmod +x "$scratch/bin/ssh"
	mkdir -p /var/lib/berth
	PATH=$scratch/bin:$PATH run_split unshare -m sh -c 'mount -t tmpfs none /var/lib/berth && exec "$@"' sh "$BERTH" doctor --host big -f "$scratch/fleet.yaml"
	[ "$status" -eq 1 ]
	[[ $output == "big: AMD Ryzen Threadripper 7960X"* ]]
	[[ $output == *"bad   log  0000:03:00.0"* ]]
	run_split "$BERTH" doctor --host bog -f "$scratch/fleet.yaml"
	[ "$status" -eq 2 ]
}

@test "a proof for which there are no two cards makes nothing" {
	run_split "$BERTH" doctor --prove -- /bin/true
	[ "$status" -eq 1 ]
	[[ $errors == *"no two cards here"* ]]
	[ ! -e "$BERTH_STATE" ]
}
