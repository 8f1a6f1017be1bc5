#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# Deploys to two real hosts over ssh: systemd 257 with podman 5.4, systemd 262 with podman 5.8. Every test begins with service 'a' deployed and running on h1, as the first one leaves it.

bats_require_minimum_version 1.5.0

load common

@test "a first deploy to a bare host: berth, runtime, unit, proof; enabled for the next boot" {
	run berth plan --exit-code
	[ "$status" -eq 10 ]
	run berth deploy
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"h1: version 1 is in force: 1 started and proven, 0 retired, 0 kept"* ]]
	answers h1 7771 a
	[ "$(on h1 systemctl is-enabled berth-home-a)" = enabled ]
	[ "$(on h1 systemctl is-system-running)" = running ]
	# the engine is nobody's account but its own, and cannot write
	on h1 sh -c 'grep -q "^CapEff:.*0000000000000000" /proc/$(systemctl show -P MainPID berth-home-a)/status'
	[ "$(on h1 sh -c 'stat -c %u /proc/$(systemctl show -P MainPID berth-home-a)')" -ge 1000 ]
}

@test "nothing to do: no restart, and a plan says so" {
	settle
	before=$(pid_of h1 a)
	run berth deploy
	[ "$status" -eq 0 ]
	[[ $output == *"h1: nothing to do, version "* ]]
	[ "$(pid_of h1 a)" = "$before" ]
	run berth plan --exit-code
	[ "$status" -eq 0 ]
}

@test "a changed shape: the plan names the flag, one service restarts, and the new one is what is asked" {
	settle
	write_fleet 's/slots: 2/slots: 1/'
	run berth plan --diff
	[[ $output == *"a        -np changed"* ]]
	[[ $output == *"-   -np 2"*"+   -np 1"* ]]
	run berth deploy
	[ "$status" -eq 0 ]
	on h1 curl -sf http://127.0.0.1:7771/props | grep -q '"total_slots":1'
}

@test "a change of what is served alone: it is proven by what runs, and not started anew" {
	settle
	before=$(pid_of h1 a) version=$(berth deploy h1 --json | jq '.[].version')
	write_fleet 's/unit: systemd/unit: systemd, serves: {efforts: [low]}/'
	run berth plan h1 --since "$version"
	[[ $output =~ prove\ +a\ +serves:\ efforts\ changed ]]
	run berth plan --exit-code
	echo "$output"
	[ "$status" -eq 10 ]
	[[ $output =~ prove\ +a\ +serves:\ efforts\ changed ]]
	run berth deploy
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *" 0 started and proven, 1 proven again, 0 retired, 0 kept"* ]]
	run berth plan --exit-code
	[ "$status" -eq 0 ]
	# what it does not do is not in force, and what runs is left alone
	write_fleet 's/unit: systemd/unit: systemd, serves: {tools: true}/'
	run berth deploy
	echo "$output"
	[ "$status" -eq 1 ]
	[[ $output == *"prove 'a': tool call: a tool that must be called was not"*"; nothing was touched"* ]]
	run berth plan
	[[ $output =~ prove\ +a\ +serves:\ tools,\ efforts\ changed ]]
	[ "$(pid_of h1 a)" = "$before" ]
}

@test "a shape that does not fit is refused with nothing touched" {
	settle
	before=$(pid_of h1 a)
	write_fleet 's/memory: 8GiB/memory: 64MiB/; s/context: 512/context: 256/'
	run berth deploy
	echo "$output"
	[ "$status" -eq 1 ]
	[[ $output == *"fit of 'h1': it does not fit: RAM would have "*" left"* ]]
	[ "$(pid_of h1 a)" = "$before" ]
	[ -z "$(on h1 sh -c 'ls /var/lib/berth/fleets/home/deploying 2>/dev/null')" ]
}

@test "an engine that ends at its start: the one before runs again, proven, and both outcomes are told" {
	settle
	write_fleet 's/unit: systemd/unit: systemd, args: ["--no-such-flag"]/'
	run berth deploy
	echo "$output"
	[ "$status" -eq 1 ]
	[[ $output == *"invalid argument: --no-such-flag"* ]]
	[[ $output == *"what was there before runs again"* ]]
	answers h1 7771 a
	run on h1 grep -c no-such-flag /etc/systemd/system/berth-home-a.service
	[ "$output" = 0 ]
}

@test "a shape that its engine would not give is refused with nothing touched" {
	settle
	before=$(pid_of h1 a)
	# the engine caps what a slot can hold at what the model was trained for
	write_fleet 's/context: 512/context: 8192/'
	run berth deploy
	echo "$output"
	[ "$status" -eq 1 ]
	[[ $output == *"fit of 'h1': service 'a': 4,096 tokens in a slot, the model was trained for 1,024:"* ]]
	[ "$(pid_of h1 a)" = "$before" ]
}

