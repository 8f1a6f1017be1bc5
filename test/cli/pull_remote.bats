#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# Headers of models that are elsewhere: berth inspect and berth fit read ranges, never the whole.

load common

setup() {
	BERTH=${BERTH:-$PWD/build/berth}
	FAKE_HUB=${BERTH%/*}/aids/fake_hub
	MKMODEL=${BERTH%/*}/mkmodel
	assets=$PWD/assets/tiny
	scratch=$(mktemp -d)
	export BERTH_STATE=$scratch/state BERTH_RUN=$scratch/run NO_COLOR=1 HOME=$scratch/home
	unset XDG_RUNTIME_DIR XDG_CACHE_HOME HF_TOKEN HF_TOKEN_PATH HF_HOME HF_HUB_CACHE HF_HUB_OFFLINE http_proxy https_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY all_proxy
	mkdir -p "$HOME" "$scratch/root/org/model"
	# as large as a real one, with a hole for most of its data: what is fetched of it is counted
	cp "$assets/berth-tiny-f16.gguf" "$scratch/root/org/model/w.gguf"
	mkfifo "$scratch/in" "$scratch/out"
	FAKE_HUB_TOKEN=good "$FAKE_HUB" "$scratch/root" --plain <"$scratch/in" >"$scratch/out" 3>&- &
	hub_pid=$!
	exec 8>"$scratch/in" 9<"$scratch/out"
	read -r hub_port cdn_port <&9
	export HF_ENDPOINT=http://127.0.0.1:$hub_port
	HUB=$HF_ENDPOINT
}

teardown() {
	exec 8>&- 9<&-
	wait "$hub_pid" || true
	rm -rf "$scratch"
}

sent() {
	curl -sf "$HUB/_stats" | awk '$1 == "bytes" {print $2}'
}

@test "inspect hf: says what the file itself would, and fetches a part of it" {
	size=$(stat -c %s "$scratch/root/org/model/w.gguf")
	[ "$size" -gt 600000 ]
	run_split "$BERTH" inspect --json hf:org/model/w.gguf
	[ "$status" -eq 0 ]
	remote=$(jq 'del(.[].file, .[].path, .[].parts)' <<<"$output")
	run_split "$BERTH" inspect --json "$scratch/root/org/model/w.gguf"
	[ "$remote" = "$(jq 'del(.[].file, .[].path, .[].parts)' <<<"$output")" ]
	run_split "$BERTH" inspect "hf:org/model@main/w.gguf"
	[ "$status" -eq 0 ]
	run_split "$BERTH" inspect "$HUB/org/model/w.gguf"
	[ "$status" -eq 0 ]
}

@test "inspect hf: errors say what is wrong" {
	run_split "$BERTH" inspect hf:org/model/none.gguf
	[ "$status" -eq 1 ]
	[[ $errors == *"hf:org/model/none.gguf: "*"no such file (404)"* ]]
	run_split "$BERTH" inspect hf:org/model
	[ "$status" -eq 1 ]
	[[ $errors == *"is not like hf:ORG/REPO/FILE"* ]]
	touch "$scratch/root/org/model/.private"
	run_split "$BERTH" inspect hf:org/model/w.gguf
	[[ $errors == *"set HF_TOKEN"* ]]
	HF_TOKEN=good run_split "$BERTH" inspect hf:org/model/w.gguf
	[ "$status" -eq 0 ]
	HF_HUB_OFFLINE=1 run_split "$BERTH" inspect hf:org/model/w.gguf
	[[ $errors == *"HF_HUB_OFFLINE is set"* ]]
	run_split "$BERTH" inspect hf:org/model/.private
	[ "$status" -eq 1 ]
}

@test "fit plans a model that is not here as it plans the file itself" {
	fleet() {
		cat >"$scratch/$1.yaml" <<-EOT
			version: 1
			name: $1
			hosts:
			  h: {ssh: op@h.example, memory: 64GiB, devices: [{name: CUDA0, memory: 24GiB}]}
			runtimes:
			  r: {engine: llama.cpp, source: system}
			models:
			  m: {source: "$2", weights: w.gguf}
			services:
			  s: {host: h, runtime: r, model: m, port: 7999, context: 4096}
		EOT
	}
	fleet afar hf:org/model
	fleet here "file:$scratch/root/org/model"
	run_split "$BERTH" fit --json -f "$scratch/here.yaml"
	here_status=$status
	here=$(jq -S '[.. | numbers]' <<<"$output")
	run_split "$BERTH" fit --json -f "$scratch/afar.yaml"
	[ "$status" -eq "$here_status" ]
	[ "$(jq -S '[.. | numbers]' <<<"$output")" = "$here" ]
	[[ $errors == *"header read from afar"* ]]
	[ -z "$(find "$BERTH_STATE/store/payloads" -type f)" ]
	before=$(sent)
	run_split "$BERTH" fit -f "$scratch/afar.yaml"
	[ "$status" -eq "$here_status" ]
	[ "$(sent)" = "$before" ] # it is kept
	rm -rf "$BERTH_STATE/store/headers"
	HF_HUB_OFFLINE=1 run_split "$BERTH" fit -f "$scratch/afar.yaml"
	[ "$status" -eq 1 ]
	[[ $errors == *"HF_HUB_OFFLINE is set"* ]]
}
