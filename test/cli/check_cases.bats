#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# berth check against what was read on real machines: the prompt cache of a 27B model, limits of a client, a wildcard that exposes what loopback broke, and fleets over several hosts.

load common

# The verdict and text of one contract's subject: "broken: 'medium': ..."
found() { # found CONTRACT SUBJECT
	"$BERTH" check "$1" --json -f "$f" ${headers:+--headers "$headers"} 2>/dev/null >"$scratch/json" || true
	python3 -c 'import json, sys; print(*(r["verdict"] + ": " + r["text"] for r in json.load(open(sys.argv[1])) if r["subject"] == sys.argv[2]))' "$scratch/json" "$2"
}

box() {
	headers=$scratch/h
	mkdir -p "$headers"
	"${BERTH%/*}/aids/fitmodels" --out "$headers" qwen38-27b qwen38-27b-dflash2 >/dev/null
	f=$scratch/fleet.yaml
	cp examples/boxes/two-r9700-27b.yaml "$f"
}

@test "prompt cache: 8 GiB refuse a full slot of 131,072 tokens with its drafter, 16 GiB hold it, half of the RAM is the most" {
	box
	grep -q 'prompt-cache: 16GiB' "$f"
	[[ $(found prompt-cache "service medium") == "ok: 16.00 GiB hold a full slot" ]]
	sed -i 's/prompt-cache: 16GiB/prompt-cache: 8GiB/; s/slots: 2/slots: 1/; s/context: 262144/context: 196608/' "$f"
	[[ $(found prompt-cache "service medium") == "broken: prompt-cache 8.00 GiB is less than the "*" that one full slot saves"* ]]
	sed -i 's/prompt-cache: 8GiB/prompt-cache: 16GiB/' "$f"
	[[ $(found prompt-cache "service medium") == ok:* ]]
	sed -i 's/prompt-cache: 16GiB/prompt-cache: 200GiB/' "$f"
	[[ $(found prompt-cache "service medium") == "broken: "*"over half of the host's"* ]]
}

@test "limits: the window is a slot's; 70 % of 262,144 and an answer of 65,536 fit one slot and not one of two" {
	box
	cat >>"$f" <<-'EOT'
		clients:
		  agent: {format: json, file: agent.json, endpoints: [medium]}
	EOT
	cat >"$scratch/agent.json" <<-'EOT'
		{
		  "base_url": "http://127.0.0.1:8080/v1",
		  "models": {
		    "medium": {"context": 262144, "output": 65536}
		  }
		}
	EOT
	[[ $(found limits "client agent") == "broken: 'medium' has a window of 262,144, and a slot holds 131,072" ]]
	python3 -c 'import json, sys; assert [r["where"] for r in json.load(open(sys.argv[1]))] == ["agent.json:4"]' "$scratch/json"
	sed -i 's/slots: 2/slots: 1/' "$f"
	[[ $(found limits "client agent") == "ok: window and answer fit into a slot" ]]
	sed -i 's/65536/78700/' "$scratch/agent.json"
	[[ $(found limits "client agent") == "broken: 'medium': 183,500 (70 % of 262,144) and an answer of 78,700 are more than the 262,144 of a slot" ]]
	sed -i 's/"output": 78700/"answer": 1/' "$scratch/agent.json"
	[[ $(found limits "client agent") == "broken: 'medium' has no longest answer"* ]]
}