@test "an engine that answers /health but serves another model: the one before runs again" {
	settle
	before=$(on h1 cat /etc/systemd/system/berth-home-a.service)
	lie='["/usr/bin/llama-server", "--port", "{port}", "--host", "{bind}", "-m", "{model}", "--alias", "other", "-c", "512"]'
	write_fleet -e "/^  llama:/ a\\  any: {engine: generic, source: \"debian:forky\", packages: [llama.cpp-tools, llama.cpp-tools-extra, libggml0-backend-rpc]}" \
		-e "s|^  a: .*|  a: {host: h1, runtime: any, model: tiny, port: 7771, unit: systemd, identity: /v1/models, command: $lie}|"
	run berth deploy
	echo "$output"
	[ "$status" -eq 1 ]
	[[ $output == *"identity: "*"'other'"* ]]
	[[ $output == *"what was there before runs again"* ]]
	answers h1 7771 a
	[ "$(on h1 cat /etc/systemd/system/berth-home-a.service)" = "$before" ]
}

@test "a port that somebody else holds is named, and nothing is touched" {
	settle
	before=$(pid_of h1 a)
	on h1 systemd-run --quiet --unit=foreign nc -lk 127.0.0.1 7799
	write_fleet 's/port: 7771/port: 7799/'
	for _ in $(seq 50); do on h1 nc -z 127.0.0.1 7799 && break; sleep 0.1; done
	run berth deploy
	on h1 systemctl stop foreign
	echo "$output"
	[ "$status" -eq 1 ]
	[[ $output == *"port 7799 of the service is taken by nc"* ]]
	[ "$(pid_of h1 a)" = "$before" ]
	answers h1 7771 a
}

@test "a payload that is cut short is refused; so is one that is not there" {
	settle
	before=$(pid_of h1 a)
	on h1 sh -c 'head -c 100000 /srv/models/berth-tiny-q8_0.gguf >/srv/models/cut.gguf'
	write_fleet 's/berth-tiny-f16/cut/'
	run berth deploy
	echo "$output"
	[ "$status" -eq 1 ]
	[ "$(pid_of h1 a)" = "$before" ]
	write_fleet 's/berth-tiny-f16/missing/'
	run berth deploy
	echo "$output"
	[ "$status" -eq 1 ]
	[[ $output == *"missing.gguf"* ]]
	[ "$(pid_of h1 a)" = "$before" ]
}

@test "a unit that somebody else wrote under our name is never touched" {
	settle
	on h1 sh -c 'printf "[Service]\nExecStart=/bin/true\n" >/etc/systemd/system/berth-home-b.service'
	write_fleet '$ a\  b: {host: h1, runtime: llama, model: tiny, port: 7772, context: 512, unit: systemd}'
	run berth deploy
	echo "$output"
	[ "$status" -eq 1 ]
	[[ $output == *"berth-home-b.service' was not written by berth for fleet 'home'"* ]]
	[ "$(on h1 cat /etc/systemd/system/berth-home-b.service)" = $'[Service]\nExecStart=/bin/true' ]
	on h1 rm /etc/systemd/system/berth-home-b.service
}

@test "a full disk: the error says so, and what ran runs" {
	settle
	on h1 sh -c 'mkdir -p /run/full && mount -t tmpfs -o size=64k tmpfs /run/full && cp -a /etc/systemd/system/. /run/full/ && mount --bind /run/full /etc/systemd/system && dd if=/dev/zero of=/run/full/fill bs=1k count=64 2>/dev/null; true'
	write_fleet 's/slots: 2/slots: 1/'
	run berth deploy
	on h1 sh -c 'umount /etc/systemd/system; umount /run/full; systemctl daemon-reload'
	echo "$output"
	[ "$status" -eq 1 ]
	[[ $output == *"No space left on device"* ]]
	settle
}

@test "ssh is cut in the middle: what was begun goes on, and the next deploy finishes" {
	settle
	write_fleet 's/slots: 2/slots: 1/'
	lab run sh -c '"$0" deploy -f "$1" & pid=$!; for i in $(seq 100); do sleep 0.1; pkill -9 -P $pid -f "_apply" && break; done; wait $pid' "$BERTH" "$FLEET" >"$LAB/out" 2>&1 || true
	# the one over there works on, and keeps others away until it has ended
	for _ in $(seq 300); do on h1 pgrep -f ' _apply deploy' >/dev/null || break; sleep 0.2; done
	run berth deploy
	echo "$output"
	[ "$status" -eq 0 ]
	on h1 curl -sf http://127.0.0.1:7771/props | grep -q '"total_slots":1'
}

@test "kill -9 of the apply at 20 moments: the next deploy finishes, with one owner" {
	settle
	for n in $(seq 20); do
		delay=$((RANDOM % 3)).$((RANDOM % 10))
		write_fleet "s/slots: 2/slots: $((1 + n % 2))/"
		berth deploy >"$LAB/out" 2>&1 &
		job=$!
		for _ in $(seq 100); do on h1 pgrep -f ' _apply deploy' >/dev/null && break; sleep 0.05; done
		sleep "$delay"
		on h1 pkill -9 -f ' _apply deploy' || true
		wait "$job" || true
		# a unit file is there at every moment
		on h1 test -s /etc/systemd/system/berth-home-a.service
		[ "$(on h1 sh -c 'pgrep -fc "[l]lama-server .*--port 7771"')" -le 1 ]
		berth deploy >"$LAB/out" 2>&1 || { cat "$LAB/out"; echo "after $delay"; false; }
		on h1 curl -sf http://127.0.0.1:7771/props | grep -q "\"total_slots\":$((1 + n % 2))"
		[ "$(on h1 sh -c 'pgrep -fc "[l]lama-server .*--port 7771"')" -eq 1 ]
	done
}

