# SPDX-License-Identifier: MIT
#
# What the suites of real hosts share: two hosts of one lab for each file, a fleet with service 'a' on h1, and how both are spoken to.
# shellcheck shell=bash

setup_file() {
	[ "$(id -u)" = 0 ] || skip "needs root"
	why=$(test/hosts/lab possible) || skip "$why"
	export LAB
	LAB=$(mktemp -d /tmp/berth-lab-XXXXXX)
	export BERTH=${BERTH:-$PWD/build/berth} NO_COLOR=1 FLEET=$LAB/fleet.yaml
	export BERTH_STATE=${BERTH_TEST_STATE:-$PWD/build/test-state} BERTH_RUN=$LAB/run
	write_fleet
	"$BERTH" runtime add -f "$FLEET" >/dev/null 2>&1
	test/hosts/lab up "$LAB/hosts" $$
	for h in h1 h2; do
		on "$h" mkdir -p /srv/models
		lab run scp -q assets/tiny/berth-tiny-f16.gguf assets/tiny/berth-tiny-q8_0.gguf "$h:/srv/models/"
	done
}

teardown_file() {
	[ -n "${LAB:-}" ] || return 0
	test/hosts/lab down "$LAB/hosts"
	rm -rf "$LAB"
}

setup() { write_fleet; }

lab() {
	local what=$1
	shift
	test/hosts/lab "$what" "$LAB/hosts" "$@"
}
on() { lab exec "$@"; }
berth() { lab run "$BERTH" "$@" -f "$FLEET"; }

# write_fleet [SED...]: one service on h1, changed as asked.
write_fleet() {
	cat >"$FLEET" <<'YAML'
version: 1
name: home
hosts:
  h1: {ssh: h1, memory: 8GiB}
  h2: {ssh: h2, memory: 8GiB}
runtimes:
  llama: {engine: llama.cpp, source: "debian:forky", packages: [llama.cpp-tools, llama.cpp-tools-extra, libggml0-backend-rpc]}
models:
  tiny: {source: "file:/srv/models", weights: berth-tiny-f16.gguf}
services:
  a: {host: h1, runtime: llama, model: tiny, port: 7771, context: 512, slots: 2, unit: systemd}
YAML
	[ $# -eq 0 ] || sed -i "$@" "$FLEET"
}

pid_of() { on "$1" systemctl show -P MainPID "berth-home-$2"; }
answers() { on "$1" curl -sf "http://127.0.0.1:$2/v1/models" | grep -q "\"id\":\"$3\""; }

# As the tests want it: a deployed, as declared.
settle() {
	write_fleet
	berth deploy >"$LAB/out" 2>&1 || { cat "$LAB/out"; return 1; }
	answers h1 7771 a
}
