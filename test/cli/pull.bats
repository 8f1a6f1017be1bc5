#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# berth lock and berth pull against a hub of our own: real sockets, a second host for large files, and every fault that was ever reported of hubs and of those who fetch from them.

load hub

# ---- lock -------------------------------------------------------------------------------------------------------

@test "lock: exactly the files that the fleet names, all parts of a set, over many pages; nothing else" {
	for i in 1 2 3; do make_file "q4/m-0000$i-of-00003.gguf" $((3000 + i)); done
	for i in 1 2; do make_file "q8/m-0000$i-of-00002.gguf" 3000; done
	make_file mmproj.gguf 100
	make_file README.md 10
	fleet '{source: "hf:org/model", weights: q4/m-00001-of-00003.gguf, projector: mmproj.gguf}'
	start_hub --page 2
	berth lock
	[ "$status" -eq 0 ]
	[[ $output == *"m "*"4"*"locked"* ]]
	[ "$(jq -r '.models.m.files | keys | join(" ")' "$scratch/fleet.lock")" = "mmproj.gguf q4/m-00001-of-00003.gguf q4/m-00002-of-00003.gguf q4/m-00003-of-00003.gguf" ]
	[ "$(jq -r '.models.m.files["q4/m-00002-of-00003.gguf"].sha256' "$scratch/fleet.lock")" = "$(sha256sum "$scratch/root/org/model/q4/m-00002-of-00003.gguf" | cut -d' ' -f1)" ]
	[ "$(jq -r '.models.m.files["q4/m-00002-of-00003.gguf"].bytes' "$scratch/fleet.lock")" = 3002 ]
	[ "$(jq -r '.models.m.files["mmproj.gguf"].git_sha1' "$scratch/fleet.lock")" = "$(git hash-object "$scratch/root/org/model/mmproj.gguf")" ]
	jq -e '.models.m.commit | test("^[0-9a-f]{40}$")' "$scratch/fleet.lock"
}

@test "lock --check: same, changed in place, gone; and it writes nothing" {
	make_file w.gguf 3000
	make_file other.gguf 3000
	fleet
	start_hub
	berth lock --check
	[ "$status" -eq 1 ]
	[[ $output == *"not locked"* ]]
	[ ! -e "$scratch/fleet.lock" ]
	berth lock
	before=$(cat "$scratch/fleet.lock")
	berth lock --check
	[ "$status" -eq 0 ]
	[[ $output == *"as locked"* ]]
	make_file other.gguf 3000 # another commit, but not of what is named
	berth lock --check
	[ "$status" -eq 0 ]
	[[ $output == *"moved, same files"* ]]
	make_file w.gguf 3000
	berth lock --check
	[ "$status" -eq 1 ]
	[[ $output == *"w.gguf changed"* ]]
	berth lock --check --json
	[ "$(jq -r '.[0].state' <<<"$output")" = changed ]
	rm "$scratch/root/org/model/w.gguf"
	berth lock --check
	[ "$status" -eq 1 ]
	[[ $errors == *"'w.gguf' is not in org/model at 'main'"*"gone upstream"* ]]
	[ "$(cat "$scratch/fleet.lock")" = "$before" ]
}

@test "lock: a part of a set that is missing upstream is named; a name that is nearly right is told" {
	make_file m-00001-of-00002.gguf 3000
	make_file wheat.gguf 3000
	fleet '{source: "hf:org/model", weights: m-00001-of-00002.gguf}'
	start_hub
	berth lock
	[ "$status" -eq 1 ]
	[[ $errors == *"m-00002-of-00002.gguf"* ]]
	fleet '{source: "hf:org/model", weights: whaet.gguf}'
	berth lock
	[[ $errors == *"there is 'wheat.gguf'"* ]]
}

@test "lock: a repository whose names would leave the folder is refused" {
	make_file w.gguf 3000
	touch "$scratch/root/org/model/.escape"
	fleet
	start_hub
	berth lock
	[ "$status" -eq 1 ]
	[[ $errors == *"'../../escape', which would leave the folder"* ]]
}

@test "lock: a folder of one's own is hashed as it is" {
	mkdir "$scratch/mine"
	head -c 5000 /dev/urandom >"$scratch/mine/w.gguf"
	fleet '{source: "file:mine", weights: w.gguf}'
	berth lock
	[ "$status" -eq 0 ]
	[ "$(jq -r '.models.m.files["w.gguf"].sha256' "$scratch/fleet.lock")" = "$(sha256sum "$scratch/mine/w.gguf" | cut -d' ' -f1)" ]
}

# ---- pull -------------------------------------------------------------------------------------------------------

