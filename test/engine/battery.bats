#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# berth check --live against the real engine: what services declare beside plain chat, with templates that keep it and templates that do not.

bats_require_minimum_version 1.5.0
load common

# template NAME HEAD TURN PROMPT: one of the tiny model's form, with what makes it another.
template() {
	# shellcheck disable=SC1083 # Jinja
	printf '%s{%%- for m in messages %%}<|{{ m.role }}|>%s<|end|>{%% endfor %%}{%% if add_generation_prompt %%}<|assistant|>%s{%% endif %%}' "$2" "$3" "$4" >"$scratch/$1.jinja"
}

# live SERVES TEMPLATE [MORE]: brings up one service and asks it.
live() {
	cat >"$fleet" <<-EOT
		version: 1
		name: $name
		runtimes:
		  llama: {engine: llama.cpp, source: "debian:forky", packages: [llama.cpp-tools, llama.cpp-tools-extra, libggml0-backend-rpc]}
		models:
		  tiny: {source: "file:$models", weights: $weights, drafter: berth-tiny-draft-f16.gguf${2:+, template: $scratch/$2.jinja}}
		services:
		  a: {runtime: llama, model: tiny, port: $port_a, context: 2048, slots: 2, threads: 1${1:+, serves: {$1\}}${3:+, $3}}
		router: {listen: "127.0.0.1:$router_port"}
	EOT
	"$BERTH" up -d -f "$fleet"
	run --separate-stderr "$BERTH" check --live --json -f "$fleet"
	found=$(jq -r '.[] | select(.contract == "live") | .verdict + ": " + .text' <<<"$output")
	"$BERTH" down -f "$fleet"
	echo "$found"
}

@test "a service that keeps what it declares" {
	template think '{%- if reasoning_effort is defined and reasoning_effort not in ["low", "high"] %}{{ raise_exception("no such effort: " + reasoning_effort) }}{% endif -%}' '{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}' '<think>
'
	live "reasoning: true, efforts: [low, high]" think "speculative: [draft-simple]"
	[ "$status" -eq 0 ]
	[ "$found" = "ok: does chat, template, prompt reuse, drafting, reasoning, effort" ]
	live "efforts: [low, extreme]" think
	[ "$status" -eq 1 ]
	[[ $found == "broken: effort: 'extreme': status 400: '"*"take it out of 'efforts'"* ]]
}

@test "thinking that never comes, and tools that the template leaves out" {
	live "reasoning: true"
	[ "$status" -eq 1 ]
	[[ $found == "broken: reasoning: the answer has no reasoning_content: '"* ]]
	live "tools: true"
	[ "$status" -eq 1 ]
	[[ $found == "broken: tool call: a tool that must be called was not: it said '"* ]]
}

@test "a template that drops what clients say, one that says it twice, one that adds a book" {
	template drops '' 'hello' ''
	live '' drops
	[ "$status" -eq 1 ]
	[[ $found == "broken: template: a message of 341 tokens made the prompt longer by 0; the chat template drops"* ]]
	template twice '' '{{ m.content }}{{ m.content }}' ''
	live '' twice
	[[ $found == "broken: template: a message of 341 tokens made the prompt longer by 650;"*"says it more than once"* ]]
	template book "$(printf 'word %.0s' $(seq 300))" '{{ m.content }}' ''
	live '' book
	[[ $found == "broken: chat: status 400: '"*"exceeds the available context size"* ]]
}

@test "what does not run is told; a stranger on the port is asked nothing" {
	live ''
	run --separate-stderr "$BERTH" check --live --json -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $(jq -r '.[] | select(.contract == "live") | .text' <<<"$output") == "it does not answer: "* ]]
	test/aids/mock_engine.py "$port_a" stranger >/dev/null 2>&1 &
	leftovers+=($!)
	for _ in $(seq 100); do curl -sf "http://127.0.0.1:$port_a/health" >/dev/null && break; sleep 0.05; done
	run --separate-stderr "$BERTH" check --live --json -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $(jq -r '.[] | select(.contract == "live") | .text' <<<"$output") == "it serves 'stranger', not 'a'"* ]]
}
