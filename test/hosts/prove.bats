#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# What a deploy has proven on a real host: all that a service can serve, cards that work together, and engines with a key in every form that they run in.

bats_require_minimum_version 1.5.0
load common

all_of_it='tools: true, reasoning: true, efforts: [low, high], images: true, sound: true'

# actor [TEMPLATE]: service s with the model that plays all of it.
actor() {
	write_fleet -e "s|^  tiny: .*|&\n  actor: {source: \"file:/srv/models\", weights: actor.gguf, projector: actor-mmproj.gguf${1:+, template: $1}}|" \
		-e "\$ a\\  s: {host: h1, runtime: llama, model: actor, port: 7776, context: 2048, slots: 2, threads: 1, unit: systemd, serves: {$all_of_it}}"
}

@test "tool call, reasoning, efforts, picture and sound are proven; a template without tools goes back, and it is said why" {
	settle
	mkdir "$LAB/actor"
	"${BERTH%/*}/aids/mkactor" "$LAB/actor"
	lab run scp -q "$LAB/actor/actor.gguf" "$LAB/actor/actor-mmproj.gguf" h1:/srv/models/
	actor
	run berth deploy h1
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *" 1 started and proven, 0 retired, 1 kept"* ]]
	answers h1 7776 s
	sed '/if tools/,+1d' "$LAB/actor/actor.jinja" >"$LAB/plain.jinja"
	actor plain.jinja
	run berth deploy h1
	echo "$output"
	[ "$status" -eq 1 ]
	[[ $output == *"change 's': tool call: a tool that must be called was not"*"what was there before runs again"* ]]
	answers h1 7776 s
	on h1 sh -c '! grep -q chat-template-file /etc/systemd/system/berth-home-s.service'
	# and with its own template all of it holds there, asked by the berth that is there
	actor
	sed 's/h1: {ssh: h1, /h1: {/' "$FLEET" | on h1 sh -c 'cat >/root/live.yaml'
	run on h1 env -u BERTH_STATE -u BERTH_RUN /var/lib/berth/bin/berth check --live --json -f /root/live.yaml
	[ "$(sed '/^berth /d' <<<"$output" | jq -r '.[] | select(.contract == "live" and .subject == "service s").text')" = "does chat, template, prompt reuse, reasoning, effort, tool call, image, sound" ]
}

# pair [WORDS]: service pair on h2, a small program in an engine's place, with these words.
pair() {
	write_fleet -e '/^models/ i\  own: {engine: generic, source: system}' -e "\$ a\\  pair: {host: h2, runtime: own, port: 7778, unit: systemd, identity: /v1/models, command: [/usr/bin/python3, /srv/pair.py, \"{port}\"$1]}"
}

@test "cards that work together: refused until it was proven on them, and then not" {
	cat >"$LAB/pair.py" <<-'EOT'
		import socket, sys
		listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
		while True:
		    peer, _ = listener.accept()
		    peer.recv(65536)
		    body = b'{"data":[{"id":"pair"}]}'
		    peer.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
		    peer.close()
	EOT
	# what the test of the library says where it runs: this one is its words alone
	cat >"$LAB/all_reduce_perf" <<-'EOT'
		#!/bin/sh
		echo '#  Rank  0 Group  0 Pid   4711 on         h2 device  0 [0000:03:00] AMD Radeon'
		echo '#  Rank  1 Group  0 Pid   4711 on         h2 device  1 [0000:07:00] AMD Radeon'
		echo '# Out of bounds values : 0 OK'
		echo '# Avg bus bandwidth    : 11.2'
	EOT
	chmod 755 "$LAB/all_reduce_perf"
	lab run scp -q "$LAB/pair.py" "$LAB/all_reduce_perf" h2:/srv/
	pair
	berth deploy h2
	before=$(pid_of h2 pair)
	# from here on h2 has two cards, as far as /sys tells, until it is booted again
	test/hw/unpack test/hw/two-r9700.tree "$LAB/hw"
	tar -C "$LAB/hw" -cf - sys | on h2 tar -C /srv -xf -
	on h2 sh -c 'mkdir -p /srv/sys/fs/cgroup && mount --rbind /sys/fs/cgroup /srv/sys/fs/cgroup && mount --rbind /srv/sys /sys'
	pair ', --tensor-parallel-size, "2"'
	run berth deploy h2
	echo "$output"
	[ "$status" -eq 1 ]
	[[ $output == *"it binds 2 cards together, and no collective was proven on this hardware"*"all_reduce_perf -g 2"* ]]
	[ "$(pid_of h2 pair)" = "$before" ]
	sed 's/h2: {ssh: h2, /h2: {/' "$FLEET" | on h2 sh -c 'cat >/root/pair.yaml'
	run on h2 env -u BERTH_STATE -u BERTH_RUN /var/lib/berth/bin/berth doctor --prove -f /root/pair.yaml -- /srv/all_reduce_perf -g 2
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"collectives are proven on these cards: 11.2 GB/s, by all_reduce_perf"* ]]
	run berth deploy h2
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"1 started and proven"* ]]
	[ "$(pid_of h2 pair)" != "$before" ]
	answers h2 7778 pair
	lab power h2 cut
}

