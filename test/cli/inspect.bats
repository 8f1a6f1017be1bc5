#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# berth inspect: summary, tables and JSON of sound files; every file of the hostile corpus with its verdict, also under the sanitizers when that build is there.

load common

hostile() {
	[ -d "$scratch/hostile" ] || "${BERTH%/*}/aids/hostile" "$scratch/hostile" >/dev/null
}

# Runs every case of the corpus with program $1: exit code, text, one line of error, no control byte.
replay() {
	hostile
	python3 - "$1" "$scratch/hostile" <<-'EOT'
		import subprocess, sys
		berth, folder = sys.argv[1:]
		bad = n = 0
		for line in open(folder + "/list", encoding="utf-8"):
		    path, code, says = line.rstrip("\n").split("\t")
		    r = subprocess.run([berth, "inspect", folder + "/" + path], capture_output=True, timeout=60)
		    said = (r.stdout + r.stderr).decode("utf-8")
		    n += 1
		    fine = r.returncode == int(code) and says in said and not any(c < " " and c != "\n" for c in said)
		    if r.returncode:
		        fine = fine and r.stderr.startswith(b"berth inspect: " + (folder + "/" + path).encode() + b": ") and r.stderr.count(b"\n") == 1
		    else:
		        fine = fine and not r.stderr
		    if not fine:
		        bad += 1
		        print(f"{path}: exit {r.returncode}, want {code} and '{says}':\n{said}")
		print(n, "cases")
		sys.exit(bad > 0 or n < 200)
	EOT
}

@test "hostile corpus: every file gets its verdict" {
	replay "$BERTH"
}

@test "hostile corpus under ASan and UBSan" {
	[ -x build/asan/berth ] || skip "build/asan is not built"
	replay "$PWD/build/asan/berth"
}

@test "the summary of a small model" {
	run_split "$BERTH" inspect assets/tiny/berth-tiny-q8_0.gguf
	[ "$status" -eq 0 ]
	[ -z "$errors" ]
	diff - <(printf '%s\n' "$output") <<-'EOT'
		assets/tiny/berth-tiny-q8_0.gguf
		  model          berth-tiny 4x192, llama, Q8_0
		  parameters     1.33 M parameters in 38 tensors, 8.53 bits per weight
		  size           1.36 MiB, header 6.88 KiB, GGUF v3
		  layers         4 layers: 4 full attention
		  attention      6 heads, 2 for K and V, 32 wide
		  context        1,024 tokens
		  vocabulary     261 tokens, gpt2/default
		  chat template  153 B
		  weights        q8_0 1.35 MiB, f32 6.75 KiB
	EOT
}

@test "layers by kind, drafters, and an architecture that is not known" {
	python3 test/aids/headers.py "$scratch"
	run_split "$BERTH" inspect "$scratch/drafter.gguf"
	[ "$status" -eq 0 ]
	[[ $output == *"drafter        A drafter, dflash"* ]]
	[[ $output == *"5 layers: 5 sliding window"* ]]
	[[ $output == *"drafts         as draft-dflash, block size 8, sliding window 2,048, listens to layers 1, 17, 33"* ]]
	run_split "$BERTH" inspect "$scratch/window.gguf"
	[ "$status" -eq 0 ]
	[[ $output == *"12 layers: 2 full attention, 10 sliding window"*"window         1,024 tokens"* ]]
	run_split "$BERTH" inspect "$scratch/hybrid.gguf"
	[ "$status" -eq 0 ]
	[[ $output == *"9 layers: 2 full attention, 6 recurrent, 1 next-token (MTP)"*"drafts         for itself as draft-mtp"* ]]
	run_split "$BERTH" inspect "$scratch/unknown.gguf"
	[ "$status" -eq 0 ]
	[[ $output == *"3 layers: 2 attention, 1 recurrent; 1 with experts"*"128 tokens, in which layers is not known here"*"note           the laws of this architecture are not known here"* ]]
	[[ $output != *"engines refuse"* ]]
}

@test "--kv lists every key with type and value, --tensors every tensor with its place" {
	run_split "$BERTH" inspect --kv --tensors assets/tiny/berth-tiny-draft-f16.gguf
	[ "$status" -eq 0 ]
	[[ $output == *"KEY "*"TYPE "*"VALUE"* ]]
	grep -qE '^llama\.context_length +u32 +1024$' <<<"$output"
	grep -qE '^tokenizer\.ggml\.tokens +string\[\] +\[261\] "Ā", "ā", ' <<<"$output"
	grep -qE '^tokenizer\.ggml\.add_bos_token +bool +true$' <<<"$output"
	grep -qE '^token_embd\.weight +96 x 261 +f16 +48\.94 KiB +5440$' <<<"$output"
	[ "$(grep -cE '^(blk|token_embd|output_norm)' <<<"$output")" -eq 11 ]
}

