#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# Two real models that do not fit together, on demand: they take turns, every request is answered, and a conversation goes on where it was although its engine was stopped in between.

load common

# By its plan each takes 7 MiB: one fits, two do not.
write_demand_fleet() {
	cat >"$fleet" <<-EOT
		version: 1
		name: $name
		hosts:
		  here: {memory: 10MiB}
		runtimes:
		  llama: {engine: llama.cpp, source: "debian:forky", packages: [llama.cpp-tools, llama.cpp-tools-extra, libggml0-backend-rpc]}
		models:
		  tiny: {source: "file:$models", weights: $weights}
		services:
		  alpha: {runtime: llama, model: tiny, port: $port_a, context: 2048, slots: 2, threads: 1, prompt-cache: off, start: on-demand}
		  beta: {runtime: llama, model: tiny, port: $port_b, context: 2048, slots: 2, threads: 1, prompt-cache: off, start: on-demand}
		router: {listen: "127.0.0.1:$router_port"}
	EOT
}

# turn MODEL MESSAGES: the answer of the next turn of a conversation
turn() {
	curl -sS --max-time 90 "$router/v1/chat/completions" -H 'Content-Type: application/json' \
		-d "{\"model\":\"$1\",\"temperature\":0,\"max_tokens\":8,\"messages\":$2}"
}

@test "two models that do not fit together take turns; prompts survive the swap" {
	write_demand_fleet
	bring_up
	long=$(printf 'the quick brown fox jumps over the lazy dog %.0s' $(seq 12))
	first="[{\"role\":\"user\",\"content\":\"$long\"}]"
	answer=$(turn alpha "$first")
	[ "$(jq -r .object <<<"$answer")" = chat.completion ]
	said=$(jq -c '.choices[0].message.content' <<<"$answer")
	prompt=$(jq '.timings.prompt_n + .timings.cache_n' <<<"$answer")
	sampled=$scratch/both
	( while [ ! -e "$scratch/done" ]; do
		pgrep -f -- "--port $port_a( |\$)" >/dev/null && pgrep -f -- "--port $port_b( |\$)" >/dev/null && touch "$sampled"
		sleep 0.02
	done ) &
	sampler=$!
	leftovers+=("$sampler")
	[ "$(turn beta "$first" | jq -r .object)" = chat.completion ]
	is_state alpha idle
	[ "$(find "$BERTH_STATE/fleets/$name/prompts/alpha" -name 'slot-*.bin' | wc -l)" -ge 1 ]
	[ "$(stat -c %a "$BERTH_STATE/fleets/$name/prompts/alpha")" = 700 ]
	answer=$(turn alpha "[{\"role\":\"user\",\"content\":\"$long\"},{\"role\":\"assistant\",\"content\":$said},{\"role\":\"user\",\"content\":\"go on\"}]")
	touch "$scratch/done"
	wait "$sampler" || true
	[ "$(jq -r .object <<<"$answer")" = chat.completion ]
	[ ! -e "$sampled" ]
	[ "$(status_of alpha starts)" = 2 ]
	# the first turn's prompt came from its file, not from reading it again
	cached=$(jq .timings.cache_n <<<"$answer")
	echo "cached $cached of $prompt"
	[ "$cached" -ge $((prompt * 8 / 10)) ]
	run_split "$BERTH" down -f "$fleet"
	[ ! -e "$BERTH_STATE/fleets/$name/prompts" ]
}