@test "pull: every file, proven, at its commit; again it asks for nothing" {
	make_file m-00001-of-00002.gguf 40000000
	make_file m-00002-of-00002.gguf 20000001
	make_file tiny.gguf 0
	make_file p.gguf 16777216
	fleet '{source: "hf:org/model", weights: m-00001-of-00002.gguf, projector: p.gguf, drafter: tiny.gguf}'
	start_hub
	berth lock
	berth pull
	[ "$status" -eq 0 ]
	for f in m-00001-of-00002.gguf m-00002-of-00002.gguf p.gguf tiny.gguf; do same $f; done
	[[ $(payload p.gguf) == */org/model/$(jq -r .models.m.commit "$scratch/fleet.lock")/p.gguf ]]
	[ -z "$(find "$BERTH_STATE/store/payloads" -name '*.part*')" ]
	[ "$(stat_of bytes)" -eq $((40000000 + 20000001 + 16777216)) ]
	requests=$(stat_of requests)
	berth pull
	[ "$status" -eq 0 ]
	[[ $errors == *"4 files are here already"* ]]
	[ "$(stat_of requests)" -eq "$requests" ]
}

@test "pull without a lock: what the hub has at this moment, and that nothing is pinned" {
	make_file w.gguf 20000000
	fleet
	start_hub
	berth pull
	[ "$status" -eq 0 ]
	same w.gguf
	[[ $(payload w.gguf) == */org/model/main/w.gguf ]]
	[[ $errors == *"nothing is pinned for 1 model: 'berth lock'"* ]]
	# published again under the same name: the new one comes
	make_file w.gguf 20000000
	berth pull
	[ "$status" -eq 0 ]
	same w.gguf
}

@test "pull: a hub that is down or wants a pause does not take away what is here" {
	make_file w.gguf 3000
	fleet
	start_hub
	berth pull
	stop_hub
	berth pull --retries 1
	[ "$status" -eq 0 ]
	[[ $errors == *"kept as it is here"* ]]
	HF_HUB_OFFLINE=1 berth pull
	[ "$status" -eq 0 ]
	rm "$(payload w.gguf)"
	HF_HUB_OFFLINE=1 berth pull
	[ "$status" -eq 1 ]
	[[ $errors == *"HF_HUB_OFFLINE is set"* ]]
}

@test "pull: a new commit fetches only the file that changed, and the old commit's files stay" {
	make_file m-00001-of-00002.gguf 20000000
	make_file m-00002-of-00002.gguf 20000000
	fleet '{source: "hf:org/model", weights: m-00001-of-00002.gguf}'
	start_hub
	berth lock
	berth pull
	old=$(jq -r .models.m.commit "$scratch/fleet.lock")
	make_file m-00002-of-00002.gguf 20000000
	curl -sf "$HUB/_zero"
	berth lock
	berth pull
	[ "$status" -eq 0 ]
	new=$(jq -r .models.m.commit "$scratch/fleet.lock")
	[ "$old" != "$new" ]
	[ "$(stat_of bytes)" -eq 20000000 ]
	for i in 1 2; do cmp "$scratch/root/org/model/m-0000$i-of-00002.gguf" "$BERTH_STATE/store/payloads/hf/org/model/$new/m-0000$i-of-00002.gguf"; done
	[ -e "$BERTH_STATE/store/payloads/hf/org/model/$old/m-00002-of-00002.gguf" ]
}

@test "pull: what the Hugging Face cache has already is proven and not fetched; what is damaged there is" {
	make_file w.gguf 20000000
	make_file p.gguf 3000
	fleet '{source: "hf:org/model", weights: w.gguf, projector: p.gguf}'
	start_hub
	berth lock
	cache=$HOME/.cache/huggingface/hub/models--org--model/blobs
	mkdir -p "$cache"
	cp "$scratch/root/org/model/w.gguf" "$cache/$(jq -r '.models.m.files["w.gguf"].sha256' "$scratch/fleet.lock")"
	head -c 3000 /dev/urandom >"$cache/$(jq -r '.models.m.files["p.gguf"].sha256' "$scratch/fleet.lock")"
	berth pull
	[ "$status" -eq 0 ]
	same w.gguf
	same p.gguf
	[ "$(stat_of bytes)" -eq 3000 ]
}

@test "pull: every kind of fault, one after the other, ends with every file proven" {
	for i in 1 2 3; do make_file "m-0000$i-of-00003.gguf" $((24000000 + i)); done
	fleet '{source: "hf:org/model", weights: m-00001-of-00003.gguf}'
	start_hub --every 1000000 reset,corrupt,expire,short,429,long,wronglength,otherrange,gzip,stall,503
	berth lock
	berth pull --stall 1
	[ "$status" -eq 0 ]
	for i in 1 2 3; do same "m-0000$i-of-00003.gguf"; done
	faults=$(stat_of faults)
	echo "$faults faults"
	[ "$faults" -ge 5 ]
}

