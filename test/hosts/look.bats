#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# What can be seen of deployed hosts: status of all of them at once, plans against what was declared before; and that looking leaves nothing behind.

bats_require_minimum_version 1.5.0
load common

@test "status asks every host at once: what runs, what does not, who is silent, what is not declared" {
	settle
	run berth status
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output =~ a\ +ready\ +[0-9]+\ +7771\ +tiny ]]
	[[ $output == *"hosts      h1 version "* ]]
	[ "$(berth status --json | jq -r '.services[0] | "\(.host) \(.unit) \(.state) \(.pid)"')" = "h1 systemd ready $(pid_of h1 a)" ]
	on h1 systemctl stop berth-home-a
	write_fleet -e 's/h2: {ssh: h2/h2: {ssh: 10.77.0.99/' -e '$ a\  c: {host: h2, runtime: llama, model: tiny, port: 7773, context: 512, unit: systemd}\n  d: {host: h1, runtime: llama, model: tiny, port: 7774, context: 512, unit: systemd}'
	run berth status --json
	echo "$output"
	[ "$status" -eq 1 ]
	[ "$(jq -r '.services[] | "\(.name) \(.state)"' <<<"$output")" = $'a stopped\nc unreachable\nd absent' ]
	[[ $(jq -r '.hosts[] | select(.name == "h2") | "\(.reached) \(.error)"' <<<"$output") == "false ssh: connect to host 10.77.0.99 "* ]]
	write_fleet 's/^  a: /  b: /'
	run berth status
	[ "$status" -eq 0 ]
	[[ $output == *"a: not declared: 'berth deploy' takes it away"* ]]
	on h1 systemctl start berth-home-a
}

@test "status of the machine itself, by the berth that was deployed there" {
	settle
	for _ in $(seq 200); do answers h1 7771 a && break; sleep 0.1; done
	sed 's/h1: {ssh: h1, /h1: {/' "$FLEET" | on h1 sh -c 'cat >/root/own.yaml'
	on h1 sh -c "printf '[Service]\nExecStart=/bin/true\n' >/etc/systemd/system/berth-home-b.service && systemctl daemon-reload"
	on h1 sh -c 'sed "s/^services:/&\n  b: {host: h1, runtime: llama, model: tiny, port: 7772, context: 512, unit: systemd}/" -i /root/own.yaml'
	run on h1 env -u BERTH_STATE -u BERTH_RUN /var/lib/berth/bin/berth status --json -f /root/own.yaml
	on h1 sh -c 'rm /etc/systemd/system/berth-home-b.service && systemctl daemon-reload'
	echo "$output"
	[ "$(jq -r '.services[] | "\(.name) \(.state)"' <<<"$output")" = $'b foreign\na ready' ]
	# a process that is older than its file
	on h1 sh -c 'touch -d "+1 minute" /etc/systemd/system/berth-home-a.service && systemctl daemon-reload'
	run on h1 env -u BERTH_STATE -u BERTH_RUN /var/lib/berth/bin/berth status -f /root/own.yaml
	echo "$output"
	[[ $output == *"a: pending restart: its process is older than its unit; 'berth deploy' starts it anew"* ]]
	write_fleet
	run berth plan
	[[ $output == *"start"*"a        its process is older than its file"* ]]
	on h1 touch -d "-1 hour" /etc/systemd/system/berth-home-a.service
}

@test "a plan against a revision and against a kept version, whatever is installed" {
	settle
	# its runtime is there then
	write_fleet '$ a\  c: {host: h2, runtime: llama, model: tiny, port: 7773, context: 512, unit: systemd}'
	berth deploy h2
	write_fleet
	g() { git -C "$LAB/repo" -c user.name=t -c user.email=t@example "$@" >/dev/null; }
	mkdir -p "$LAB/repo/templates"
	cp "$FLEET" "$LAB/repo/fleet.yaml"
	echo '{{ messages[0].content }}' >"$LAB/repo/templates/t.jinja"
	sed -i 's|weights: berth-tiny-f16.gguf|&, template: templates/t.jinja|' "$LAB/repo/fleet.yaml"
	g init -q
	g add -A
	g commit -qm one
	echo '{{ messages[-1].content }}' >"$LAB/repo/templates/t.jinja"
	sed -i -e '$ a\  c: {host: h2, runtime: llama, model: tiny, port: 7773, context: 512, unit: systemd}' "$LAB/repo/fleet.yaml"
	FLEET=$LAB/repo/fleet.yaml run berth plan --since HEAD
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output =~ h1\ +change\ +a\ .*--chat-template-file ]]
	[[ $output =~ h2\ +install\ +c\ +not\ declared\ then ]]
	g commit -qam two
	FLEET=$LAB/repo/fleet.yaml run berth plan --since HEAD --exit-code
	[ "$status" -eq 0 ]
	[[ $output =~ h1\ +keep\ +a\ +as\ it\ was ]]
	[ "$(FLEET=$LAB/repo/fleet.yaml berth plan --since HEAD~1 --json | jq -r '.[].items[] | "\(.action) \(.service)"')" = $'change a\ninstall c' ]
	version=$(berth deploy --json | jq '.[] | select(.host == "h1").version')
	write_fleet 's/slots: 2/slots: 1/'
	run berth plan h1 --since "$version" --diff
	[[ $output == *"a        -np changed"*"-   -np 2"*"+   -np 1"* ]]
	run berth plan h1 --since 4711
	[ "$status" -eq 1 ]
	[[ $output == *"there is no version 4711 of fleet 'home' on host 'h1'"* ]]
	for bad in nowhere -x HEAD:x; do
		FLEET=$LAB/repo/fleet.yaml run berth plan "--since=$bad"
		[ "$status" -eq 2 ]
	done
}

@test "nothing of a plan or a deploy stays in /tmp, here or there" {
	settle
	write_fleet 's/slots: 2/slots: 1/'
	# a /tmp of its own, since others use this machine's
	mkdir "/run/berth-lab-$$"
	cp "$BERTH" "$FLEET" "/run/berth-lab-$$/"
	BERTH_STATE=/run/berth-lab-$$ run lab run unshare -m --propagation private sh -c 'mount -t tmpfs tmpfs /tmp && "$0/berth" plan -f "$0/fleet.yaml" && "$0/berth" deploy -f "$0/fleet.yaml" && ls -A /tmp >"$0/left"' "/run/berth-lab-$$"
	left=$(cat "/run/berth-lab-$$/left")
	rm -rf "/run/berth-lab-$$"
	echo "$output"
	[ "$status" -eq 0 ]
	[ "$left" = "" ]
	[ -z "$(on h1 find /tmp -maxdepth 1 -name 'berth-*')" ]
}