# The key of a service: a file on h1 that only OWNER reads.
make_key() { # make_key PATH OWNER
	on h1 sh -c "umask 077; echo K-SECRETSECRETSECRET >$1; chown $2 $1"
}

# asked PORT [KEY]: the status that an engine of h1 answers a question with.
asked() { on h1 curl -s -o /dev/null -w '%{http_code}' --max-time 60 ${2:+-H "Authorization: Bearer $2"} -d '{"prompt": "a", "n_predict": 1}' "http://${address:-127.0.0.1}:$1/completion"; }

# Nothing that anybody can see of a process, and no file below these folders, holds a key. The pattern is not what it finds.
nowhere() { # nowhere FOLDER...
	[ "$(on h1 sh -c 'cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | grep -ac "SECRETSECRE[T]"; grep -rl "SECRETSECRE[T]" "$@" 2>/dev/null' sh "$@")" = 0 ]
}

@test "quadlets: one with a key of its service, one with credentials" {
	settle
	make_key /root/q.key root
	tree=$(ls -d "$BERTH_STATE"/store/runtimes/llama.cpp-*/tree | head -n 1)
	tar -C "$tree" -cf - . | lab run ssh h1 "podman import --change 'ENTRYPOINT [\"/usr/bin/llama-server\"]' - localhost/llama:1" >/dev/null 2>&1
	digest=$(on h1 podman image inspect --format '{{.Digest}}' localhost/llama:1)
	words='[--port, "{port}", --host, "{bind}", -m, "{model}", --alias, r, -c, "512", --api-key-file, "{credential:api}"]'
	write_fleet -e "/^runtimes/ a\\  image: {engine: llama.cpp, source: \"oci:localhost/llama@$digest\"}\n  any: {engine: generic, source: \"oci:localhost/llama@$digest\"}" \
		-e "\$ a\\  q: {host: h1, runtime: image, model: tiny, port: 7775, bind: 10.77.0.1, key: /root/q.key, context: 512, unit: quadlet}\n  r: {host: h1, runtime: any, model: tiny, port: 7779, command: $words, credentials: {api: /root/q.key}, unit: quadlet}"
	run berth deploy h1
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *" 2 started and proven"* ]]
	[ "$(address=10.77.0.1 asked 7775)" = 401 ]
	[ "$(address=10.77.0.1 asked 7775 K-SECRETSECRETSECRET)" = 200 ]
	[ "$(asked 7779)" = 401 ]
	[ "$(asked 7779 K-SECRETSECRETSECRET)" = 200 ]
	nowhere /etc/containers/systemd /run/systemd /var/lib/berth
	[[ $(on h1 podman inspect berth-home-q berth-home-r) != *SECRETSECRET* ]]
	# a stop that asks whether the engine rests shows it the key
	write_fleet
	run berth deploy h1
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *" 2 retired"* ]]
	[ "$(on h1 journalctl -u berth-home-q -o cat --no-pager | grep -c unauthorized)" = 1 ]
}