@test "places: loopback is neither another host's nor a bridge network's; what a command binds wide is open" {
	f=$scratch/fleet.yaml
	cat >"$f" <<-'EOT'
		version: 1
		name: f
		hosts:
		  here: {}
		  far: {ssh: op@far.example}
		runtimes:
		  own: {engine: generic, source: system}
		  llama: {engine: llama.cpp, source: system}
		models:
		  m: {source: "file:/m", weights: m.gguf}
		services:
		  a: {host: here, runtime: own, port: 7770, command: [serve, --listen, "{bind}:{port}"]}
		  b: {host: far, runtime: own, port: 7770, command: [serve, "--listen=0.0.0.0:{port}"]}
		  wide: {host: far, runtime: llama, model: m, port: 7775, bind: 10.9.9.9, key: /etc/berth/key}
		  any: {host: far, runtime: llama, model: m, port: 7776, bind: "::", key: /etc/berth/key}
		  c: {host: here, runtime: own, port: 7771, command: [podman, run, -p, "{port}:80", image]}
		  d: {host: here, runtime: own, port: 7772, command: [podman, run, image]}
		  e: {host: here, runtime: own, port: 7773, command: [exporter, --target, "0.0.0.0:7770", --metrics-port, "7772"]}
		router: {listen: "127.0.0.1:8080"}
		clients:
		  beside: {format: json, file: a}
		  boxed: {format: json, file: b, network: bridge}
		  far: {format: json, file: c, from: far}
		  away: {format: json, file: d, from: elsewhere, url: "http://127.0.0.1:8080/v1"}
		  proxied: {format: json, file: e, from: elsewhere, url: "https://ai.example/v1"}
	EOT
	[[ $(found reach "service a") == "ok: on the router's host" ]]
	[[ $(found reach "service b") == "broken: it listens on 127.0.0.1 of host 'far', and the router runs on host 'here'" ]]
	[[ $(found reach "service wide") == "ok: by 10.9.9.9, with the key in '/etc/berth/key'" ]]
	[[ $(found reach "service any") == "unproven: by its ssh target 'op@far.example'"* ]]
	[[ $(found open "service wide") == "ok: on 10.9.9.9, with a key" ]]
	[[ $(found reach "client beside") == "ok: by http://127.0.0.1:8080/v1" ]]
	[[ $(found reach "client boxed") == "broken: the router listens on 127.0.0.1 alone, which is another place in a container"* ]]
	[[ $(found reach "client far") == "broken: the router listens on 127.0.0.1 alone, which is another place on its machine" ]]
	[[ $(found reach "client away") == "broken: 'http://127.0.0.1:8080/v1' is loopback of its machine, and the router is not there" ]]
	[[ $(found reach "client proxied") == "unproven: "*"what forwards it cannot be seen" ]]
	[[ $(found open "service a") == "ok: on 127.0.0.1" ]]
	[[ $(found open "service b") == "broken: its words bind '--listen=0.0.0.0:{port}'"* ]]
	[[ $(found open "service c") == "broken: its container publishes '{port}:80' on every address of the host" ]]
	[[ $(found open "service e") == "ok: on 127.0.0.1" ]]
	[[ $(found published "service c") == "ok: port 7771 is published" ]]
	[[ $(found published "service d") == "broken: its container has a network of its own and does not publish port 7772" ]]
	[[ $(found ports "service e") == "broken: its words say '7772', and port 7772 is that of service 'd' on host 'here'" ]]
	# a client's file that is named and is not there is broken, whatever else is
	[[ $(found clients "client beside") == "broken: 'a' is not there" ]]
	[[ $(found limits "client beside") == "does-not-apply: "* ]]
}

@test "a recording of a firewall: stopped by a line, cannot be told, torn, gone" {
	f=$scratch/fleet.yaml
	cat >"$f" <<-'EOT'
		version: 1
		name: f
		hosts: {here: {firewall: rules}}
		runtimes: {own: {engine: generic, source: system}}
		services: {a: {runtime: own, port: 7770, command: [serve]}}
	EOT
	printf '*filter\n:INPUT DROP [0:0]\n-A INPUT -i lo -j ACCEPT\nCOMMIT\n' >"$scratch/rules"
	[[ $(found firewall "host here") == "ok: 2 ways through rules" ]]
	printf '*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -p tcp --dport 7770 -j REJECT\nCOMMIT\n' >"$scratch/rules"
	[[ $(found firewall "host here") == "broken: the probe of service 'a' is stopped at port 7770 by line 3 of rules" ]]
	printf 'table inet f {\n chain i {\n type filter hook input priority 0; policy drop;\n meta mark 1 accept\n }\n}\n' >"$scratch/rules"
	[[ $(found firewall "host here") == "unproven: "*"may be stopped at port 7770 by line 2 of rules"* ]]
	printf 'table inet f {\n' >"$scratch/rules"
	[[ $(found firewall "host here") == "broken: rules that cannot be read: it ends in the middle of a block" ]]
	rm "$scratch/rules"
	[[ $(found firewall "host here") == "broken: 'rules' is not there" ]]
}

