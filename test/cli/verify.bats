#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# Verify, repair and purge against a hub of our own: what is told of damage, how little is fetched to mend it, and what is never written to or taken away.

load common

setup() {
	BERTH=${BERTH:-$PWD/build/berth}
	MKMODEL=${MKMODEL:-$PWD/build/mkmodel}
	FAKE_HUB=${FAKE_HUB:-$PWD/build/aids/fake_hub}
	scratch=$(mktemp -d)
	export BERTH_STATE=$scratch/state BERTH_RUN=$scratch/run NO_COLOR=1 HF_HOME=$scratch/hf
	unset XDG_RUNTIME_DIR HF_TOKEN HF_TOKEN_PATH HF_HUB_CACHE HF_HUB_OFFLINE
	cd "$scratch" || return
	cat >fleet.yaml <<-EOT
		version: 1
		name: home
		models:
		  big: {source: "hf:org/repo", weights: big-00001-of-00002.gguf}
	EOT
}

teardown() {
	[ -z "${hub_in:-}" ] || exec {hub_in}>&-
	[ -z "${hub_pid:-}" ] || wait "$hub_pid" || true
	rm -rf "$scratch"
}

# A hub with a split model of four segments each; it ends with its input.
start_hub() {
	mkdir -p root/org/repo
	"$MKMODEL" --dim 512 --layers 24 --split 2 root/org/repo/big.gguf >made
	mkfifo in out
	"$FAKE_HUB" root ${hub_options:-} <in >out 3>&- &
	hub_pid=$!
	exec {hub_in}>in
	read -r port _ <out
	export HF_ENDPOINT=http://127.0.0.1:$port
}

pull() {
	"$BERTH" lock 2>/dev/null >locked
	"$BERTH" pull 2>/dev/null
	one=$(find "$BERTH_STATE" -name 'big-00001-of-00002.gguf')
	two=$(find "$BERTH_STATE" -name 'big-00002-of-00002.gguf')
	curl -s "$HF_ENDPOINT/_zero" >/dev/null
}

sent() {
	curl -s "$HF_ENDPOINT/_stats" | sed -n 's/^bytes //p'
}

