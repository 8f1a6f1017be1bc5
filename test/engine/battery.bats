#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# berth check --live against the real engine: what services declare beside plain chat, with templates that keep it and templates that do not; and once through the router.

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
	found=$(result "service a") front=$(result "endpoint a")
	"$BERTH" down -f "$fleet"
	echo "$found; $front"
}

# result SUBJECT: of the check that is in $output.
result() { jq -r --arg s "$1" '.[] | select(.contract == "live" and .subject == $s) | .verdict + ": " + .text' <<<"$output"; }

@test "a service that keeps what it declares" {
	template think '{%- if reasoning_effort is defined and reasoning_effort not in ["low", "high"] %}{{ raise_exception("no such effort: " + reasoning_effort) }}{% endif -%}' '{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}' '<think>
'
	live "reasoning: true, efforts: [low, high]" think "speculative: [draft-simple]"
	[ "$status" -eq 0 ]
	[ "$found" = "ok: does chat, template, prompt reuse, drafting, reasoning, effort" ]
	[ "$front" = "ok: answers as a" ]
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
	[[ $front == "broken: chat as 'a': status 400: '"* ]]
}

@test "what does not run is told; a stranger on the port is asked nothing" {
	live ''
	run --separate-stderr "$BERTH" check --live --json -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $(result "service a") == "broken: it does not answer: "* ]]
	[ "$(result "endpoint a")" = "broken: no router is up here: 'berth up' or 'berth route' brings it" ]
	test/aids/mock_engine.py "$port_a" stranger >/dev/null 2>&1 &
	leftovers+=($!)
	for _ in $(seq 100); do curl -sf "http://127.0.0.1:$port_a/health" >/dev/null && break; sleep 0.05; done
	run --separate-stderr "$BERTH" check --live --json -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $(result "service a") == "broken: it serves 'stranger', not 'a'"* ]]
}

# actor [SED...]: the fleet of one service that does everything, with the model that plays it, behind a router with TLS.
actor() {
	[ -e "$scratch/actor.gguf" ] || "${BERTH%/*}/aids/mkactor" "$scratch"
	[ -e "$scratch/cert.pem" ] || certificate cert key
	cat >"$fleet" <<-EOT
		version: 1
		name: $name
		runtimes:
		  llama: {engine: llama.cpp, source: "debian:forky", packages: [llama.cpp-tools, llama.cpp-tools-extra, libggml0-backend-rpc]}
		models:
		  actor: {source: "file:$scratch", weights: actor.gguf, projector: actor-mmproj.gguf, drafter: actor.gguf}
		services:
		  a: {runtime: llama, model: actor, port: $port_a, context: 2048, slots: 2, threads: 1, speculative: [draft-simple], serves: {tools: true, reasoning: true, efforts: [low, high], images: true, sound: true}}
		endpoints:
		  all: {services: [a], aliases: [gpt-4o]}
		router: {listen: "127.0.0.1:$router_port", tls: {certificate: $scratch/cert.pem, key: $scratch/key.pem}}
	EOT
	[ $# -eq 0 ] || sed -i "$@" "$fleet"
}

certificate() { # certificate NAME KEY
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=router.example -keyout "$scratch/$2.pem" -out "$scratch/$1.pem" 2>/dev/null
	chmod 600 "$scratch/$2.pem"
}

@test "tools, thinking, pictures, sound: all of it, and through a router with TLS" {
	actor
	bring_up
	run --separate-stderr "$BERTH" check --live --json -f "$fleet"
	echo "$output" "$stderr"
	[ "$(result "service a")" = "ok: does chat, template, prompt reuse, drafting, reasoning, effort, tool call, image, sound" ]
	[ "$(result "endpoint all")" = "ok: answers as all, gpt-4o" ]
	[ "$status" -eq 0 ]
	# the model sees: what it calls the picture follows from the picture
	ask_picture() { jq -n --arg p "$1" '{model: "a", temperature: 0, messages: [{role: "user", content: [{type: "image_url", image_url: {url: ("data:image/png;base64," + $p)}}]}]}' | curl -s "http://127.0.0.1:$port_a/v1/chat/completions" -d @- | jq -r '.choices[0].message.content'; }
	[ "$(ask_picture iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYPgPAAEDAQAIicLsAAAAAElFTkSuQmCC)" = "Blue." ]
	# a certificate of the same name that is not the router's is believed in nothing
	certificate cert other
	run --separate-stderr "$BERTH" check --live --json -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $(result "endpoint all") == "broken: chat as 'all': no answer: "*"its certificate is not the one that it should have" ]]
}

@test "the same model with a template that leaves the tools out" {
	actor -e 's/drafter: actor.gguf/template: '"${scratch//\//\\/}"'\/plain.jinja/' -e 's/speculative: .draft-simple., //'
	sed '/if tools/,+1d' "$scratch/actor.jinja" >"$scratch/plain.jinja"
	bring_up
	run --separate-stderr "$BERTH" check --live --json -f "$fleet"
	[[ $(result "service a") == "broken: tool call: a tool that must be called was not"* ]]
}
