#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# berth init and berth fit against the real engine: what init writes is started, --measure and --observe put into the ledger what later plans use and say, and a log is explained term by term.

load common

ready() {
	"$BERTH" runtime add -f "$fleet" >/dev/null
}

@test "what init writes comes up and answers; --observe learns from it and the next plan says so" {
	export HOME=$scratch
	mkdir "$scratch/m"
	cp "$models/$weights" "$scratch/m/"
	chmod -R a+rX "$scratch/m"
	"$BERTH" init -o "$fleet" "$scratch/m/$weights"
	sed -i "s/^name: .*/name: $name/; s/port: .*/port: $port_a/; s/listen: .*/listen: \"127.0.0.1:$router_port\"}/" "$fleet"
	"$BERTH" up -d -f "$fleet"
	answer=$(curl -sf "$router/v1/completions" -H 'Content-Type: application/json' -d '{"model": "berth-tiny-f16", "prompt": "one", "max_tokens": 4}')
	[[ $answer == *'"choices"'* ]]

	run "$BERTH" fit -f "$fleet" --observe
	[ "$status" -eq 0 ]
	[[ $output == "berth-tiny-f16: after-"*", kept in the ledger"* ]]
	"$BERTH" fit -f "$fleet" --observe --json | python3 -c 'import json, sys; o = json.load(sys.stdin)[0]; assert o["service"] == "berth-tiny-f16" and o["devices"][0]["device"] == "RAM" and o["devices"][0]["compute_read"] > 1 << 20, o'
	run "$BERTH" fit -f "$fleet"
	[ "$status" -eq 0 ]
	[[ $output == *"  measured "* ]]
	grep -qE '^  compute +[1-9][0-9.]* MiB \*$' <<<"$output"

	# the log of the very service agrees with the plan
	log=$(BERTH_STATE=$BERTH_STATE "$BERTH" status --json -f "$fleet" | python3 -c 'import json, sys; print(json.load(sys.stdin)["services"][0]["log"])')
	run "$BERTH" fit -f "$fleet" --explain-log "$log"
	[ "$status" -eq 0 ]
	[[ $output == *"KV cache"* ]]
	# and with one of another size it says which term is off
	sed -i 's/context: .*/context: 512/' "$fleet"
	run "$BERTH" fit -f "$fleet" --explain-log "$log"
	[ "$status" -eq 1 ]
	[[ $output == *"the log is of another shape"* ]]
	[[ $output == *"KV cache"* ]]
}

@test "--measure: the engine's own compute buffers, exact to a percent at the point held out, kept for the next plan" {
	write_fleet
	ready
	run "$BERTH" fit alpha -f "$fleet" --measure
	[ "$status" -eq 0 ]
	[[ $output == *"points measured"*"off by "*" % at the one held out"* ]]
	run "$BERTH" fit alpha -f "$fleet" --json
	[ "$status" -eq 0 ]
	python3 - "$output" <<-'EOT'
		import json, sys
		s = json.loads(sys.argv[1])["services"][0]
		assert s["calibration"]["compute_rows"] >= 1 and s["calibration"]["remaining_error"] <= 0.01, s["calibration"]
		c = [t for d in s["devices"] for t in d["terms"] if t["term"] == "compute"]
		assert c and all(t["known"] == "measured" for t in c), c
	EOT
}
