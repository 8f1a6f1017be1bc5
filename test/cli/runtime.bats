#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# berth runtime with a build of one's own: a small program that stands in for an engine where only files matter.

load common

make_build() {
	mkdir -p "$scratch/own/bin"
	cat >"$scratch/own/bin/llama-server" <<-'EOT'
		#!/bin/sh
		echo "version: 1 (own)" >&2
	EOT
	chmod 755 "$scratch/own/bin/llama-server"
}

@test "list with nothing installed says how to install" {
	run_split "$BERTH" runtime list
	[ "$status" -eq 0 ]
	[ -z "$output" ]
	[[ $errors == *"berth runtime add"* ]]
	run_split "$BERTH" runtime list --json
	[ "$output" = "[]" ]
}

@test "path: is copied, proven, listed; adding it twice changes nothing; remove takes a beginning" {
	make_build
	run_split "$BERTH" runtime add "path:$scratch/own"
	[ "$status" -eq 0 ]
	id=$output
	[[ $id == llama.cpp-* ]]
	before=$(find "$BERTH_STATE/store/runtimes" -printf '%p %T@\n' | sort)
	run_split "$BERTH" runtime add "path:$scratch/own"
	[ "$status" -eq 0 ]
	[ "$output" = "$id" ]
	[ "$(find "$BERTH_STATE/store/runtimes" -printf '%p %T@\n' | sort)" = "$before" ]
	run_split "$BERTH" runtime list
	[[ $output == *"$id"*"path:$scratch/own"* ]]
	run_split "$BERTH" runtime verify
	[ "$status" -eq 0 ]
	run_split "$BERTH" runtime remove "${id:0:14}"
	[ "$status" -eq 0 ]
	[ "$("$BERTH" runtime list --json)" = "[]" ]
}

@test "verify names the file that changed, and its exit is 1" {
	make_build
	id=$("$BERTH" runtime add "path:$scratch/own")
	tree=$BERTH_STATE/store/runtimes/$id/tree
	f=$(find "$tree" -name llama-server -type f)
	chmod u+w "$f"
	echo "# changed" >>"$f"
	run_split "$BERTH" runtime verify
	[ "$status" -eq 1 ]
	[[ $errors == *"llama-server"* ]]
	[[ $errors == *"berth runtime remove $id"* ]]
}

@test "add: sources that cannot be" {
	run_split "$BERTH" runtime add debian:forky
	[ "$status" -eq 2 ]
	[[ $errors == *"needs packages"* ]]
	run_split "$BERTH" runtime add ftp:somewhere
	[ "$status" -eq 2 ]
	[[ $errors == *"use debian:SUITE, path:DIR, archive:URL#sha256=DIGEST or system"* ]]
	run_split "$BERTH" runtime add "path:$scratch/none"
	[ "$status" -eq 1 ]
	[[ $errors == *"$scratch/none"* ]]
	mkdir "$scratch/empty"
	run_split "$BERTH" runtime add "path:$scratch/empty"
	[ "$status" -eq 1 ]
	[[ $errors == *llama-server* ]]
	[ "$("$BERTH" runtime list --json)" = "[]" ]
}

@test "add: an archive is pinned by its digest, with one folder around everything or without" {
	make_build
	tar -czf "$scratch/own.tar.gz" -C "$scratch" own
	sum=$(sha256sum "$scratch/own.tar.gz" | cut -d' ' -f1)
	run_split "$BERTH" runtime add "archive:$scratch/own.tar.gz"
	[ "$status" -eq 2 ]
	[[ $errors == *"needs its digest"* ]]
	run_split "$BERTH" runtime add "archive:$scratch/own.tar.gz#sha256=${sum//[0-9]/0}"
	[ "$status" -eq 1 ]
	[[ $errors == *"is not what is pinned"* ]]
	run_split "$BERTH" runtime add "archive:$scratch/own.tar.gz#sha256=$sum"
	[ "$status" -eq 0 ]
	id=$output
	run_split "$BERTH" runtime verify "$id"
	[ "$status" -eq 0 ]
	[ "$("$BERTH" runtime list --json | jq -r '.[0].source')" = "archive:$scratch/own.tar.gz#sha256=$sum" ]
}

@test "--offline fetches nothing: exit 1 and nothing is left" {
	run_split "$BERTH" runtime add --offline debian:forky llama.cpp-tools
	[ "$status" -eq 1 ]
	[[ $errors == *offline* ]]
	[ -z "$(ls -A "$BERTH_STATE/store/runtimes" 2>/dev/null)" ]
}

@test "remove: nothing of that name, and no name" {
	run_split "$BERTH" runtime remove nothing
	[ "$status" -eq 1 ]
	[[ $errors == *"'nothing'"* ]]
	run_split "$BERTH" runtime remove
	[ "$status" -eq 2 ]
}
