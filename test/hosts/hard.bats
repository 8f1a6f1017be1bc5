#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# Hosts and people that are not as one would like them: odd login shells, two who deploy at once, a person who gives up, copies that a power cut has spoiled.

bats_require_minimum_version 1.5.0
load common

teardown() {
	on h1 sed -i '/^root:/ s#:[^:]*$#:/bin/bash#' /etc/passwd
}

shell_of_root() { on h1 sed -i "/^root:/ s#:[^:]*\$#:$1#" /etc/passwd; }

idle() { for _ in $(seq 300); do on h1 pgrep -f ' _apply deploy' >/dev/null || return 0; sleep 0.1; done; return 1; }

# Folders of errands that were made since $LAB/began, on this machine; what errands leave on h1.
left_here() { find /tmp -maxdepth 1 -name 'berth-ssh-*' -newer "$LAB/began" -exec grep -ls '^name: home$' '{}/fleet/fleet.yaml' \; ; }
left_there() { on h1 find /var/lib/berth/fleets/home /var/lib/berth/bin /var/lib/berth/store/debs -maxdepth 1 -name 'incoming.*' -o -maxdepth 1 -name '.in.*' -o -maxdepth 1 -name '*.??????'; }

@test "a login shell that talks is no hindrance, one that runs nothing is told" {
	settle
	on h1 sh -c 'printf "#!/bin/sh\necho Welcome to h1\necho\n[ \"\$1\" = -c ] && exec /bin/sh -c \"\$2\"\n" >/usr/local/bin/talks && chmod 755 /usr/local/bin/talks'
	shell_of_root /usr/local/bin/talks
	write_fleet 's/slots: 2/slots: 1/'
	run --separate-stderr berth deploy --json
	[ "$status" -eq 0 ]
	[ "$(python3 -c 'import json, sys; print([h["started"] for h in json.load(sys.stdin)])' <<<"$output")" = "[1, 0]" ]
	run berth status
	[[ $output == *" ready "* ]]
	shell_of_root /usr/sbin/nologin
	run berth plan h1
	[ "$status" -eq 1 ]
	[[ $output == *"host 'h1': reaching the host failed: exit 1: This account is currently not available."* ]]
}

@test "of two who deploy at once the second is refused, and the first one's fleet is what is kept" {
	settle
	mkdir -p "$LAB/other"
	write_fleet 's/context: 512/context: 256/'
	cp "$FLEET" "$LAB/other/fleet.yaml"
	write_fleet 's/slots: 2/slots: 1/'
	# the proof of this one takes until the engine goes on
	berth deploy h1 >"$LAB/out" 2>&1 3>&- &
	job=$!
	for _ in $(seq 200); do grep -q 'is being proven' "$LAB/out" && break; sleep 0.05; done
	on h1 systemctl kill --signal=STOP berth-home-a
	run lab run "$BERTH" deploy h1 -f "$LAB/other/fleet.yaml"
	echo "$output"
	[ "$status" -eq 1 ]
	[[ $output == *"another deploy of fleet 'home' is at work on this machine"* ]]
	lab run "$BERTH" plan h1 -f "$LAB/other/fleet.yaml"
	on h1 systemctl kill --signal=CONT berth-home-a
	wait "$job"
	cmp "$FLEET" <(on h1 cat /var/lib/berth/fleets/home/versions/current/fleet.yaml)
	[ -z "$(left_there)" ]
}

@test "who is interrupted here leaves nothing here, and what ran there runs" {
	settle
	before=$(pid_of h1 a)
	touch "$LAB/began"
	for sig in INT TERM HUP; do
		# so that there is something to break off
		on h1 sh -c 'rm -f /var/lib/berth/bin/*/berth'
		lab run setsid python3 -c 'import signal, os, sys
for s in (signal.SIGINT, signal.SIGHUP): signal.signal(s, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])' "$BERTH" deploy h1 -f "$FLEET" >"$LAB/out" 2>&1 3>&- &
		job=$!
		for _ in $(seq 200); do grep -q 'is copied there' "$LAB/out" && break; sleep 0.02; done
		pkill "-$sig" -f "^$BERTH deploy h1 -f $FLEET"
		rc=0
		wait "$job" || rc=$?
		cat "$LAB/out"
		[ "$rc" -gt 128 ]
		grep -q "berth deploy: host 'h1': copying berth: interrupted" "$LAB/out"
		idle
		[ -z "$(left_here)" ]
		for _ in $(seq 50); do [ -z "$(left_there)" ] && break; sleep 0.1; done
		[ -z "$(left_there)" ]
	done
	[ "$(pid_of h1 a)" = "$before" ]
	run berth deploy h1
	[ "$status" -eq 0 ]
}

