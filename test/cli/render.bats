#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# Units of services, as this machine's systemd reads them. That they run is for the tests on real hosts.

load common

fleet() {
	cat >"$scratch/fleet.yaml" <<'YAML'
version: 1
name: home
runtimes:
  own: {engine: generic, source: system}
services:
  child: {runtime: own, port: 7771, command: [/bin/true]}
  plain: {runtime: own, port: 7772, unit: systemd, command: [/bin/echo, "100% of $HOME", 'a"b', 'c\d', "{port}"]}
YAML
}

@test "a unit is what systemd accepts, and every word arrives as it was written" {
	command -v systemd-analyze >/dev/null || skip "no systemd-analyze"
	fleet
	"$BERTH" runtime add -f "$scratch/fleet.yaml" >/dev/null 2>&1
	run "$BERTH" render units -f "$scratch/fleet.yaml" --out "$scratch/units" --verify
	[ "$status" -eq 0 ] || { echo "$output"; false; }
	[ "$(ls "$scratch/units")" = berth-home-plain.service ]
	grep -qx 'ExecStart=/bin/echo "100%% of $$HOME" "a\\"b" "c\\\\d" 7772' "$scratch/units/berth-home-plain.service" || { cat "$scratch/units/berth-home-plain.service"; false; }
}

@test "a child is no unit; a fleet without units says so" {
	fleet
	run "$BERTH" render units child -f "$scratch/fleet.yaml"
	[ "$status" -eq 2 ]
	[[ $output == *"service 'child' is a child of 'berth up'"* ]]
	sed -i /plain/d "$scratch/fleet.yaml"
	run "$BERTH" render units -f "$scratch/fleet.yaml"
	[ "$status" -eq 2 ]
	[[ $output == *"no service of fleet 'home' is a unit"* ]]
	run "$BERTH" render dashboards -f "$scratch/fleet.yaml"
	[ "$status" -eq 2 ]
	[[ $output == *"cannot render 'dashboards'"* ]]
}
