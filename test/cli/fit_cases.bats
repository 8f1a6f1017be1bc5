#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# What operators read off their machines, against what berth fit says of hollow files of the same shapes. What a build took beside the laws (driver, projector, where its drafter lay) is one number a card, taken from one reading.

load common

hollow() {
	mkdir -p "$scratch/h"
	"${BERTH%/*}/aids/fitmodels" --out "$scratch/h" "$@" >/dev/null
}

# The box with other numbers: the sed script, then options of fit.
asked() {
	sed "$1" examples/boxes/two-r9700-27b.yaml >"$scratch/f.yaml"
	shift
	run_split "$BERTH" fit -f "$scratch/f.yaml" --headers "$scratch/h" --json "$@"
}

@test "six splits of a 27B over two cards: steps from the header alone, twelve readings to 0.03 GiB from one, one split keeps a slack of 0.5 GiB" {
	hollow qwen38-27b qwen38-27b-dflash2
	asked 's/ubatch: 512/ubatch: 1536/' --table split
	[ "$status" -eq 0 ]
	python3 - "$output" <<-'EOT'
		import json, sys
		readings = {"39,26": (2.42, 7.20), "38,27": (3.85, 5.77), "37,28": (4.28, 5.34), "36,29": (4.71, 4.91), "35,30": (5.14, 4.48), "34,31": (6.57, 3.05)}
		left = {r["value"]: [r["left"]["ROCm%d" % i] / 2**30 for i in (0, 1)] for r in json.loads(sys.argv[1])["rows"]}
		order = list(readings)
		for i in (0, 1):
		    steps = [round(abs(left[b][i] - left[a][i]), 2) for a, b in zip(order, order[1:])]
		    assert steps == [1.43, 0.43, 0.43, 0.43, 1.43], (i, steps)
		extra = [readings["36,29"][i] - left["36,29"][i] for i in (0, 1)]
		gaps = {}
		for v, r in readings.items():
		    at = [left[v][i] + extra[i] for i in (0, 1)]
		    for i in (0, 1):
		        assert abs(at[i] - r[i]) <= 0.03, (v, i, at[i], r[i])
		    gaps[v] = abs(at[0] - at[1])
		assert [v for v, g in gaps.items() if g <= 0.5] == ["36,29"], gaps
	EOT
}

@test "131,072 tokens more cost 4.832 GB a card: eight attention layers and the mask in four copies" {
	hollow qwen38-27b
	plain='/speculative:/d; /draft-max:/d; /args:/d; s/split: .*/split: [1, 1]/; s/slots: 2/slots: 1/'
	asked "$plain; s/context: 262144/context: 131072/"
	before=$output
	asked "$plain"
	python3 - "$before" "$output" <<-'EOT'
		import json, sys
		a, b = (json.loads(x)["machines"][0]["devices"] for x in sys.argv[1:])
		for i in (0, 1):
		    assert abs((b[i]["used"] - a[i]["used"]) / 1e9 - 4.832) < 0.001, b[i]["used"] - a[i]["used"]
	EOT
}

@test "a drafter without a window is caught before anything is loaded" {
	hollow qwen38-27b qwen38-27b-dflash2 qwen38-27b-dspark
	asked 's/qwen38-27b-dflash2/qwen38-27b-dspark/; s/draft-dflash/draft-dspark/; s/draft-max: 7/draft-max: 6/'
	python3 - "$output" <<-'EOT'
		import json, sys
		s = json.loads(sys.argv[1])["services"][0]
		n = [x for x in s["notes"] if x["rule"] == "drafter-window"]
		assert n and n[0]["severity"] == "warning" and "5.00 GiB" in n[0]["text"], s["notes"]
		kv = sum(t["bytes"] for d in s["devices"] for t in d["terms"] if t["term"] == "draft KV cache")
		assert kv == 5 << 30, kv
	EOT
	asked 's/nothing//'
	python3 - "$output" <<-'EOT'
		import json, sys
		s = json.loads(sys.argv[1])["services"][0]
		assert not [x for x in s["notes"] if x["rule"] == "drafter-window"]
		kv = sum(t["bytes"] for d in s["devices"] for t in d["terms"] if t["term"] == "draft KV cache")
		assert kv < 200 << 20, kv
	EOT
}

@test "the prompt cache's cap must hold a full slot: 8192 MiB does not, 16384 MiB does" {
	hollow qwen38-27b
	mtp='s/speculative: .*/speculative: [draft-mtp]/; s/draft-max: 7/draft-max: 3/; /drafter:/d; /args:/d; s/context: 262144/context: 393216/; s/split: .*/split: [34, 31]/'
	asked "$mtp; s/prompt-cache: 16GiB/prompt-cache: 8GiB/"
	[[ $output == *'"prompt-cache-small"'* ]]
	[[ $output == *'"saved_slot_bytes": 13856540260'* ]] # target and MTP block, 196,608 tokens
	asked "$mtp"
	[[ $output != *'"prompt-cache-small"'* ]]
	[[ $output != *'"prompt-cache-large"'* ]]
}

@test "65,536 bytes a token in the target's cache, 4,096 in that of its MTP block" {
	hollow qwen38-27b
	asked 's/speculative: .*/speculative: [draft-mtp]/; s/draft-max: 7/draft-max: 3/; /drafter:/d; /args:/d'
	python3 - "$output" <<-'EOT'
		import json, sys
		s = json.loads(sys.argv[1])["services"][0]
		sums = {}
		for d in s["devices"]:
		    for t in d["terms"]:
		        sums[t["term"]] = sums.get(t["term"], 0) + t["bytes"]
		assert sums["KV cache"] == 65536 * 262144 and sums["draft KV cache"] == 4096 * 262144, sums
	EOT
}

@test "a table that no override reaches: a pattern that matches no tensor is said to" {
	hollow qwen38-flash-next
	sed 's/args: .*/args: ["-cmoe", "-ot", "ngram_embeddings=CPU"]/' examples/boxes/two-r9700-flash-next.yaml >"$scratch/f.yaml"
	run_split "$BERTH" fit -f "$scratch/f.yaml" --headers "$scratch/h"
	[[ $output == *"[override-unmatched]"* ]]
	[[ $output == *"ngram_embeddings"* ]]
}

@test "experts in host RAM are read at its bandwidth, over a link at the link's" {
	hollow qwen38-flash-next
	run_split "$BERTH" fit -f examples/boxes/two-r9700-flash-next.yaml --headers "$scratch/h" --json
	at_ram=$output
	sed 's/bandwidth: 256GB/bandwidth: 6.72GB/' examples/boxes/two-r9700-flash-next.yaml >"$scratch/f.yaml"
	run_split "$BERTH" fit -f "$scratch/f.yaml" --headers "$scratch/h" --json
	python3 - "$at_ram" "$output" <<-'EOT'
		import json, sys
		a, b = (json.loads(x)["services"][0]["speed"] for x in sys.argv[1:])
		# 20.46 tokens/s were measured with the experts computed in RAM; 1.70 GiB of them behind 6.72 GB/s are 3.7 tokens/s, and here it is 2.33 GiB
		assert 20.46 < a["decode_tok_s"] < 40 and abs(b["decode_tok_s"] - 3.7 * 1.70 / 2.33) < 0.3, (a, b)
	EOT
}
