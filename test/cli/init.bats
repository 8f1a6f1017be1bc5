#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# berth init: models found where other programs keep theirs, a file that parses, fits and is never written over another, and what it says when there is nothing to serve.

load common

tiny=$PWD/assets/tiny/berth-tiny-q8_0.gguf

# A home of its own, so that this machine's models stay out of it.
home() {
	mkdir -p "$scratch/home" "$scratch/work"
	unset HF_HOME HF_HUB_CACHE OLLAMA_MODELS LLAMA_CACHE
	export HOME=$scratch/home
}

init() {
	run_split "$BERTH" init -o "$scratch/work/fleet.yaml" "$@"
}

# The written file is sound: every contract but the runtime's holds, and it fits.
sound() {
	run_split "$BERTH" check -f "$scratch/work/fleet.yaml"
	[ "$status" -eq 0 ]
	[[ $output == *"ok"*"payload"* ]]
	[[ $output == *"ok"*"argv"* ]]
	[[ $output == *"ok"*"fit"* ]]
	run_split "$BERTH" fit -f "$scratch/work/fleet.yaml"
	[ "$status" -eq 0 ]
}

@test "one file: a fleet that serves it, with comments, and nothing else is written" {
	home
	init "$tiny"
	[ "$status" -eq 0 ]
	[[ $output == *"fleet.yaml is written: berth-tiny-q8_0 on the "*"'berth up -f $scratch/work/fleet.yaml' starts it"* ]]
	[ "$(ls "$scratch/work")" = fleet.yaml ]
	grep -qF 'weights: "berth-tiny-q8_0.gguf"' "$scratch/work/fleet.yaml"
	grep -qF 'context: 1024' "$scratch/work/fleet.yaml"
	grep -qE '^ *# ' "$scratch/work/fleet.yaml"
	sound
}

@test "with --units the service is a unit of systemd, and the next steps are those of a deploy" {
	home
	init --units "$tiny"
	[ "$status" -eq 0 ]
	[[ $output == *"'berth runtime add -f $scratch/work/fleet.yaml' and then 'berth deploy -f $scratch/work/fleet.yaml' start it"* ]]
	grep -qx '    unit: systemd' "$scratch/work/fleet.yaml"
	grep -q '^router: {host: here, unit: systemd, listen: ' "$scratch/work/fleet.yaml"
	! grep -qF "'berth up'" "$scratch/work/fleet.yaml" || false
	sound
}

@test "with --units an account without root gets units of its own" {
	[ "$(id -u)" = 0 ] || skip "needs root to become another account"
	home
	cp "$tiny" "$scratch/m.gguf"
	chmod 755 "$scratch"
	run_split setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/nonexistent "$BERTH" init --units --print "$scratch/m.gguf"
	[ "$status" -eq 0 ]
	[ "$(grep -c '^    scope: user ' <<<"$output")" -eq 1 ]
	run_split "$BERTH" init --units --print "$scratch/m.gguf"
	[[ $output != *"scope: user"* ]]
}

@test "a file that exists is kept without --force, and --print writes none" {
	home
	echo mine >"$scratch/work/fleet.yaml"
	init "$tiny"
	[ "$status" -eq 1 ]
	[[ $errors == *"exists: --force replaces it"* ]]
	[ "$(cat "$scratch/work/fleet.yaml")" = mine ]
	init --print "$tiny"
	[ "$status" -eq 0 ]
	[[ $output == "# Written by berth init"* ]]
	[ "$(cat "$scratch/work/fleet.yaml")" = mine ]
	init --force "$tiny"
	[ "$status" -eq 0 ]
	sound
	# a link is not followed
	ln -sf "$scratch/target" "$scratch/work/link.yaml"
	run_split "$BERTH" init --force -o "$scratch/work/link.yaml" "$tiny"
	[ "$status" -eq 1 ]
	[ ! -e "$scratch/target" ]
}

@test "the Hugging Face cache: links to blobs are found under their own names" {
	home
	hub=$HOME/.cache/huggingface/hub/models--org--repo
	mkdir -p "$hub/blobs" "$hub/snapshots/0123"
	cp "$tiny" "$hub/blobs/abcd"
	ln -s ../../blobs/abcd "$hub/snapshots/0123/Tiny-Q8_0.gguf"
	init
	[ "$status" -eq 0 ]
	grep -qF 'found in the Hugging Face cache' "$scratch/work/fleet.yaml"
	grep -qF 'weights: "Tiny-Q8_0.gguf"' "$scratch/work/fleet.yaml"
	grep -qF '  tiny-q8_0:' "$scratch/work/fleet.yaml"
	sound
	# elsewhere by its variable
	mv "$HOME/.cache/huggingface/hub" "$scratch/hub"
	HF_HUB_CACHE=$scratch/hub init --print
	[ "$status" -eq 0 ]
	[[ $output == *"$scratch/hub"* ]]
}

