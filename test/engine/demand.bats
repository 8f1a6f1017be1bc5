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

in_line() { curl -sS --unix-socket "$BERTH_RUN/$name/control.sock" http://berth/requests | jq -e '.requests[] | select(.phase == "load")' >/dev/null; }

@test "what waits for memory that does not come back is started once, whoever starts it" {
	write_demand_fleet
	# by its plan it fits, and this machine never has as much
	sed -i -e 's/memory: 10MiB/memory: 64TiB/' -e '/ alpha: {/s/prompt-cache: off/prompt-cache: 32TiB/' "$fleet"
	bring_up
	local up
	up=$("$BERTH" status --json -f "$fleet" | jq .pid)
	turn alpha '[{"role":"user","content":"hello"}]' >"$scratch/first" 3>&- &
	wait_for 20 in_line
	[ "$(status_of alpha pid)" = null ]
	run_split "$BERTH" restart -f "$fleet" alpha
	[ "$status" -eq 0 ]
	wait
	[ "$(jq -r .object "$scratch/first")" = chat.completion ]
	turn beta '[{"role":"user","content":"hello"}]' >/dev/null
	kill -9 "$(status_of alpha pid)"
	wait_for 20 is_state alpha idle
	turn alpha '[{"role":"user","content":"hello"}]' >/dev/null 3>&- & # whoever waits for one that is always up is told that it is not
	wait_for 20 in_line
	sed -i '/ alpha: {/s/start: on-demand/start: always/' "$fleet"
	run_split "$BERTH" reload -f "$fleet"
	[ "$status" -eq 0 ]
	wait
	wait_for 20 is_state alpha ready
	sleep 1 # twenty looks at the memory
	[ "$(status_of alpha starts)" = 2 ]
	[ "$("$BERTH" status --json -f "$fleet" | jq .pid)" = "$up" ]
}

@test "one that ends while its prompts are given back is started again without them, and who waits is answered" {
	write_demand_fleet
	bring_up
	local file=$BERTH_STATE/fleets/$name/prompts/alpha/slot-0.bin
	turn alpha '[{"role":"user","content":"hello"}]' >/dev/null
	[ "$(turn beta '[{"role":"user","content":"hello"}]' | jq -r .object)" = chat.completion ]
	is_state alpha idle
	rm -f "$file" "${file%0.bin}1.bin"
	mkfifo -m 666 "$file" "${file%0.bin}1.bin" # the engine waits there until it is killed
	turn alpha '[{"role":"user","content":"hello"}]' >"$scratch/answer" 3>&- &
	wait_for 20 is_state alpha ready
	kill -9 "$(status_of alpha pid)"
	wait
	[ "$(jq -r .object "$scratch/answer")" = chat.completion ]
	[ "$(status_of alpha starts)" = 3 ]
	[ ! -e "$file" ]
}