@test "a firewall that is here and does not tell its rules is unproven, never passed over" {
	[ "$(id -u)" -eq 0 ] || skip "rules are read as root only"
	f=$scratch/fleet.yaml
	cat >"$f" <<-'EOT'
		version: 1
		name: f
		runtimes: {own: {engine: generic, source: system}}
		services: {a: {runtime: own, port: 7770, command: [serve]}}
	EOT
	mkdir "$scratch/bin"
	printf '#!/bin/sh\necho "cannot list: no netlink" >&2\nexit 1\n' >"$scratch/bin/nft"
	printf '#!/bin/sh\nprintf "*filter\\n:INPUT ACCEPT [0:0]\\n-A INPUT -p tcp --dport 7770 -j DROP\\nCOMMIT\\n"\n' >"$scratch/bin/iptables-save"
	chmod +x "$scratch/bin/nft" "$scratch/bin/iptables-save"
	PATH=$scratch/bin:$PATH
	[[ $(found firewall "host here") == "unproven: its rules cannot be seen: 'nft' failed: exit 1: cannot list: no netlink" ]]
	# nft has no rule: older ones of iptables are not among its own
	printf '#!/bin/sh\n' >"$scratch/bin/nft"
	[[ $(found firewall "host here") == "broken: the probe of service 'a' is stopped at port 7770 by line 3 of iptables-save" ]]
}

@test "documents: headings of other pages, blocks within blocks, flags that are there twice, a stray alias" {
	f=$scratch/fleet.yaml
	cat >"$f" <<-'EOT'
		version: 1
		name: f
		runtimes: {llama: {engine: llama.cpp, source: system}}
		models: {m: {source: "file:.", weights: m.gguf}}
		services: {a: {runtime: llama, model: m, port: 7770, args: [-ot, "a=CPU", -ot, "b=CPU"]}}
		documents: [page.md]
	EOT
	printf '# One\n# One\n~~~\n# Two\n~~~\n' >"$scratch/other.md"
	printf '%s\n' '[a](other.md#one) [b](other.md#one-1)' '````' '```' 'llama-server --port 7770 -ot b=CPU' '````' >"$scratch/page.md"
	[[ $(found links "document page.md") == "ok: 2 links" ]]
	[[ $(found flags "document page.md") == "ok: 1 command line" ]]
	sed -i 's/one-1/one-2/' "$scratch/page.md"
	[[ $(found links "document page.md") == "broken: '#one-2' is no heading of 'other.md'" ]]
	sed -i 's/one-2/two/' "$scratch/page.md"
	[[ $(found links "document page.md") == "broken: '#two' is no heading of 'other.md'" ]]
	sed -i 's/b=CPU/c=CPU/' "$scratch/page.md"
	[[ $(found flags "document page.md") == "broken: it quotes '-ot c=CPU', and service 'a' gets 'a=CPU'" ]]
	sed -i 's/--port 7770/--port=7771/' "$scratch/page.md"
	[[ $(found flags "document page.md") == "broken: it quotes a 'llama-server' at port 7771, which no service has" ]]
	sed -i 's/--port=7771/--alias other/' "$scratch/page.md"
	[[ $(found flags "document page.md") == "broken: it quotes a 'llama-server' with the alias other, which no service has" ]]
}
