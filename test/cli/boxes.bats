#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# The boxes of examples/boxes: each fits as operators of such machines found it, and what the documents show of them is what berth fit prints.

load common

plan() { # plan BOX MODEL...: the plan as JSON in $output
	local box=$1
	shift
	mkdir -p "$scratch/h"
	"${BERTH%/*}/aids/fitmodels" --out "$scratch/h" "$@" >/dev/null
	run_split "$BERTH" fit -f "examples/boxes/$box.yaml" --headers "$scratch/h" --json
	[ "$status" -eq 0 ]
}

@test "two cards with the 27B: within what was read there" {
	plan two-r9700-27b qwen38-27b qwen38-27b-dflash2
	python3 - "$output" <<-'EOT'
		import json, sys
		d = {x["name"]: x["left"] / 2**30 for x in json.loads(sys.argv[1])["machines"][0]["devices"]}
		# read after load: 6.01 and 7.32 free, by another build that placed a projector beside the drafter
		assert abs(d["ROCm0"] - 6.01) < 1 and abs(d["ROCm1"] - 7.32) < 1.5, d
	EOT
}

@test "two cards with the sparse model: 29,696 bytes a token, experts and table in RAM" {
	plan two-r9700-flash-next qwen38-flash-next
	python3 - "$output" <<-'EOT'
		import json, sys
		p = json.loads(sys.argv[1])
		s = p["services"][0]
		per_token = {}
		for x in s["devices"]:
		    for t in x["terms"]:
		        per_token[t["term"]] = per_token.get(t["term"], 0) + t["bytes"] / 262144
		assert per_token["KV cache"] == 24576, per_token
		assert per_token["indexer"] == 3072, per_token
		ram = [x for x in s["devices"] if x["device"] == "RAM"][0]
		assert 165 < ram["mapped"] / 2**30 < 175.3, ram["mapped"]
		cards = [x for x in s["devices"] if x["device"] != "RAM"]
		# 9.37 GiB a card were read with a drafter's head beside it (2,048 bytes a token, its weights and its compute), which this fleet does not load
		assert all(9.37 - 1.5 < x["used"] / 2**30 < 9.37 for x in cards), [x["used"] / 2**30 for x in cards]
	EOT
}

@test "one card with Gemma: 3,450 MiB a slot, four fit and a fifth does not" {
	plan rtx-3090-gemma gemma4-12b gemma4-12b-assistant
	python3 - "$output" <<-'EOT'
		import json, sys
		p = json.loads(sys.argv[1])
		kv = [t["bytes"] for x in p["services"][0]["devices"] for t in x["terms"] if t["term"] == "KV cache"][0]
		assert abs(kv / 4 / 2**20 - 3450) < 35, kv
		used = p["machines"][0]["devices"][0]["used"]
		# 22,346 MiB were read with four slots
		assert abs(used / 2**20 - 22346) < 512, used / 2**20
	EOT
	sed 's/context: 1048576/context: 1310720/; s/slots: 4/slots: 5/' examples/boxes/rtx-3090-gemma.yaml >"$scratch/five.yaml"
	run_split "$BERTH" fit -f "$scratch/five.yaml" --headers "$scratch/h"
	[ "$status" -eq 1 ]
	[[ $output == *"does not fit: CUDA0"* ]]
}

@test "an integrated GPU: what it takes is gone from the RAM" {
	plan igpu-shared qwen35-35b-a3b
	python3 - "$output" <<-'EOT'
		import json, sys
		m = json.loads(sys.argv[1])["machines"][0]
		gpu, ram = m["devices"]
		own = [x["used"] for x in json.loads(sys.argv[1])["services"][0]["devices"] if x["device"] == "RAM"][0]
		assert gpu["shared"] and ram["used"] == own + gpu["used"], m
	EOT
	# less RAM than the pool and the rest need
	sed 's/memory: 62GiB/memory: 34GiB/' examples/boxes/igpu-shared.yaml >"$scratch/less.yaml"
	run_split "$BERTH" fit -f "$scratch/less.yaml" --headers "$scratch/h"
	[ "$status" -eq 1 ]
	[[ $output == *"does not fit: RAM is "* ]]
}

@test "what the documents show is what berth fit prints" {
	run env BUILD="${BERTH%/*}" tools/boxes check
	[ "$status" -eq 0 ] || { printf '%s\n' "$output" | head -n 60; false; }
}