@test "pull: one fault of each kind by itself passes" {
	make_file w.gguf 20000000
	fleet
	start_hub
	berth lock
	for kind in reset stall short long wronglength otherrange gzip expire 429 503 corrupt norange; do
		rm -rf "$BERTH_STATE"
		fault "$kind"
		berth pull --stall 1
		[ "$status" -eq 0 ] || { echo "$kind: $errors"; false; }
		same w.gguf
	done
}

@test "pull: a corrupted part is found by second copies, and only it is replaced" {
	make_file w.gguf 50000000
	fleet
	start_hub
	berth lock
	fault corrupt
	berth pull
	[ "$status" -eq 0 ]
	same w.gguf
	[[ $errors == *"the digest is wrong: every part is fetched a second time"*"the damaged part is replaced"* ]]
	# the whole twice, and a few more copies of one block
	[ "$(stat_of bytes)" -le $((2 * 50000000 + 4 * 65536)) ]
}

@test "pull: a fault every 2 MiB, corruption among them: copies and votes are hit as well, and every file is proven" {
	for i in 1 2; do make_file "m-0000$i-of-00002.gguf" $((33554432 + i)); done
	fleet '{source: "hf:org/model", weights: m-00001-of-00002.gguf}'
	start_hub --every 2097152 reset,stall,corrupt,expire,429
	berth lock
	berth pull --stall 1
	[ "$status" -eq 0 ]
	for i in 1 2; do same "m-0000$i-of-00002.gguf"; done
	[[ $errors == *"the digest is wrong"*"the damaged part is replaced"* ]]
	echo "$(stat_of faults) faults, $(stat_of bytes) bytes"
	[ "$(stat_of faults)" -ge 12 ]
	# the file, and at most a copy for each of three rounds, beside what votes and broken answers cost
	[ "$(stat_of bytes)" -le $((5 * 67108864)) ]
}

@test "pull: other bytes in every answer, or the wrong ones for ever, come to an end" {
	make_file w.gguf 20000000
	fleet
	start_hub --every 1 noise
	berth lock
	berth pull
	[ "$status" -eq 1 ]
	[[ $errors == *"the server sends other bytes each time"* ]]
	[ -z "$(payload w.gguf)" ]
	[ "$(stat_of bytes)" -le $((17 * 20000000)) ]
}

@test "pull: a web page is never a model; login pages and pointers do not become files" {
	make_file w.gguf 3000
	fleet
	start_hub
	berth lock
	fault html 9
	berth pull
	[ "$status" -eq 1 ]
	[[ $errors == *"a web page instead of the file"* ]]
	[ -z "$(payload w.gguf)" ]
}

@test "pull: 401, gated 403 and 404 are told apart, with what to do" {
	make_file w.gguf 3000
	fleet
	FAKE_HUB_TOKEN=good start_hub
	touch "$scratch/root/org/model/.private"
	berth lock
	[ "$status" -eq 1 ]
	[[ $errors == *"(401)"*"set HF_TOKEN"* ]]
	HF_TOKEN=wrong berth lock
	[[ $errors == *"does not take the token (401)"* ]]
	HF_TOKEN=good berth lock
	[ "$status" -eq 0 ]
	touch "$scratch/root/org/model/.gated"
	HF_TOKEN=good berth lock
	[[ $errors == *"is gated (403)"*"accept its terms"* ]]
	rm "$scratch/root/org/model/".[gp]*
	rm "$scratch/fleet.lock"
	fleet '{source: "hf:org/none", weights: w.gguf}'
	HF_TOKEN=good berth lock
	[[ $errors == *"no such repository (404)"* ]]
	fleet '{source: "hf:org/model@v9", weights: w.gguf}'
	berth lock
	[[ $errors == *"no such revision (404)"* ]]
}

@test "pull: tries are counted, and the last reason is given" {
	make_file w.gguf 3000
	fleet
	start_hub
	berth lock
	fault 503 99
	berth pull --retries 2
	[ "$status" -eq 1 ]
	[[ $errors == *"given up after 3 tries in a row"*"the server has a fault (503)"* ]]
}

@test "pull: each way not to be connected has words of its own" {
	make_file w.gguf 3000
	fleet
	start_hub
	berth lock
	HF_ENDPOINT=http://no-such-host.invalid berth pull --retries 1
	[[ $errors == *"http://no-such-host.invalid/"*": the host's name cannot be resolved: is there a network?"* ]]
	stop_hub
	berth pull --retries 1
	[ "$status" -eq 1 ]
	[[ $errors == *"$HUB/"*": connection refused"* ]]
	python3 - >"$scratch/plain" 3>&- <<-EOT &
		import socket
		s = socket.create_server(("127.0.0.1", 0))
		print(s.getsockname()[1], flush=True)
		while True:
		    c, _ = s.accept()
		    c.recv(9)
		    c.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
		    c.close()
	EOT
	plain=$!
	wait_for 10 test -s "$scratch/plain"
	HF_ENDPOINT=https://127.0.0.1:$(cat "$scratch/plain") berth pull --retries 1
	kill "$plain"
	[[ $errors == *": the server does not speak TLS as it should ("* ]]
}