flip() { # FILE OFFSET
	printf X | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

@test "a flipped byte is found in its segment and mended by fetching just that" {
	start_hub
	pull
	run_split "$BERTH" verify
	[ "$status" -eq 0 ]
	[[ $output == *"unchanged since it was proven"* ]]
	flip "$one" 20000000
	run_split "$BERTH" verify
	[ "$status" -eq 1 ]
	[[ $output == *"damaged: bytes 16777216 to 33554431"* ]]
	[[ $output == *"'berth verify --repair big' fetches only these"* ]]
	[ "$("$BERTH" verify --json | jq -c '.[0].files[0].damaged')" = '[{"from":16777216,"bytes":16777216}]' ]
	[ "$(sent)" = 0 ]
	run_split "$BERTH" verify --repair
	[ "$status" -eq 0 ]
	[[ $output == *"repaired and proven"* ]]
	[ "$(sent)" = 16777216 ]
	cmp "$one" root/org/repo/big-00001-of-00002.gguf
	run_split "$BERTH" verify --full
	[ "$status" -eq 0 ]
}

@test "short, long and missing files are told apart, and mended" {
	start_hub
	pull
	truncate -s 30000000 "$one"
	rm "$two"
	run_split "$BERTH" verify
	[ "$status" -eq 1 ]
	[[ $output == *"has 30000000 bytes, not"* ]]
	[[ $output == *"no such file"* ]]
	run_split "$BERTH" verify --repair
	[ "$status" -eq 0 ]
	cmp "$one" root/org/repo/big-00001-of-00002.gguf
	cmp "$two" root/org/repo/big-00002-of-00002.gguf
	[ "$(sent)" -lt 100000000 ] # not all of the first
	echo more >>"$one"
	curl -s "$HF_ENDPOINT/_zero" >/dev/null
	run_split "$BERTH" verify
	[ "$status" -eq 1 ]
	[[ $output == *"something was added at its end"* ]]
	run_split "$BERTH" verify --repair
	[ "$status" -eq 0 ]
	[ "$(sent)" = 0 ]
	cmp "$one" root/org/repo/big-00001-of-00002.gguf
}

@test "a file that has another name is copied before it is mended" {
	start_hub
	pull
	ln "$one" cache
	flip "$one" 20000000
	run_split "$BERTH" verify --repair
	[ "$status" -eq 0 ]
	cmp "$one" root/org/repo/big-00001-of-00002.gguf
	if cmp -s cache "$one"; then false; fi
	[ "$(stat -c %h cache)" = 1 ]
	[ -z "$(find "$BERTH_STATE" -name '*.repair')" ]
}

@test "what the hub has changed in place is not written over what is here" {
	start_hub
	pull
	flip root/org/repo/big-00001-of-00002.gguf 20000000
	flip "$one" 40000000
	sum=$(sha256sum <"$one")
	run_split "$BERTH" verify --repair
	[ "$status" -eq 1 ]
	[[ $output == *"not repaired: "*"changed upstream"* ]]
	[ "$(sha256sum <"$one")" = "$sum" ]
}

@test "a part of another set is told, though every digest is right" {
	mkdir models
	"$MKMODEL" --dim 64 --layers 4 --split 2 models/a.gguf >made
	"$MKMODEL" --dim 64 --layers 8 --split 2 models/b.gguf >made
	mv models/b-00002-of-00002.gguf models/a-00002-of-00002.gguf
	sed -i 's|hf:org/repo|file:models|; s|big-0|a-0|' fleet.yaml
	run_split "$BERTH" verify
	[ "$status" -eq 1 ]
	[[ $output == *"model big: "* ]]
	[ "$("$BERTH" verify --json | jq -c '.[0].consistent')" = false ]
}

@test "files of a folder: recorded once, compared afterwards, never written to" {
	mkdir models
	"$MKMODEL" models/a.gguf >made
	sed -i 's|hf:org/repo|file:models|; s|big-00001-of-00002|a|' fleet.yaml
	run_split "$BERTH" verify
	[ "$status" -eq 0 ]
	[[ $output == *recorded* ]]
	[ "$(ls models)" = a.gguf ]
	flip models/a.gguf 100000
	run_split "$BERTH" verify --repair
	[ "$status" -eq 1 ]
	[[ $output == *"nothing to fetch it from"* ]]
	run_split "$BERTH" lock
	[ "$status" -eq 0 ]
	run_split "$BERTH" verify
	[ "$status" -eq 0 ]
	flip models/a.gguf 100001
	run_split "$BERTH" verify big
	[ "$status" -eq 1 ]
	[[ $output == *damaged* ]]
}

@test "verify of a model that is not there is a usage error" {
	run_split "$BERTH" verify bog
	[ "$status" -eq 2 ]
	[[ $errors == *"did you mean 'big'"* ]]
}

@test "purge lists, and removes only with --yes, what no fleet uses" {
	start_hub
	pull
	sed -i 's|name: home|name: other|' fleet.yaml
	run_split "$BERTH" purge --json
	[ "$status" -eq 0 ]
	[ "$(jq .kept_files <<<"$output")" = 2 ]
	[ "$(jq '.unused | length' <<<"$output")" = 0 ]
	# the files go with the last fleet that names them; partials and proofs too
	folder=$(dirname "$one")
	echo half >"$folder/other.gguf.part"
	sed -i 's|org/repo|org/none|' fleet.yaml
	run_split "$BERTH" purge
	[ "$status" -eq 0 ]
	[[ $output == *"big-00001-of-00002.gguf"* && $output == *"partial"*"other.gguf.part"* ]]
	[ -e "$one" ]
	run_split "$BERTH" purge --yes
	[ "$status" -eq 0 ]
	[ -z "$(find "$BERTH_STATE/store/payloads/hf" -type f)" ]
	[ -z "$(ls "$BERTH_STATE/store/manifests")" ]
	run_split "$BERTH" purge
	[ "$status" -eq 0 ]
	[ -z "$output" ]
}

@test "purge: a folder that is kept on another disk by a link stays while it is used" {
	start_hub
	pull
	mv "$BERTH_STATE/store/payloads/hf" elsewhere
	ln -s "$scratch/elsewhere" "$BERTH_STATE/store/payloads/hf"
	ln -s "$scratch/nowhere" "$BERTH_STATE/store/payloads/web"
	run_split "$BERTH" purge --yes
	[ "$status" -eq 0 ]
	[ -L "$BERTH_STATE/store/payloads/hf" ]
	[ ! -L "$BERTH_STATE/store/payloads/web" ]
	"$BERTH" verify
}

@test "purge: a fleet elsewhere keeps its files, and one that cannot be read keeps all" {
	start_hub
	pull
	mkdir elsewhere
	cd elsewhere || return
	run_split "$BERTH" purge --yes
	[ "$status" -eq 0 ]
	[ -e "$one" ]
	echo nonsense >>../fleet.yaml
	run_split "$BERTH" purge --yes
	[ "$status" -eq 1 ]
	[[ $errors == *"what fleet 'home' uses cannot be known"* ]]
	[ -e "$one" ]
}

@test "a store moved to another disk is proven there without a network" {
	start_hub
	pull
	mv "$BERTH_STATE" moved
	export BERTH_STATE=$scratch/moved HF_HUB_OFFLINE=1
	run_split "$BERTH" verify
	[ "$status" -eq 0 ]
	[ "$(grep -c ' proven$' <<<"$output")" = 2 ]
	run_split "$BERTH" pull
	[ "$status" -eq 0 ]
	[ "$(sent)" = 0 ]
	rm "$(find moved -name big-00002-of-00002.gguf)"
	run_split "$BERTH" verify --repair
	[ "$status" -eq 1 ]
	[[ $output == *"not repaired: "*HF_HUB_OFFLINE* ]]
}

@test "purge --stale: what changed upstream is told, and replaced with --yes" {
	start_hub
	pull
	old=$(dirname "$one")
	flip root/org/repo/big-00001-of-00002.gguf 20000000
	run_split "$BERTH" purge --stale
	[ "$status" -eq 0 ]
	[[ $output == *changed* ]]
	[ -e "$one" ]
	# what cannot be fetched is not locked either, and nothing goes
	lock=$(cat fleet.lock)
	curl -s "$HF_ENDPOINT/_fault?kind=notfound&n=1000" >/dev/null
	run_split "$BERTH" purge --stale --yes
	[ "$status" -eq 1 ]
	[ "$(cat fleet.lock)" = "$lock" ]
	[ -e "$one" ]
	curl -s "$HF_ENDPOINT/_fault?kind=notfound&n=0" >/dev/null
	run_split "$BERTH" purge --stale --yes
	[ "$status" -eq 0 ]
	new=$(dirname "$(find "$BERTH_STATE" -name big-00001-of-00002.gguf)")
	cmp "$new/big-00001-of-00002.gguf" root/org/repo/big-00001-of-00002.gguf
	[ "$(sent)" -lt 60000000 ] # the other part was taken over
	[ "$new" = "$old" ] || [ ! -e "$old" ]
	run_split "$BERTH" verify
	[ "$status" -eq 0 ]
}

# What berth check says, in one line.
found() {
	"$BERTH" check | tr -s '[:space:]' ' '
}

@test "check: what was pulled is proven; what was touched since is not, until it is verified" {
	start_hub
	pull
	"$BERTH" runtime add system --engine generic >made
	cat >>fleet.yaml <<-EOT
		runtimes: {any: {engine: generic, source: system}}
		services:
		  a: {runtime: any, model: big, port: 7770, command: ["/bin/true", "{model}"]}
	EOT
	"$BERTH" lock 2>/dev/null >locked
	[ "$(jq -r '.runtimes.any.digest' fleet.lock)" = "$("$BERTH" runtime list --json | jq -r '.[0].digest')" ]
	[[ $(found) == *"what fleet.lock pins"* ]]
	touch "$one"
	[[ $(found) == *"'berth verify' does that"* ]]
	"$BERTH" verify >verified
	[[ $(found) == *"all files are what fleet.lock pins"* ]]
	sed -i 's|"digest": "....|"digest": "0000|' fleet.lock
	run "$BERTH" check
	[ "$status" -eq 1 ]
	[[ $(found) == *"is not the build that fleet.lock pins"* ]]
}

@test "runtime add: an archive is fetched once, and made again from the store" {
	mkdir -p root/org/rel own
	printf '#!/bin/sh\necho version: 3.1\n' >own/llama-server
	chmod +x own/llama-server
	tar -czf root/org/rel/own.tar.gz own
	hub_options=--plain
	start_hub
	sum=$(sha256sum root/org/rel/own.tar.gz | cut -d' ' -f1)
	source=archive:$HF_ENDPOINT/org/rel/own.tar.gz
	run_split "$BERTH" runtime add --offline "$source#sha256=$sum"
	[ "$status" -eq 1 ]
	[[ $errors == *"would have to be fetched"* ]]
	run_split "$BERTH" runtime add "$source#sha256=${sum//[0-9]/0}"
	[ "$status" -eq 1 ]
	[[ $errors == *"other bytes than are pinned"* ]]
	[ -z "$(ls "$BERTH_STATE/store/archives")" ]
	run_split "$BERTH" runtime add "$source#sha256=$sum"
	[ "$status" -eq 0 ]
	"$BERTH" runtime remove "$output"
	run_split "$BERTH" runtime add --offline "$source#sha256=$sum"
	[ "$status" -eq 0 ]
}
