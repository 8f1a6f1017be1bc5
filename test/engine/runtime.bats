#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# Runtimes from Debian's packages, for real: installed, proven, damaged, interrupted; and the three ways an engine is confined, by root and by an account without rights.

load common

packages=(llama.cpp-tools llama.cpp-tools-extra libggml0-backend-rpc)

# A state of this test's own, whose packages are already fetched.
own_state() {
	"$BERTH" runtime add debian:forky "${packages[@]}" >/dev/null
	mkdir -p "$scratch/state/store"
	cp -a "$BERTH_STATE/store/debs" "$scratch/state/store/"
	export BERTH_STATE=$scratch/state
}

@test "installing is a no-op the second time, and every file is proven" {
	run_split "$BERTH" runtime add debian:forky "${packages[@]}"
	[ "$status" -eq 0 ] || { echo "$errors"; false; }
	id=$output
	[[ $id == llama.cpp-0.7.0* ]]
	before=$(find "$BERTH_STATE/store/runtimes/$id" -printf '%p %C@\n' | sort | sha256sum)
	run_split "$BERTH" runtime add debian:forky "${packages[@]}"
	[ "$status" -eq 0 ]
	[ "$output" = "$id" ]
	[ "$(find "$BERTH_STATE/store/runtimes/$id" -printf '%p %C@\n' | sort | sha256sum)" = "$before" ]
	run_split "$BERTH" runtime verify "$id"
	[ "$status" -eq 0 ]
	"$BERTH" runtime list --json | python3 -c '
import json, sys
r = [x for x in json.load(sys.stdin) if x["id"] == sys.argv[1]][0]
assert r["engine"] == "llama.cpp" and r["source"] == "debian:forky" and r["complete"] and r["files"] > 100, r' "$id"
}

@test "the tree has the engine and every library it needs, and nothing of it in the system" {
	id=$("$BERTH" runtime add debian:forky "${packages[@]}")
	tree=$BERTH_STATE/store/runtimes/$id/tree
	[ -x "$tree/usr/bin/llama-server" ]
	run chroot "$tree" /usr/bin/llama-server --version
	[ "$status" -eq 0 ]
	[ ! -e /usr/bin/llama-server ]
	[ -z "$(find "$tree" -perm /6000)" ]
}

@test "a removed one comes back offline from its packages; without them offline is exit 1" {
	own_state
	run_split "$BERTH" runtime add --offline debian:forky "${packages[@]}"
	if [ "$status" -ne 0 ]; then # the record of what the names resolve to is made by the first install
		"$BERTH" runtime add debian:forky "${packages[@]}"
		id=$("$BERTH" runtime list --json | python3 -c 'import json,sys; print(json.load(sys.stdin)[0]["id"])')
		"$BERTH" runtime remove "$id"
		run_split "$BERTH" runtime add --offline debian:forky "${packages[@]}"
	fi
	[ "$status" -eq 0 ] || { echo "$errors"; false; }
	rm -rf "$BERTH_STATE/store"
	run_split "$BERTH" runtime add --offline debian:forky "${packages[@]}"
	[ "$status" -eq 1 ]
	[[ $errors == *offline* ]]
	[ "$("$BERTH" runtime list --json)" = "[]" ]
}

@test "no network: exit 1, one clear error, nothing left" {
	export BERTH_STATE=$scratch/empty
	run_split unshare --net "$BERTH" runtime add debian:forky "${packages[@]}"
	[ "$status" -eq 1 ]
	[[ $errors == *"cannot reach the mirror"* ]] || { echo "$errors"; false; }
	[ "$("$BERTH" runtime list --json)" = "[]" ]
	[ -z "$(ls -A "$BERTH_STATE/store/runtimes")" ]
}

@test "apt sources without a Debian mirror: the error says to name one" {
	command -v mount >/dev/null || skip "no mount"
	export BERTH_STATE=$scratch/empty
	: >"$scratch/none"
	run_split unshare --mount sh -c 'mount -t tmpfs tmpfs /etc/apt/sources.list.d
		[ ! -e /etc/apt/sources.list ] || mount --bind "$1" /etc/apt/sources.list
		shift
		exec "$@"' sh "$scratch/none" "$BERTH" runtime add debian:forky "${packages[@]}"
	[ "$status" -eq 1 ]
	[[ $errors == *"apt sources name no Debian mirror"*"--mirror URL"* ]] || { echo "$errors"; false; }
	[ -z "$(ls -A "$BERTH_STATE/store/runtimes")" ]
}

@test "kill -9 during an install leaves no runtime, and the next install cleans up" {
	own_state
	for delay in 0.05 0.3 0.6 0.9 1.2; do
		"$BERTH" runtime add debian:forky "${packages[@]}" >/dev/null 2>&1 3>&- &
		pid=$!
		sleep "$delay"
		kill -9 "$pid" 2>/dev/null || break
		wait "$pid" 2>/dev/null || true
		for id in $("$BERTH" runtime list --json | python3 -c 'import json,sys; print(*[r["id"] for r in json.load(sys.stdin)])'); do
			"$BERTH" runtime verify "$id" # what is visible is whole
			"$BERTH" runtime remove "$id"
		done
	done
	run_split "$BERTH" runtime add debian:forky "${packages[@]}"
	[ "$status" -eq 0 ] || { echo "$errors"; false; }
	[ "$(find "$BERTH_STATE/store/runtimes" -mindepth 1 -maxdepth 1 | wc -l)" -eq 1 ]
}