@test "pull: a redirect in circles, or to what is no web address, ends" {
	make_file w.gguf 3000
	fleet
	start_hub
	berth lock
	fault loop 99
	berth pull
	[ "$status" -eq 1 ]
	[[ $errors == *"over 5 redirects"* ]]
	fault downgrade 1
	berth pull
	[ "$status" -eq 1 ]
	[[ $errors == *"no http or https address"* ]]
}

@test "pull: other bytes than are pinned are no file, whatever their size" {
	make_file w.gguf 20000000
	fleet
	start_hub
	berth lock
	make_file w.gguf 20000000
	berth pull
	[ "$status" -eq 1 ]
	[[ $errors == *"changed upstream"* ]]
	make_file w.gguf 20000001
	berth pull
	[ "$status" -eq 1 ]
	[ -z "$(payload w.gguf)" ]
	# the same without the hub's word for it: its pointer is right, its content is not
	make_file w.gguf 20000000
	sed -i "s/\"sha256\": \"[0-9a-f]*\"/\"git_sha1\": \"$(printf '%040d' 7)\"/" "$scratch/fleet.lock"
	berth pull
	[ "$status" -eq 1 ]
	[[ $errors == *"the same ones twice"* ]]
	[ -z "$(find "$BERTH_STATE/store/payloads" -type f)" ]
}

@test "pull: the good old file stays until the new one is proven" {
	make_file w.gguf 20000000
	fleet
	start_hub
	berth pull
	old=$(sha256sum <"$(payload w.gguf)")
	make_file w.gguf 20000000
	fault notfound 99
	berth pull
	[ "$status" -eq 1 ]
	[ "$(sha256sum <"$(payload w.gguf)")" = "$old" ]
	fault 503 0
	berth pull
	[ "$status" -eq 0 ]
	same w.gguf
}

# ---- interrupted --------------------------------------------------------------------------------------------------

@test "pull: killed at 20 moments, it goes on; no more than a segment comes twice each time" {
	make_file m-00001-of-00002.gguf 60000000
	make_file m-00002-of-00002.gguf 60000000
	fleet '{source: "hf:org/model", weights: m-00001-of-00002.gguf}'
	start_hub --rate 40000000
	berth lock
	kills=0
	lost=0
	while [ $kills -lt 20 ]; do
		pull_until $(($(stat_of bytes) + 500000 + RANDOM * 300))
		kill -9 $pull_pid 2>/dev/null || break
		wait $pull_pid || true
		kills=$((kills + 1))
		# what is not in the journals by now comes again
		lost=$(($(stat_of bytes) - 120000000))
	done
	[ $kills -ge 10 ]
	berth pull
	[ "$status" -eq 0 ]
	for i in 1 2; do same "m-0000$i-of-00002.gguf"; done
	twice=$(($(stat_of bytes) - 120000000))
	echo "$kills kills, $twice bytes twice"
	[ $twice -le $((kills * 16777216)) ]
}

@test "pull: interrupted, it says that what came is kept, ends of the signal, and the rest is all that comes next" {
	make_file w.gguf 60000000
	fleet
	start_hub --rate 20000000
	berth lock
	pull_until 20000000
	kill -TERM $pull_pid # a shell's background jobs do not hear INT
	status=0
	wait $pull_pid || status=$?
	[ "$status" -eq 143 ]
	[[ $(cat "$scratch/log") == *"what came is kept"* ]]
	sent=$(stat_of bytes)
	berth pull
	[ "$status" -eq 0 ]
	same w.gguf
	# what was on its way in sockets is all that came twice
	[ "$(stat_of bytes)" -le $((60000000 + 8388608)) ]
	[ "$sent" -ge 20000000 ]
}

@test "pull: bytes that changed on the disk between two pulls are found and replaced" {
	make_file w.gguf 60000000
	fleet
	start_hub --rate 40000000
	berth lock
	pull_until 30000000
	kill -9 $pull_pid
	wait $pull_pid || true
	part=$(find "$BERTH_STATE" -name '*.part')
	printf 'x' | dd of="$part" bs=1 seek=100 conv=notrunc status=none
	berth pull
	[ "$status" -eq 0 ]
	same w.gguf
}

@test "pull: a journal of zeros, of another file, or cut short costs bytes and nothing else" {
	make_file w.gguf 40000000
	fleet
	start_hub --rate 40000000
	berth lock
	for how in 'head -c 150' 'tr 0-9 0' 'head -c 0' 'cat'; do
		rm -rf "$BERTH_STATE"
		curl -sf "$HUB/_zero"
		pull_until 20000000
		kill -9 $pull_pid
		wait $pull_pid || true
		journal=$(find "$BERTH_STATE" -name '*.journal')
		$how <"$journal" >"$scratch/j"
		head -c 100 /dev/zero >>"$scratch/j"
		cp "$scratch/j" "$journal"
		berth pull
		[ "$status" -eq 0 ]
		same w.gguf
	done
}

