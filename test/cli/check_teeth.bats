#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# Teeth of `berth check`: the fleet of examples/checked holds every contract; broken once for each of them, exactly that one breaks. A contract without a mutation here fails.

load common

# The example as somebody has it who uses it: models, an engine, keys, files of clients, its units in place.
make_example() {
	command -v systemd-analyze >/dev/null || skip "no systemd-analyze"
	umask 022
	export BERTH_CONFIG=$scratch/config/berth
	dir=$scratch/fleet
	cp -r examples/checked "$dir"
	mkdir -p "$dir/models" "$dir/engine/bin"
	cp assets/tiny/berth-tiny-f16.gguf "$dir/models/tiny.gguf"
	cp assets/tiny/berth-tiny-draft-f16.gguf "$dir/models/draft.gguf"
	"${BERTH%/*}/aids/fitmodels" --out "$dir/models" projector-gemma3 >/dev/null
	mv "$dir/models/projector-gemma3.gguf" "$dir/models/mmproj.gguf"
	printf '#!/bin/sh\necho "version: 1 (own)" >&2\n' >"$dir/engine/bin/llama-server"
	chmod 755 "$dir/engine/bin/llama-server"
	f=$dir/fleet.yaml
	"$BERTH" key add laptop -f "$f" >/dev/null 2>&1
	"$BERTH" runtime add -f "$f" >/dev/null 2>&1
	"$BERTH" render clients --write -f "$f" 2>/dev/null
	units=$scratch/config/systemd/user
	"$BERTH" render units --out "$units" -f "$f" >/dev/null
	mkdir "$scratch/good"
	cp -a "$dir" "$scratch/config" "$BERTH_STATE" "$scratch/good"
}

restore() {
	rm -rf "$dir" "$scratch/config" "$BERTH_STATE"
	cp -a "$scratch/good/fleet" "$scratch/good/config" "$scratch/good/state" "$scratch"
}

contracts() {
	"$BERTH" check --list --json -f "$f" | python3 -c 'import json, sys; print(*(c["contract"] for c in json.load(sys.stdin)))'
}

# Prints the contracts that are broken; "?" when one of them has no text, place, reason or remedy.
broken() {
	"$BERTH" check --json -f "$f" 2>"$scratch/stderr" >"$scratch/json" || [ -s "$scratch/json" ] || echo '[]' >"$scratch/json"
	python3 - "$scratch/json" <<-'EOT'
		import json, sys
		rows = [r for r in json.load(open(sys.argv[1])) if r["verdict"] == "broken"]
		print(*dict.fromkeys(r["contract"] for r in rows))
		if not all(r["text"] and r["where"] and r["fix"] and (r["why"] or r["contract"] == "even-slots") for r in rows):
		    print("?", rows)
	EOT
}

# ---- mutations: one for each contract ------------------------------------------------------------------------------

# shellcheck disable=SC2329 # called by their names
{
	break_runtime() { local p; p=$(find "$BERTH_STATE/store/runtimes" -name llama-server -type f) && chmod u+w "$p" && echo '# more' >>"$p"; }
	break_payload() { rm "$dir/models/mmproj.gguf"; }
	break_model() { truncate -s 100 "$dir/models/draft.gguf"; }
	break_template() { echo 'no tag at all' >"$dir/templates/chat.jinja"; }
	break_projector() { cp "$dir/models/draft.gguf" "$dir/models/mmproj.gguf" && sed -i 's/"image"/"text"/' "$dir/clients/opencode.json" && sed -i 's/vision: true/vision: false/' "$dir/clients/litellm.yaml"; }
	break_drafter() { sed -i 's/draft-simple/draft-eagle3/' "$f"; }
	break_shape() { sed -i '/chat-[12]:/s/unit: systemd/unit: systemd, args: [-ot, "nothing_like_it=CPU"]/' "$f"; }
	break_argv() { sed -i '/chat-2:/s/draft-simple/ngram-mod/' "$f"; }
	break_fit() { sed -i 's/floor: 256MiB/floor: 1GiB/' "$f"; }
	break_slack() { sed -i 's/slack: 1GiB/slack: 64MiB/' "$f"; }
	break_prompt-cache() { sed -i 's/prompt-cache: 256MiB/prompt-cache: 1MiB/' "$f" && sed -i 's/--cache-ram 256/--cache-ram 1/' "$dir/runbook.md"; }
	break_ports() { sed -i 's/--listen, "{bind}:{port}"/--listen, "127.0.0.1:7781"/' "$f"; }
	break_names() { sed -i 's/^# berth: fleet=checked/# berth: fleet=other/' "$units/berth-checked-pages.service"; }
	break_address() { sed -i 's/127.0.0.1:8089/203.0.113.7:8089/' "$f" "$dir/clients/"*; }
	break_open() { sed -i 's/--listen, "{bind}:{port}"/--listen, "0.0.0.0:{port}"/' "$f"; }
	break_published() { sed -i 's/-p, "127.0.0.1:{port}:8080", //' "$f"; }
	break_secrets() { chmod 666 "$dir/keys"; }
	break_reach() { sed -i 's/format: litellm,/format: litellm, network: bridge,/' "$f"; }
	break_firewall() { sed -i '/iif "lo" accept/d' "$dir/firewall.nft"; }
	break_clients() { rm "$dir/clients/opencode.json"; }
	break_limits() { sed -i 's/"output": 308/"output": 309/' "$dir/clients/opencode.json"; }
	break_modalities() { sed -i 's/supports_audio_input: false/supports_audio_input: true/' "$dir/clients/litellm.yaml"; }
	break_reasoning() { sed -i 's/xhigh/high/' "$dir/clients/opencode.json"; }
	break_unit() { sed -i 's|/usr/bin/env, serve-pages|/usr/bin/nobody-has-this|' "$f"; }
	break_deployed() { sed 's/service=pages/service=gone/' "$units/berth-checked-pages.service" >"$units/berth-checked-gone.service"; }
	break_flags() { sed -i 's/--ctx-size 2048/--ctx-size 4096/' "$dir/runbook.md"; }
	break_links() { sed -i 's/(#by-hand)/(#by-foot)/' "$dir/runbook.md"; }
	break_contracts() { cp "$dir/contracts/even-slots" "$dir/contracts/links"; }
	break_even-slots() { sed -i '/chat-2:/s/context: 2048/context: 1024/' "$f" && "$BERTH" render clients --write --replace -f "$f" 2>/dev/null; }
}