@test "a user's own systemd: an engine with a key" {
	settle
	on h1 useradd -m u
	on h1 sh -c 'cp -r /root/.ssh /home/u/ && chown -R u: /home/u/.ssh && mkdir -p /var/lib/systemd/linger && touch /var/lib/systemd/linger/u && systemctl start user@$(id -u u)'
	make_key /home/u/u.key u
	write_fleet -e 's/^  h2: .*/&\n  own: {ssh: u@h1, scope: user, memory: 8GiB}/' -e '$ a\  w: {host: own, runtime: llama, model: tiny, port: 7780, bind: 10.77.0.1, key: /home/u/u.key, context: 512, unit: systemd}'
	run berth deploy own
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"own: version 1 is in force: 1 started and proven"* ]]
	[ "$(address=10.77.0.1 asked 7780)" = 401 ]
	[ "$(address=10.77.0.1 asked 7780 K-SECRETSECRETSECRET)" = 200 ]
	nowhere /home/u/.config /home/u/.local/state/berth/fleets
	[ "$(on h1 sh -c 'ps -o user= -p $(pgrep -f "[l]lama-server.*--port 7780")')" = u ]
	write_fleet -e 's/^  h2: .*/&\n  own: {ssh: u@h1, scope: user, memory: 8GiB}/' -e '$ a\  w: {host: own, runtime: llama, model: tiny, port: 7780, bind: 10.77.0.1, key: /home/u/u.key, context: 512, slots: 1, unit: systemd}'
	run berth deploy own
	echo "$output"
	[ "$status" -eq 0 ]
	[ "$(address=10.77.0.1 asked 7780 K-SECRETSECRETSECRET)" = 200 ]
}

# up_there HOME FILE: a fleet of one child with a key, brought up in h1 by whoever runs it.
up_there() { # up_there ACCOUNT HOME PORT
	make_key "$2/child.key" "$1"
	on h1 sh -c "cat >$2/up.yaml" <<-YAML
		version: 1
		name: up
		runtimes:
		  llama: {engine: llama.cpp, source: "debian:forky", packages: [llama.cpp-tools, llama.cpp-tools-extra, libggml0-backend-rpc]}
		models:
		  tiny: {source: "file:/srv/models", weights: berth-tiny-f16.gguf}
		services:
		  c: {runtime: llama, model: tiny, port: $3, bind: 10.77.0.1, key: $2/child.key, context: 512}
		router: {listen: "127.0.0.1:$(($3 + 100))"}
	YAML
	on h1 setpriv --reuid "$1" --regid "$1" --init-groups env -i PATH=/usr/bin:/bin "HOME=$2" /var/lib/berth/bin/berth up -d -f "$2/up.yaml"
	[ "$(address=10.77.0.1 asked "$3")" = 401 ]
	[ "$(address=10.77.0.1 asked "$3" K-SECRETSECRETSECRET)" = 200 ]
	[ "$(on h1 curl -s -o /dev/null -w '%{http_code}' -d '{"model": "c", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}' "http://127.0.0.1:$(($3 + 100))/v1/chat/completions")" = 200 ]
}

down_there() { # down_there ACCOUNT HOME
	on h1 setpriv --reuid "$1" --regid "$1" --init-groups env -i PATH=/usr/bin:/bin "HOME=$2" /var/lib/berth/bin/berth down -f "$2/up.yaml"
}

@test "children with a key where there is no bwrap: root's in a chroot, a user's by the tree's own loader" {
	settle
	on h1 sh -c '! command -v bwrap'
	up_there root /root 7781
	pid=$(on h1 pgrep -f '[l]lama-server.*--port 7781')
	on h1 test "$(on h1 stat -Lc %d:%i "/proc/$pid/root/")" != "$(on h1 stat -Lc %d:%i /)"
	nowhere /var/lib/berth/fleets /run/berth
	down_there root /root
	on h1 id u >/dev/null 2>&1 || on h1 useradd -m u
	on h1 sh -c 'mkdir -p /home/u/.local/state/berth && { test -d /home/u/.local/state/berth/store || cp -a /var/lib/berth/store /home/u/.local/state/berth/; } && chown -R u: /home/u/.local'
	up_there u /home/u 7782
	on h1 sh -c 'readlink /proc/$(pgrep -f "[l]lama-server.*--port 7782" | tail -n 1)/exe' | grep -q '/ld-linux'
	nowhere /home/u/.local/state/berth/fleets
	down_there u /home/u
}