@test "what a killed berth left here goes with the next errand" {
	settle
	mkdir -p /tmp/berth-ssh-teste1/bundle
	touch -d '-2 minutes' /tmp/berth-ssh-teste1
	berth plan
	[ ! -e /tmp/berth-ssh-teste1 ]
}

@test "a copy of berth that a power cut has spoiled is brought again" {
	settle
	on h1 sh -c 'for f in /var/lib/berth/bin/*/berth; do : >"$f"; done'
	run berth plan
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"h1: berth is copied there"* ]]
	on h1 /var/lib/berth/bin/berth --version
}

@test "a second Ctrl-C does not break the way back off" {
	settle
	write_fleet 's/slots: 2/slots: 1/'
	berth deploy h1 >"$LAB/out" 2>&1 3>&- &
	job=$!
	for _ in $(seq 200); do grep -q 'is being proven' "$LAB/out" && break; sleep 0.02; done
	for _ in $(seq 20); do on h1 pkill -INT -f ' _apply deploy' || break; sleep 0.1; done
	rc=0
	wait "$job" || rc=$?
	cat "$LAB/out"
	[ "$rc" -eq 1 ]
	grep -q 'interrupted; what was there before runs again' "$LAB/out"
	answers h1 7771 a
	on h1 curl -sf http://127.0.0.1:7771/props | grep -q '"total_slots":2'
}

@test "a rollback enters what was in force before, whatever its number" {
	settle
	slots() { on h1 curl -sf http://127.0.0.1:7771/props | grep -q "\"total_slots\":$1"; }
	write_fleet 's/context: 512/context: 640/'
	berth deploy
	write_fleet 's/slots: 2/slots: 1/'
	berth deploy
	write_fleet 's/context: 512/context: 640/'
	berth deploy
	slots 2
	berth rollback h1
	slots 1
	# what was rolled back from is no step of the way
	berth rollback h1
	write_fleet -e 's/slots: 2/slots: 1/' -e 's/context: 512/context: 768/'
	berth deploy
	berth rollback h1
	slots 2
	on h1 grep -q -e '-c 640' /etc/systemd/system/berth-home-a.service
}

@test "two services that swap their ports are told how, with nothing touched" {
	settle
	write_fleet '$ a\  b: {host: h1, runtime: llama, model: tiny, port: 7772, context: 512, unit: systemd}'
	berth deploy h1
	before=$(pid_of h1 a)-$(pid_of h1 b)
	write_fleet -e 's/port: 7771/port: 7772/' -e '$ a\  b: {host: h1, runtime: llama, model: tiny, port: 7771, context: 512, unit: systemd}'
	run berth deploy h1
	echo "$output"
	[ "$status" -eq 1 ]
	[[ $output == *"port of 'a': port 7772 is held by service 'b' until this deploy comes to it: deploy in two steps"* ]]
	[ "$(pid_of h1 a)-$(pid_of h1 b)" = "$before" ]
}

@test "a word that is no host: a service's name, a misspelling, nothing at all" {
	run berth deploy a
	[ "$status" -eq 2 ]
	[[ $output == *"'a' is a service, and whole hosts are meant here: 'berth deploy h1' is for the one that it is on"* ]]
	run berth rollback h11
	[ "$status" -eq 2 ]
	[[ $output == *"fleet 'home' has no host 'h11', nor a service of that name; did you mean 'h1'?"* ]]
	run berth plan h1 elsewhere
	[ "$status" -eq 2 ]
	[[ $output == *"'hosts' of the fleet file lists them"* ]]
}