@test "pull: the power may go at every step: no journal says more than the disk has, and the old file or the new is there" {
	[ -e "${BERTH%/*}/crash-recorder.so" ] && ! [[ $BERTH == *san* ]] || skip "needs the recorder"
	make_file w.gguf 40000000
	fleet
	start_hub
	berth lock
	# an old file under the name, so that there is something to lose
	commit=$(jq -r .models.m.commit "$scratch/fleet.lock")
	name=$BERTH_STATE/store/payloads/hf/org/model/$commit/w.gguf
	mkdir -p "$(dirname "$name")"
	head -c 1000 /dev/urandom >"$scratch/old"
	cp "$scratch/old" "$name"
	fault reset
	CRASH_ROOT=$(dirname "$name") CRASH_LOG=$scratch/crash LD_PRELOAD=${BERTH%/*}/crash-recorder.so "$BERTH" pull -f "$scratch/fleet.yaml"
	same w.gguf
	run test/crash/replay "$scratch/crash" "$name" "$scratch/old" "$scratch/root/org/model/w.gguf" "$scratch/states" 6
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output =~ ^([0-9]+)\ states ]]
	[ "${BASH_REMATCH[1]}" -ge 20 ]
	for state in "$scratch"/states/*; do
		rm -rf "$BERTH_STATE"
		mkdir -p "$(dirname "$name")"
		cp "$scratch/old" "$name"
		cp "$state"/* "$(dirname "$name")/"
		berth pull
		[ "$status" -eq 0 ]
		same w.gguf
	done
}

@test "pull: of two at once the second waits, and finds all done" {
	make_file w.gguf 20000000
	fleet
	start_hub --rate 10000000
	berth lock
	pull_until 1000000
	berth pull
	[ "$status" -eq 0 ]
	[[ $errors == *"another berth fetches"*"1 file is here already"* ]]
	wait $pull_pid
	same w.gguf
	[ "$(stat_of bytes)" -eq 20000000 ]
}

@test "pull: no room on the disk is said before anything is fetched" {
	[ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null || skip "needs a mount namespace"
	make_file w.gguf 40000000
	fleet
	start_hub
	berth lock
	mkdir -p "$BERTH_STATE"
	run unshare -m sh -c 'mount -t tmpfs -o size=20m none "$BERTH_STATE" && exec "$1" pull -f "$2"' sh "$BERTH" "$scratch/fleet.yaml"
	[ "$status" -eq 1 ]
	[[ $output == *"no room"* || $output == *"missing"* || $output == *"MiB"* ]]
	[ "$(stat_of bytes)" -eq 0 ]
}

# ---- the token ------------------------------------------------------------------------------------------------------

@test "pull: the token reaches the hub and nobody else: no second host, no argv, no log, no file" {
	make_file w.gguf 20000000
	touch "$scratch/root/org/model/.private"
	fleet
	FAKE_HUB_TOKEN=hf_SECRETSECRET start_hub --rate 10000000
	# the detector detects
	curl -s -H 'Authorization: Bearer x' "$CDN/x" >/dev/null
	[ "$(stat_of leaks)" -eq 1 ]
	curl -sf "$HUB/_zero"
	echo hf_SECRETSECRET >"$scratch/token"
	export HF_TOKEN_PATH=$scratch/token
	berth lock
	[ "$status" -eq 0 ]
	pull_until 5000000
	cmdlines=$(cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ')
	[[ $cmdlines == *"berth pull"* ]]
	[[ $cmdlines != *SECRETSECRET* ]]
	wait $pull_pid
	same w.gguf
	run grep -r SECRETSECRET "$scratch/log" "$scratch/stderr" "$scratch/fleet.lock" "$BERTH_STATE"
	[ "$status" -eq 1 ]
	[ "$(stat_of leaks)" -eq 0 ]
	# what fails says nothing of it either, nor of signatures
	rm "$(payload w.gguf)"
	rm -r "$BERTH_STATE/store/manifests"
	fault 503 99
	HF_TOKEN=hf_SECRETSECRET berth pull --retries 1
	[ "$status" -eq 1 ]
	[[ $errors$output != *SECRET* && $errors != *Signature* ]]
	fault 503 0
	HF_TOKEN=hf_OTHERSECRET berth pull --retries 1
	[ "$status" -eq 1 ]
	[[ $errors != *SECRET* ]]
}

@test "pull: a token that would end a line of the request is refused, and not shown" {
	make_file w.gguf 3000
	fleet
	start_hub
	HF_TOKEN=$'hf_SECRET\r\nX: y' berth lock
	[ "$status" -eq 1 ]
	[[ $errors == *"a character that no token has"* && $errors != *SECRET* ]]
	HF_TOKEN_PATH=$scratch/none berth lock
	[ "$status" -eq 1 ]
	[[ $errors == *"$scratch/none"* ]]
}

# ---- plain servers and fragments --------------------------------------------------------------------------------------

@test "https: sources: fetched, gone on with, begun anew when the file changed; the token is not for them" {
	make_file w.gguf 60000000
	printf GGUF | dd of="$scratch/root/org/model/w.gguf" conv=notrunc status=none
	start_hub --plain --rate 20000000
	plain=$HUB/org/model
	export HF_ENDPOINT=http://127.0.0.3:1 HF_TOKEN=hf_x
	fleet "{source: \"$plain\", weights: w.gguf}"
	pull_until 30000000
	kill -9 $pull_pid
	wait $pull_pid || true
	berth pull
	[ "$status" -eq 0 ]
	same w.gguf
	[[ $errors == *"not pinned"* ]]
	[ "$(stat_of bytes)" -le $((60000000 + 16777216)) ]
	berth lock
	[ "$status" -eq 0 ]
	[ "$(jq -r '.models.m.files["w.gguf"].sha256' "$scratch/fleet.lock")" = "$(sha256sum "$scratch/root/org/model/w.gguf" | cut -d' ' -f1)" ]
	rm -rf "$BERTH_STATE" "$scratch/fleet.lock"
	curl -sf "$HUB/_zero"
	pull_until 30000000
	kill -9 $pull_pid
	wait $pull_pid || true
	head -c 60000000 /dev/urandom >"$scratch/root/org/model/w.gguf"
	printf GGUF | dd of="$scratch/root/org/model/w.gguf" conv=notrunc status=none
	berth pull
	[ "$status" -eq 0 ]
	same w.gguf
	[[ $errors == *"changed on the server while it was fetched"* ]]
}

@test "https: what is no GGUF file is refused at its first bytes" {
	make_file w.gguf 3000
	start_hub --plain
	fleet "{source: \"$HUB/org/model\", weights: w.gguf}"
	berth pull
	[ "$status" -eq 1 ]
	[[ $errors == *"no GGUF file"* ]]
	[ -z "$(payload w.gguf)" ]
}

@test "fragments are joined, and a set of parts is not" {
	head -c 50000000 /dev/urandom >"$scratch/whole"
	split -b 20000000 --numeric-suffixes=1 -a 1 "$scratch/whole" "$scratch/root/org/model/big.gguf.part"
	for i in 1 2 3; do mv "$scratch/root/org/model/big.gguf.part$i" "$scratch/root/org/model/big.gguf.part${i}of3"; done
	fleet '{source: "hf:org/model", weights: big.gguf}'
	start_hub
	berth lock
	[ "$status" -eq 0 ]
	[ "$(jq '.models.m.files | length' "$scratch/fleet.lock")" -eq 3 ]
	berth pull
	[ "$status" -eq 0 ]
	cmp "$scratch/whole" "$(payload big.gguf)"
	[ -z "$(find "$BERTH_STATE/store/payloads" -name '*part*')" ]
	[[ $errors == *"1 file is here, 47.68 MiB"* ]]
	curl -sf "$HUB/_zero"
	berth pull
	[ "$status" -eq 0 ]
	[[ $errors == *"1 file is here already, 47.68 MiB"* ]]
	[ "$(stat_of bytes)" -eq 0 ]
}

@test "a joined file is what the lock says of its fragments: proven without a manifest, damage is found and mended by ranges" {
	head -c 50000000 /dev/urandom >"$scratch/whole"
	split -b 20000000 --numeric-suffixes=1 -a 1 "$scratch/whole" "$scratch/root/org/model/big.gguf.part"
	for i in 1 2 3; do mv "$scratch/root/org/model/big.gguf.part$i" "$scratch/root/org/model/big.gguf.part${i}of3"; done
	fleet '{source: "hf:org/model", weights: big.gguf}'
	start_hub
	berth lock
	berth pull
	joined=$(payload big.gguf)
	berth verify --json
	[ "$(jq -r '.[0].files[0].verdict' <<<"$output")" = unchanged ]
	# in the segment that two fragments share
	printf X | dd of="$joined" bs=1 seek=20000001 conv=notrunc status=none
	curl -sf "$HUB/_zero"
	berth verify
	[ "$status" -eq 1 ]
	[[ $output == *"damaged: bytes 16777216 to 33554431"*"'berth verify --repair m' fetches only these"* ]]
	berth verify --repair
	cmp "$scratch/whole" "$joined"
	[ "$(stat_of bytes)" -eq 16777216 ]
	# moved here from elsewhere: nothing is known of it but the lock
	rm -r "$BERTH_STATE/store/manifests"
	curl -sf "$HUB/_zero"
	berth verify --json
	[ "$(jq -r '.[0].files[0].verdict' <<<"$output")" = proven ]
	rm -r "$BERTH_STATE/store/manifests"
	berth pull
	[ "$status" -eq 0 ]
	[[ $errors == *"here already"* ]]
	[ "$(stat_of bytes)" -eq 0 ]
	rm -r "$BERTH_STATE/store/manifests"
	printf X | dd of="$joined" bs=1 seek=49999999 conv=notrunc status=none
	berth verify
	[ "$status" -eq 1 ]
	[[ $output == *damaged* ]]
	berth pull
	[ "$status" -eq 0 ]
	cmp "$scratch/whole" "$joined"
}

@test "purge: nothing goes while a pull is at work; what an interrupted one left stays, fragments too, until nobody wants it" {
	for i in 1 2 3; do make_file "big.gguf.part${i}of3" 20000000; done
	fleet '{source: "hf:org/model", weights: big.gguf}'
	start_hub --rate 20000000
	berth lock
	cd "$scratch"
	pull_until 30000000
	for how in '' --yes; do
		run_split "$BERTH" purge $how
		[ -z "$how" ] || [ "$status" -eq 1 ]
		[ -z "$how" ] || [[ $errors == *"files are being fetched or repaired"* ]]
		[ -n "$how" ] || [[ $output != *big.gguf* ]]
	done
	kill -9 $pull_pid
	wait $pull_pid || true
	left=$(find "$BERTH_STATE/store/payloads" -name 'big.gguf.part*' | sort)
	[[ $left == *big.gguf.part1of3* && $left == *.part.journal* ]]
	run_split "$BERTH" purge --yes
	[ "$status" -eq 0 ]
	[ "$(find "$BERTH_STATE/store/payloads" -name 'big.gguf.part*' | sort)" = "$left" ]
	berth pull
	[ "$status" -eq 0 ]
	cat "$scratch"/root/org/model/big.gguf.part?of3 | cmp - "$(payload big.gguf)"
	# no more than what was on its way came twice
	[ "$(stat_of bytes)" -le $((60000000 + 2 * 8388608)) ]
	rm "$(payload big.gguf)"
	pull_until $(($(stat_of bytes) + 30000000))
	kill -9 $pull_pid
	wait $pull_pid || true
	# another file is wanted by now: what is left of this one goes
	make_file w.gguf 3000
	fleet
	rm fleet.lock
	run_split "$BERTH" purge --yes
	[ "$status" -eq 0 ]
	[[ $output == *"partial"*"big.gguf.part"* ]]
	[ -z "$(find "$BERTH_STATE/store/payloads" -name 'big.gguf*')" ]
}

@test "pull: a disk that fills up on the way is one clear error, and with room it goes on where it stopped" {
	[ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null || skip "needs a mount namespace"
	make_file m-00001-of-00002.gguf 30000000
	make_file m-00002-of-00002.gguf 30000000
	fleet '{source: "hf:org/model", weights: m-00001-of-00002.gguf}'
	start_hub --rate 30000000
	berth lock
	# room for all when it is looked for; then something else takes it
	cat >"$scratch/inside" <<-'EOT'
		mount -t tmpfs -o size=80m none "$BERTH_STATE" || exit 9
		"$1" pull -f "$2" 2>"$3/first" &
		pull=$!
		until [ "$(find "$BERTH_STATE" -name '*.part' -size +2048k | wc -l)" -gt 0 ] || ! kill -0 $pull 2>/dev/null; do :; done
		head -c 100000000 /dev/zero >"$BERTH_STATE/other" 2>/dev/null
		wait $pull
		echo "first $?"
		find "$BERTH_STATE/store/payloads" -name '*.gguf'
		rm "$BERTH_STATE/other"
		curl -sf "$HF_ENDPOINT/_stats" | sed -n 's/^bytes /sent /p'
		"$1" pull -f "$2" 2>"$3/second"
		echo "second $?"
		for f in "$3"/root/org/model/m-*; do cmp "$f" "$(find "$BERTH_STATE/store/payloads" -name "$(basename "$f")")" || exit 8; done
	EOT
	mkdir -p "$BERTH_STATE"
	run unshare -m sh "$scratch/inside" "$BERTH" "$scratch/fleet.yaml" "$scratch" 3>&- 8>&- 9<&-
	echo "$output"
	cat "$scratch/first" "$scratch/second"
	[ "$status" -eq 0 ]
	[[ $output == *"first 1"* && $output == *"second 0"* && $output != *m-0000?-of-00002.gguf* ]]
	# each file says once why it cannot go on
	[ "$(grep -c "No space left on device" "$scratch/first")" -le 2 ]
	[[ $(cat "$scratch/first") == *"cannot write"*"No space left on device"*"the disk is full: make room"* ]]
	sent=$(sed -n 's/^sent //p' <<<"$output")
	[ "$(stat_of bytes)" -le $((60000000 + 2 * 8388608)) ]
	[ "$sent" -ge 2000000 ]
}

@test "lock: a size that no payload has is refused before anything is written" {
	make_file w.gguf 3000
	touch "$scratch/root/org/model/.huge"
	fleet
	start_hub
	berth lock
	[ "$status" -eq 1 ]
	[[ $errors == *"'w.gguf' has 2305843009213693952 bytes"*"no payload has so many"* ]]
	[ ! -e "$scratch/fleet.lock" ]
}

@test "a file of fragments that two models share is joined once; a pipe in its way is told, not waited for" {
	for i in 1 2; do make_file "big.gguf.part${i}of2" 3000; done
	start_hub
	cat >"$scratch/fleet.yaml" <<-EOT
		version: 1
		name: pulls
		models:
		  a: {source: "hf:org/model", weights: big.gguf}
		  b: {source: "hf:org/model", weights: big.gguf}
	EOT
	berth lock
	[ "$status" -eq 0 ]
	berth pull
	[ "$status" -eq 0 ]
	joined=$(payload big.gguf)
	cat "$scratch"/root/org/model/big.gguf.part?of2 | cmp - "$joined"
	rm "$joined"
	mkfifo "$joined.part"
	run_split timeout 30 "$BERTH" pull -f "$scratch/fleet.yaml"
	[ "$status" -eq 1 ]
	[[ $errors == *"big.gguf.part' is no regular file"* ]]
	[ -p "$joined.part" ]
}

@test "a hub that answers without end is left, whatever it says" {
	fleet
	for answer in 404 302; do
		mkfifo "$scratch/said"
		python3 -u - "$answer" >"$scratch/said" 3>&- <<-'EOT' &
			import socket, sys
			s = socket.create_server(("127.0.0.1", 0))
			print(s.getsockname()[1], flush=True)
			for _ in range(6 if sys.argv[1] == "302" else 1):
			    c, _ = s.accept()
			    c.recv(65536)
			    try:
			        c.sendall(b"HTTP/1.1 %s X\r\nLocation: /x\r\n\r\n" % sys.argv[1].encode())
			        while True:
			            c.sendall(b"x" * 65536)
			    except OSError:
			        c.close()
		EOT
		server=$!
		read -r port <"$scratch/said"
		export HF_ENDPOINT=http://127.0.0.1:$port
		run_split timeout 60 "$BERTH" lock -f "$scratch/fleet.yaml"
		rm "$scratch/said"
		kill "$server" 2>/dev/null || true
		wait "$server" || true
		[ "$status" -eq 1 ]
		if [ "$answer" = 404 ]; then [[ $errors == *"(404)"* ]]; else [[ $errors == *"over 5 redirects"* ]]; fi
	done
}

@test "a server without ranges that breaks off now here and now there is left after the tries" {
	mkfifo "$scratch/said"
	python3 -u - >"$scratch/said" 3>&- <<-'EOT' &
		import socket, sys
		s = socket.create_server(("127.0.0.1", 0))
		print(s.getsockname()[1], flush=True)
		whole = 0
		while True:
		    c, _ = s.accept()
		    asked = c.recv(65536)
		    try:
		        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n")
		        if b"bytes=0-" in asked:
		            whole += 1
		            c.sendall(b"GGUF" + b"x" * (200000 if whole % 2 else 100000))
		    except OSError:
		        pass
		    c.close()
	EOT
	server=$!
	read -r port <"$scratch/said"
	fleet "{source: \"http://127.0.0.1:$port/folder\", weights: w.gguf}"
	run_split timeout 60 "$BERTH" pull --retries 2 -f "$scratch/fleet.yaml"
	kill "$server"
	wait "$server" || true
	[ "$status" -eq 1 ]
	[[ $errors == *"given up after 3 tries"*"ended early"* ]]
	[ -z "$(payload w.gguf)" ]
}

@test "an address of the hub with a password in it is refused without showing it" {
	fleet
	HF_ENDPOINT=http://me:hidden@127.0.0.1:1 run_split "$BERTH" lock -f "$scratch/fleet.yaml"
	[ "$status" -eq 1 ]
	[[ $errors == *"HF_ENDPOINT"*"127.0.0.1:1"* ]]
	[[ $errors != *hidden* ]]
}

@test "words that are no model are told" {
	make_file w.gguf 3000
	fleet
	start_hub
	berth pull n
	[ "$status" -eq 2 ]
	[[ $errors == *"has no model 'n'"* ]]
	berth lock --retries 0
	[ "$status" -eq 2 ]
}