@test "the example as it is: every contract holds for something, none is broken" {
	make_example
	[ "$(broken)" = "" ] || { broken; cat "$scratch/stderr"; false; }
	python3 - "$scratch/json" <<-'EOT'
		import json, sys
		held = {r["contract"] for r in json.load(open(sys.argv[1])) if r["verdict"] == "ok"}
		all = {r["contract"] for r in json.load(open(sys.argv[1]))}
		assert all == held, all - held
	EOT
}

@test "each contract has its mutation, and exactly it breaks" {
	make_example
	bad=0
	for c in $(contracts); do
		[ "$c" = file ] && continue # below: an unusable file is no table
		if ! declare -F "break_$c" >/dev/null; then
			echo "contract $c has no mutation"
			bad=1
			continue
		fi
		"break_$c" || { echo "mutation of $c failed"; bad=1; }
		got=$(broken)
		if [ "$got" != "$c" ]; then
			echo "mutation of $c breaks: '$got'"
			cat "$scratch/stderr"
			python3 -c 'import json, sys; [print("  ", r["contract"], r["subject"], r["text"]) for r in json.load(open(sys.argv[1])) if r["verdict"] == "broken"]' "$scratch/json"
			bad=1
		fi
		restore
	done
	[ "$bad" -eq 0 ]
}

@test "an unusable file is the contract 'file': exit 2 with its place" {
	make_example
	sed -i 's/slots: 2/slot: 2/' "$f"
	run_split "$BERTH" check -f "$f"
	[ "$status" -eq 2 ]
	[[ $errors == *"fleet.yaml:"*"unknown key 'slot'"*"did you mean 'slots'?"* ]]
}

@test "twenty services: every file is opened once" {
	make_example
	{
		sed -n '1,/^services:/p' "$f"
		for i in $(seq 20); do
			echo "  s$i: {runtime: llama, model: tiny, port: $((7800 + i)), context: 2048, slots: 2, split: [1, 1], speculative: [draft-simple]}"
		done
		echo 'endpoints: {chat: {services: [s1, s2], aliases: [gpt-4o]}}'
		sed -n '/^router:/,$p' "$f"
	} | sed 's/memory: 2GiB/memory: 200GiB/; s/memory: 16GiB/memory: 900GiB/; s/slack: 1GiB/slack: 9GiB/' >"$scratch/20.yaml"
	mv "$scratch/20.yaml" "$f"
	sed -i '/llama-server/,/cache-ram/d' "$dir/runbook.md"
	rm -r "$units"
	OPEN_LOG=$scratch/opened LD_PRELOAD=${BERTH%/*}/open-counter.so "$BERTH" check --json -f "$f" >"$scratch/json" || { cat "$scratch/json"; false; }
	# its own: of the fleet's folder, the state and the settings
	grep "^$scratch/" "$scratch/opened" | sort | uniq -c | awk '$1 > 1' >"$scratch/twice"
	[ ! -s "$scratch/twice" ] || { cat "$scratch/twice"; false; }
	for name in fleet.yaml models/tiny.gguf models/draft.gguf models/mmproj.gguf templates/chat.jinja clients/opencode.json clients/litellm.yaml firewall.nft keys runbook.md; do
		grep -qx "$dir/$name" "$scratch/opened" || { echo "$name was not opened"; false; }
	done
}