@test "a damaged runtime never runs: up repairs it from its packages or refuses" {
	own_state
	id=$("$BERTH" runtime add debian:forky "${packages[@]}")
	f=$BERTH_STATE/store/runtimes/$id/tree/usr/bin/llama-server
	printf 'x' | dd of="$f" bs=1 seek=100 conv=notrunc status=none
	run_split "$BERTH" runtime verify
	[ "$status" -eq 1 ]
	[[ $errors == *usr/bin/llama-server* ]]
	write_fleet
	run_split "$BERTH" up -d -f "$fleet"
	if [ "$status" -eq 0 ]; then
		"$BERTH" down -f "$fleet"
		"$BERTH" runtime verify
	else
		[ "$status" -eq 1 ]
		[[ $errors == *"$id"* || $errors == *llama-server* ]]
	fi
}

# confined_by FORM COMMAND...: up under that command, one answer, down.
confined_by() {
	local form=$1
	shift
	write_fleet
	chmod 644 "$fleet"
	"$@" "$BERTH" up -d -f "$fleet" >"$scratch/up" 2>&1 3>&- || { cat "$scratch/up"; false; }
	grep -q "$form" "$scratch/up" || { cat "$scratch/up"; false; }
	answer=$(curl -sS --max-time 30 "$router/v1/chat/completions" -d '{"model":"tiny","max_tokens":40,"temperature":0,"messages":[{"role":"user","content":"What is a slot?"}]}')
	[[ $answer == *"A slot is one"* ]] || { echo "$answer"; false; }
	"$@" "$BERTH" down -f "$fleet"
	! curl -s "http://127.0.0.1:$port_a/health"
}

# A PATH without bubblewrap.
without_bwrap() {
	mkdir -p "$scratch/bin"
	for f in /usr/bin/* /bin/*; do
		[ "$(basename "$f")" = bwrap ] || ln -sf "$f" "$scratch/bin/$(basename "$f")"
	done
	echo "$scratch/bin"
}

# The same state, program and models, owned by an account without rights.
nobodys_state() {
	local id
	id=$("$BERTH" runtime add debian:forky "${packages[@]}")
	mkdir -p "$scratch/nobody"
	cp -a "$BERTH_STATE/store" "$scratch/nobody/store"
	chown -R 65534:65534 "$scratch/nobody"
	mkdir -p "$BERTH_RUN"
	chown 65534:65534 "$BERTH_RUN"
	export BERTH_STATE=$scratch/nobody
	cp "$BERTH" "$scratch/berth"
	cp -r "$models" "$scratch/models"
	BERTH=$scratch/berth
	models=$scratch/models
}

@test "root, bubblewrap" {
	confined_by bubblewrap env
}

@test "root without bubblewrap: chroot" {
	confined_by chroot env PATH="$(without_bwrap)"
}

@test "an account without rights, bubblewrap" {
	nobodys_state
	confined_by bubblewrap setpriv --reuid 65534 --regid 65534 --clear-groups
}

@test "an account without rights and without bubblewrap: the tree's own loader" {
	nobodys_state
	confined_by loader setpriv --reuid 65534 --regid 65534 --clear-groups env PATH="$(without_bwrap)"
}

@test "mkmodel's models are real ones: the engine loads them and answers; a hollow one takes no room" {
	"${BERTH%/*}/mkmodel" --layers 2 --dim 64 --heads 4 --kv-heads 2 --ff 128 --type q8_0 "$scratch/m.gguf"
	"${BERTH%/*}/mkmodel" --layers 2 --dim 64 --heads 4 --kv-heads 2 --ff 128 --experts 4 "$scratch/moe.gguf"
	for m in m moe; do
		models=$scratch weights=$m.gguf write_fleet
		run_split "$BERTH" up -d -f "$fleet"
		[ "$status" -eq 0 ] || { echo "$errors"; false; }
		answer=$(curl -sS --max-time 30 "$router/v1/chat/completions" -d '{"model":"tiny","max_tokens":4,"messages":[{"role":"user","content":"a"}]}')
		[[ $answer == *'"finish_reason"'* ]]
		"$BERTH" down -f "$fleet"
	done
	"${BERTH%/*}/mkmodel" --layers 80 --dim 8192 --heads 64 --kv-heads 8 --ff 28672 --type q8_0 --hollow "$scratch/big.gguf"
	[ "$(stat -c %s "$scratch/big.gguf")" -gt 60000000000 ]
	[ "$(du -k "$scratch/big.gguf" | cut -f1)" -lt 4096 ]
}