@test "--json: one object for each file, failures among them" {
	run_split "$BERTH" inspect --json --kv --tensors assets/tiny/berth-tiny-q8_0.gguf "$scratch/nowhere.gguf" assets/tiny/berth-tiny-f16.gguf
	[ "$status" -eq 1 ]
	[[ $errors == "berth inspect: $scratch/nowhere.gguf: cannot open the file: No such file or directory" ]]
	python3 - "$output" <<-'EOT'
		import json, sys
		a, none, b = json.loads(sys.argv[1])
		assert a["file"] == "assets/tiny/berth-tiny-q8_0.gguf" and none["file"].endswith("/nowhere.gguf")
		assert a["format"] == "gguf" and a["version"] == 3 and a["role"] == "model", a
		assert a["architecture"] == "llama" and a["context"] == 1024 and a["parameters"] == 1329792
		assert a["layers"]["total"] == 4 and a["layers"]["full_attention"] == 4
		assert sum(t["bytes"] for t in a["types"]) == a["weight_bytes"] == sum(t["bytes"] for t in a["tensors"])
		assert len(a["tensors"]) == a["tensor_count"] == 38 and a["error"] is None
		assert {t["name"]: t["shape"] for t in a["tensors"]}["token_embd.weight"] == [192, 261]
		kv = {k["key"]: k for k in a["kv"]}
		assert kv["llama.block_count"] == {"key": "llama.block_count", "type": "u32", "value": 4}
		assert kv["tokenizer.ggml.tokens"]["count"] == 261 and len(kv["tokenizer.ggml.tokens"]["first"]) == 6
		assert none["file"].endswith("nowhere.gguf") and "No such file" in none["error"]
		assert b["file_type"] == "F16"
	EOT
}

@test "any part stands for its set, and a set is shown once" {
	hostile
	cd "$scratch/hostile/set_sound"
	run_split "$BERTH" inspect m-00002-of-00003.gguf
	[ "$status" -eq 0 ]
	[[ $output == *"Sound Model, llama"*" in 3 parts"* ]]
	[[ $output == *"PART  FILE"*"m-00001-of-00003.gguf"*"m-00003-of-00003.gguf"*" ok"* ]]
	run_split "$BERTH" inspect m-*.gguf
	[ "$status" -eq 0 ]
	[ "$(grep -c 'Sound Model' <<<"$output")" -eq 1 ]
}

@test "a missing part is named, and what is there is shown all the same" {
	hostile
	cd "$scratch/hostile/set_missing"
	run_split "$BERTH" inspect m-00001-of-00003.gguf
	[ "$status" -eq 1 ]
	[ "$errors" = "berth inspect: m-00001-of-00003.gguf: part 2 of 3 is missing: m-00002-of-00003.gguf; fetch it" ]
	[[ $output == *"Sound Model"*"m-00002-of-00003.gguf"*"missing"* ]]
	run_split "$BERTH" inspect --json m-00001-of-00003.gguf
	[ "$status" -eq 1 ]
	python3 -c 'import json, sys; x = json.loads(sys.argv[1])[0]; assert [p["state"] for p in x["parts"]] == ["ok", "missing", "ok"] and "part 2 of 3" in x["error"]' "$output"
}

@test "safetensors take what config.json says" {
	hostile
	cd "$scratch/hostile/index_sound"
	cat >config.json <<-'EOT'
		{"architectures": ["ExampleForCausalLM"], "model_type": "example", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32768,
		 "vocab_size": 1000, "sliding_window": 512, "layer_types": ["full_attention", "sliding_attention", "linear_attention", "full_attention"], "num_experts": 8, "num_experts_per_tok": 2}
	EOT
	run_split "$BERTH" inspect model.safetensors.index.json
	[ "$status" -eq 0 ]
	[[ $output == *"ExampleForCausalLM, example"* ]]
	[[ $output == *"4 layers: 2 full attention, 1 sliding window, 1 recurrent"* ]]
	[[ $output == *"4 heads, 2 for K and V, 16 wide"* ]]
	[[ $output == *"8 experts, 2 used"* && $output == *"32,768 tokens"* ]]
	[[ $output == *"x.safetensors"*"y.safetensors"* ]]
	# a broken config.json is a note, no failure
	echo '{' >config.json
	run_split "$BERTH" inspect x.safetensors
	[ "$status" -eq 0 ]
	[[ $output == *"config.json cannot be used: "* ]]
}

@test "no file, a folder, a pipe: said and not waited for" {
	run_split "$BERTH" inspect
	[ "$status" -eq 2 ]
	run_split "$BERTH" inspect "$scratch"
	[ "$status" -eq 1 ]
	[ "$errors" = "berth inspect: $scratch: is a folder; name a file in it" ]
	mkfifo "$scratch/pipe"
	run_split timeout 10 "$BERTH" inspect "$scratch/pipe"
	[ "$status" -eq 1 ]
	[ "$errors" = "berth inspect: $scratch/pipe: is a pipe; name a file" ]
}

@test "a hollow file of half a terabyte takes no longer than its header" {
	cp assets/tiny/berth-tiny-f16.gguf "$scratch/big.gguf"
	truncate -s 500G "$scratch/big.gguf"
	run_split timeout 10 "$BERTH" inspect "$scratch/big.gguf"
	[ "$status" -eq 0 ]
	[[ $output == *"behind the last tensor; engines do not mind"* ]]
}

@test "a full disk at stdout is a failure" {
	[ -c /dev/full ] || skip "no /dev/full"
	run bash -c '"$0" inspect assets/tiny/berth-tiny-f16.gguf >/dev/full' "$BERTH"
	[ "$status" -eq 1 ]
	[[ $output == *"cannot write the result"* ]]
}