@test "LM Studio's and Ollama's folders" {
	home
	mkdir -p "$HOME/.lmstudio/models/org/repo"
	cp "$tiny" "$HOME/.lmstudio/models/org/repo/studio.gguf"
	init --print
	[ "$status" -eq 0 ]
	[[ $output == *"found in LM Studio's folder"*'weights: "studio.gguf"'* ]]
	rm -r "$HOME/.lmstudio"

	sha=$(sha256sum "$tiny" | cut -d ' ' -f 1)
	mkdir -p "$HOME/.ollama/models/blobs" "$HOME/.ollama/models/manifests/registry.ollama.ai/library/tiny"
	cp "$tiny" "$HOME/.ollama/models/blobs/sha256-$sha"
	cat >"$HOME/.ollama/models/manifests/registry.ollama.ai/library/tiny/8b" <<-EOT
		{"schemaVersion": 2, "layers": [{"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:00"},
		 {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:$sha"}]}
	EOT
	echo '{"layers": 1' >"$HOME/.ollama/models/manifests/registry.ollama.ai/library/tiny/bad"
	echo '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../x"}]}' >"$HOME/.ollama/models/manifests/registry.ollama.ai/library/tiny/out"
	init
	[ "$status" -eq 0 ]
	grep -qF "found in Ollama's folder" "$scratch/work/fleet.yaml"
	grep -qF '  tiny-8b:' "$scratch/work/fleet.yaml"
	sound
}

@test "of a folder the largest model that fits is served; the rest is listed" {
	home
	mkdir -p "$scratch/models"
	cp assets/tiny/*.gguf "$scratch/models"
	"${BERTH%/*}/aids/fitmodels" --out "$scratch/models" deepseek-671b drafter-dflash >/dev/null
	echo broken >"$scratch/models/broken.gguf"
	init "$scratch/models"
	[ "$status" -eq 0 ]
	grep -qF 'weights: "berth-tiny-f16.gguf"' "$scratch/work/fleet.yaml"
	grep -qE '^ *# .*deepseek-671b.*: model, deepseek2, ' "$scratch/work/fleet.yaml"
	grep -qE '^ *# .*drafter-dflash.gguf: drafter \(draft-dflash\), ' "$scratch/work/fleet.yaml"
	[ "$(grep -c '^    port:' "$scratch/work/fleet.yaml")" -eq 1 ]
	sound
}

@test "several files: a service for each, ports and names that differ" {
	home
	mkdir -p "$scratch/a" "$scratch/b"
	cp "$tiny" "$scratch/a/m.gguf"
	cp assets/tiny/berth-tiny-f16.gguf "$scratch/b/m.gguf"
	init "$scratch/a/m.gguf" "$scratch/b/m.gguf"
	[ "$status" -eq 0 ]
	[[ $output == *"and 1 more"* ]]
	[ "$(grep '^    port:' "$scratch/work/fleet.yaml" | sort -u | wc -l)" -eq 2 ]
	grep -qF '  m:' "$scratch/work/fleet.yaml"
	grep -qF '  m-2:' "$scratch/work/fleet.yaml"
	sound
}

# This machine as test/hw/NAME.tree records one.
machine() {
	test/hw/unpack "test/hw/$1.tree" "$scratch/root"
	export BERTH_HW_ROOT=$scratch/root
}

@test "two cards: both are declared with their addresses, the model is split and fits" {
	home
	machine two-r9700
	mkdir "$scratch/m"
	"${BERTH%/*}/aids/fitmodels" --out "$scratch/m" qwen38-27b >/dev/null
	init "$scratch/m/qwen38-27b.gguf"
	[ "$status" -eq 0 ]
	[ "$(grep -c '{name: Vulkan[01], memory: 32624MiB, pci: "0000:' "$scratch/work/fleet.yaml")" -eq 2 ]
	grep -qF 'packages: [llama.cpp-tools, libggml0-backend-vulkan]' "$scratch/work/fleet.yaml"
	grep -qF 'context: 131072' "$scratch/work/fleet.yaml"
	run_split "$BERTH" fit -f "$scratch/work/fleet.yaml" --json
	[ "$status" -eq 0 ]
	python3 - "$output" <<-'EOT'
		import json, sys
		m = json.loads(sys.argv[1])["machines"][0]
		assert all(d["used"] > 10 << 30 for d in m["devices"][:2]), m["devices"]
		assert all(d["left"] >= 1 << 30 for d in m["devices"]), m["devices"]
	EOT
}

@test "an integrated GPU: its pool is the machine's memory, and the file says so" {
	home
	machine strix-halo
	mkdir "$scratch/m"
	"${BERTH%/*}/aids/fitmodels" --out "$scratch/m" qwen35-35b-a3b >/dev/null
	init "$scratch/m"
	[ "$status" -eq 0 ]
	grep -qF "its memory is the machine's" "$scratch/work/fleet.yaml"
	run_split "$BERTH" fit -f "$scratch/work/fleet.yaml" --json
	[ "$status" -eq 0 ]
	python3 -c 'import json,sys; d = json.loads(sys.argv[1])["machines"][0]["devices"]; assert d[0]["shared"] and d[0]["used"] > 20 << 30 and d[1]["used"] > d[0]["used"], d' "$output"
}

@test "nothing to serve: exit 1 and what to do, and no file" {
	home
	init
	[ "$status" -eq 1 ]
	[[ $errors == *"no model was found"*"berth init FILE.gguf"* ]]
	init "$scratch/nowhere"
	[ "$status" -eq 1 ]
	[[ $errors == *"cannot read '$scratch/nowhere'"* ]]
	echo broken >"$scratch/broken.gguf"
	init "$scratch/broken.gguf"
	[ "$status" -eq 1 ]
	[[ $errors == *"'$scratch/broken.gguf': "* ]]
	mkdir "$scratch/large"
	"${BERTH%/*}/aids/fitmodels" --out "$scratch/large" deepseek-671b >/dev/null
	init "$scratch"/large/*.gguf
	[ "$status" -eq 1 ]
	[[ $errors == *"does not fit here"* ]]
	[ ! -e "$scratch/work/fleet.yaml" ]
}

@test "names and headers from outside: what no fleet file can hold is refused or passed over, and cannot write into it" {
	home
	mkdir -p "$scratch/m"
	cp "$tiny" "$scratch/m/fine.gguf"
	cp assets/tiny/berth-tiny-f16.gguf "$scratch/m/"$'two\nlines.gguf'
	cp assets/tiny/berth-tiny-f16.gguf "$scratch/m/"$'not\xffutf8.gguf'
	python3 - "$scratch/m/evil.gguf" <<-'EOT'
		import struct, sys
		def s(b): return struct.pack('<Q', len(b)) + b
		def u32(k, v): return s(k) + struct.pack('<II', 4, v)
		arch = b'bad\n  evil: {source: "file:/", weights: x}\n  # '
		kvs = [s(b'general.architecture') + struct.pack('<I', 8) + s(arch)]
		kvs += [u32(arch + k, v) for k, v in ((b'.block_count', 1), (b'.context_length', 64), (b'.embedding_length', 32), (b'.attention.head_count', 1))]
		h = b'GGUF' + struct.pack('<IQQ', 3, 1, len(kvs)) + b''.join(kvs)
		h += s(b'token_embd.weight') + struct.pack('<IQQIQ', 2, 32, 8, 0, 0)
		open(sys.argv[1], 'wb').write(h + b'\0' * (-len(h) % 32) + b'\0' * 1024)
	EOT
	init "$scratch/m"
	[ "$status" -eq 0 ]
	grep -qF 'weights: "fine.gguf"' "$scratch/work/fleet.yaml"
	[ "$(grep -cE 'evil|lines|utf8' "$scratch/work/fleet.yaml")" -eq 0 ]
	sound
	init --force "$scratch/m/evil.gguf"
	[ "$status" -eq 1 ]
	[[ $errors == *"key 'general.architecture' holds the byte 0x0a: this is no name that an engine knows" ]]
	init --force "$scratch/m/"$'two\nlines.gguf'
	[ "$status" -eq 1 ]
	[[ $errors == "berth init: '"*"two\\x0alines.gguf': no fleet file can hold this path: it must be UTF-8 without control characters; rename it" ]]
	init --force "$scratch/m/"$'not\xffutf8.gguf'
	[ "$status" -eq 1 ]
	[[ $errors == *"no fleet file can hold this path"* ]]
}

@test "a file that generates no text is refused by what it is" {
	home
	mkdir -p "$scratch/m"
	"${BERTH%/*}/aids/fitmodels" --out "$scratch/m" drafter-dflash >/dev/null
	init "$scratch/m/drafter-dflash.gguf"
	[ "$status" -eq 1 ]
	[[ $errors == *"drafter-dflash.gguf' cannot be served by itself: it is a drafter; name a model that generates text" ]]
	[ ! -e "$scratch/work/fleet.yaml" ]
}
