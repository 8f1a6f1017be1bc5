# shellcheck shell=bash
# SPDX-License-Identifier: MIT
#
# Shared by the tests with the real engine. One state folder serves them all, so that the runtime is installed once (or copied from $BERTH_TEST_RUNTIME_STATE, a state folder that has it);
# each test has a fleet name, ports and a run folder of its own, and leaves no process.

# shellcheck source=test/aids/ports.bash
source "${BASH_SOURCE[0]%/*}/../aids/ports.bash"
# shellcheck source=test/aids/wait.bash
source "${BASH_SOURCE[0]%/*}/../aids/wait.bash"

setup_file() {
	export BERTH=${BERTH:-$PWD/build/berth} NO_COLOR=1
	export BERTH_STATE=${BERTH_TEST_STATE:-$PWD/build/test-state}
	unset XDG_RUNTIME_DIR
	mkdir -p "$BERTH_STATE"
	chmod 755 "$BERTH_STATE"
	if [ -n "${BERTH_TEST_RUNTIME_STATE:-}" ] && [ ! -d "$BERTH_STATE/store" ]; then
		cp -a "$BERTH_TEST_RUNTIME_STATE/store" "$BERTH_STATE/store"
	fi
}

setup() {
	scratch=$(mktemp -d)
	chmod 755 "$scratch"
	export BERTH_RUN=$scratch/run
	name=t$$-$BATS_TEST_NUMBER
	fleet=$scratch/fleet.yaml
	models=$PWD/assets/tiny
	weights=berth-tiny-f16.gguf
	read -r port_a port_b router_port spare_port < <(free_ports 4)
	router=http://127.0.0.1:$router_port
	leftovers=()
}

teardown() {
	local pid
	[ ! -f "$fleet" ] || timeout 60 "$BERTH" down -f "$fleet" >/dev/null 2>&1 || true
	for pid in "${leftovers[@]}"; do
		kill -9 "$pid" 2>/dev/null || true
	done
	rm -rf "$scratch" "${BERTH_STATE:?}/fleets/$name"
}

# The fleet of most tests: two replicas behind one endpoint. With $endless they generate beyond the context.
write_fleet() {
	cat >"$fleet" <<-EOT
		version: 1
		name: $name
		runtimes:
		  llama: {engine: llama.cpp, source: "debian:forky", packages: [llama.cpp-tools, llama.cpp-tools-extra, libggml0-backend-rpc]}
		models:
		  tiny: {source: "file:$models", weights: $weights}
		services:
		  alpha: {runtime: llama, model: tiny, port: $port_a, context: 2048, slots: 2, threads: 1${endless:+, args: [--context-shift]}}
		  beta: {runtime: llama, model: tiny, port: $port_b, context: 2048, slots: 2, threads: 1${endless:+, args: [--context-shift]}}
		endpoints:
		  tiny: {services: [alpha, beta], aliases: [gpt-4o]}
		router: {listen: "127.0.0.1:$router_port"}
	EOT
}

# Runs a command with stdout in $output and stderr in $errors.
run_split() {
	output=$("$@" 2>"$scratch/stderr" 3>&-) && status=0 || status=$?
	errors=$(cat "$scratch/stderr")
}

# Brings the fleet up in the background and fails the test with its words when that does not work.
bring_up() {
	run_split "$BERTH" up -d -f "$fleet"
	if [ "$status" -ne 0 ]; then
		echo "$errors"
		return 1
	fi
}

status_of() { # status_of SERVICE FIELD
	"$BERTH" status --json -f "$fleet" 2>/dev/null | jq -r --arg s "$1" --arg f "$2" '.services[] | select(.name == $s) | .[$f]'
}

is_state() { [ "$(status_of "$1" state)" = "$2" ]; }
is_gone() { ! kill -0 "$1" 2>/dev/null; }
is_gone_or_zombie() { ! [ -e "/proc/$1" ] || grep -q '^State:.Z' "/proc/$1/status"; }

# The processes of this fleet's engines, found by their ports, which no other test has.
engines() {
	pgrep -f -- "--port ($port_a|$port_b)( |\$)" || true
}

ask() { # ask TEXT [more curl options]
	local text=$1
	shift
	curl -sS --max-time 60 "$router/v1/chat/completions" -H 'Content-Type: application/json' "$@" \
		-d "{\"model\":\"tiny\",\"temperature\":0,\"max_tokens\":${max_tokens:-48},\"messages\":[{\"role\":\"user\",\"content\":\"$text\"}]}"
}
