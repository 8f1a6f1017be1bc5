#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# The clients that people use, from npm at the versions of package-lock.json, against a fleet with the real llama-server.

load ../engine/common

# Installs them once for a lock file.
packages() {
	clients=${BUILD:-build}/clients
	mkdir -p "$clients"
	cp test/clients/clients.mjs test/clients/package.json test/clients/.npmrc "$clients/"
	cmp -s test/clients/package-lock.json "$clients/installed" && return
	cp test/clients/package-lock.json "$clients/"
	(cd "$clients" && timeout 300 npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) || return 1
	cp test/clients/package-lock.json "$clients/installed"
}

@test "openai, anthropic, ai and Ollama's probes get what they expect" {
	command -v npm >/dev/null || skip "npm is not here"
	[ "$(node -p 'process.versions.node.split(".")[0]')" -ge 20 ] || skip "Node.js is older than 20"
	packages || skip "the packages cannot be fetched"
	write_fleet
	sed -i -E "s/threads: 1\}/threads: 1, args: [--context-shift, --ignore-eos]}/; s/^router: .*/router: {listen: \"127.0.0.1:$router_port\", admin: \"127.0.0.1:$spare_port\", keys-file: keys}/" "$fleet"
	key=$("$BERTH" key -f "$fleet" add clients 2>/dev/null)
	bring_up
	KEY=$key ADMIN=http://127.0.0.1:$spare_port run timeout 120 node "$clients/clients.mjs" "$router" tiny
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == 1..14* ]]
}