@test "a power cut and a reboot: everything is back by itself" {
	settle
	for how in cut reboot; do
		lab power h1 $how
		for _ in $(seq 200); do answers h1 7771 a && break; sleep 0.1; done
		answers h1 7771 a
		run berth plan --exit-code
		[ "$status" -eq 0 ]
	done
}

@test "an engine that dies is started again, even when it ends with 0" {
	settle
	before=$(pid_of h1 a)
	on h1 systemctl kill --signal=TERM berth-home-a
	for _ in $(seq 200); do [ "$(pid_of h1 a)" != "$before" ] && answers h1 7771 a && break; sleep 0.1; done
	[ "$(pid_of h1 a)" != "$before" ]
	answers h1 7771 a
}

@test "rollback enters the version before" {
	settle
	write_fleet 's/slots: 2/slots: 1/'
	berth deploy
	run berth rollback h1
	echo "$output"
	[ "$status" -eq 0 ]
	on h1 curl -sf http://127.0.0.1:7771/props | grep -q '"total_slots":2'
}

@test "a retired service goes to the trash, and its restore command brings it back" {
	settle
	write_fleet '$ a\  b: {host: h1, runtime: llama, model: tiny, port: 7772, context: 512, unit: systemd}'
	berth deploy
	answers h1 7772 b
	write_fleet
	run berth deploy
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"1 retired"* ]]
	on h1 sh -c '! test -e /etc/systemd/system/berth-home-b.service && ! test -e /etc/systemd/system/multi-user.target.wants/berth-home-b.service'
	on h1 sh -c 'sh "$(grep -l berth-home-b /var/lib/berth/fleets/home/trash/*/restore | tail -n 1)"'
	for _ in $(seq 200); do answers h1 7772 b && break; sleep 0.1; done
	answers h1 7772 b
	berth deploy
	on h1 sh -c '! test -e /etc/systemd/system/berth-home-b.service'
}

@test "two hosts: the first is the canary, a failure stops before the second" {
	settle
	write_fleet -e 's/slots: 2/slots: 1, args: ["--no-such-flag"]/' -e '$ a\  c: {host: h2, runtime: llama, model: tiny, port: 7773, context: 512, unit: systemd}'
	run berth deploy h1 h2
	[ "$status" -eq 1 ]
	run on h2 test -e /etc/systemd/system/berth-home-c.service
	[ "$status" -ne 0 ]
	write_fleet '$ a\  c: {host: h2, runtime: llama, model: tiny, port: 7773, context: 512, unit: systemd}'
	berth deploy
	answers h2 7773 c
}

@test "quadlets: on both podmans an image by digest is started, changed, retired" {
	tree=$(ls -d "$BERTH_STATE"/store/runtimes/llama.cpp-*/tree | head -n 1)
	for h in h1 h2; do
		tar -C "$tree" -cf - . | lab run ssh "$h" "podman import --change 'ENTRYPOINT [\"/usr/bin/llama-server\"]' - localhost/llama:1" >/dev/null 2>&1
		digest=$(on "$h" podman image inspect --format '{{.Digest}}' localhost/llama:1)
		fleet() { # fleet SLOTS
			write_fleet -e "/^runtimes/ a\\  image: {engine: llama.cpp, source: \"oci:localhost/llama@$digest\"}" -e "\$ a\\  q: {host: $h, runtime: image, model: tiny, port: 7775, context: 512, slots: $1, unit: quadlet}"
		}
		fleet 2
		# one of that name which somebody else made, such as compose or by hand, is never replaced
		on "$h" podman create --name berth-home-q localhost/llama:1 >/dev/null
		run berth deploy
		echo "$output"
		[ "$status" -eq 1 ]
		[[ $output == *"a container 'berth-home-q' is there and was not made by its unit"* ]]
		on "$h" podman rm berth-home-q
		run berth deploy
		echo "$output"
		[ "$status" -eq 0 ]
		answers "$h" 7775 q
		on "$h" podman ps --format '{{.Names}} {{.Image}}' | grep -q "^berth-home-q localhost/llama@$digest$"
		before=$(pid_of "$h" q)
		run berth deploy
		[ "$(pid_of "$h" q)" = "$before" ]
		fleet 1
		run berth deploy
		echo "$output"
		[ "$status" -eq 0 ]
		on "$h" curl -sf http://127.0.0.1:7775/props | grep -q '"total_slots":1'
		write_fleet
		berth deploy
		[ -z "$(on "$h" podman ps -aq)" ]
		on "$h" sh -c '! ls /etc/containers/systemd/berth-* 2>/dev/null'
	done
}
