#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# The page of the admin listener: what it serves and to whom, and what a browser shows of it.

load ../aids/ports

setup() {
	BERTH=${BERTH:-$PWD/build/berth}
	scratch=$(mktemp -d)
	chmod 755 "$scratch"
	export BERTH_STATE=$scratch/state BERTH_RUN=$scratch/run NO_COLOR=1
	unset XDG_RUNTIME_DIR
	fleet=$scratch/fleet.yaml
	cp test/aids/mock_engine.py "$scratch/engine"
	read -r port_a port_b port admin < <(free_ports 4)
	cat >"$fleet" <<-EOT
		version: 1
		name: seen
		runtimes:
		  mock: {engine: generic, source: system}
		services:
		  alpha: {runtime: mock, port: $port_a, identity: /v1/models, command: [python3, "$scratch/engine", "{port}", alpha]}
		  beta: {runtime: mock, port: $port_b, identity: /v1/models, command: [python3, "$scratch/engine", "{port}", beta]}
		endpoints:
		  medium: {services: [alpha, beta]}
		router: {listen: "127.0.0.1:$port", admin: "127.0.0.1:$admin"}
	EOT
	page=http://127.0.0.1:$admin
	asked=()
	"$BERTH" up -d -f "$fleet" >"$scratch/up" 2>&1 3>&- || { cat "$scratch/up"; return 1; }
}

teardown() {
	[ ${#asked[@]} -eq 0 ] || kill "${asked[@]}" 2>/dev/null || true
	timeout 60 "$BERTH" down -f "$fleet" >/dev/null 2>&1 || true
	rm -rf "$scratch"
}

ask() { # ask OUT [PATH]: a stream without end, in the background
	curl -sNg --path-as-is "http://127.0.0.1:$port${2:-/v1/chat/completions}" -H 'Content-Type: application/json' -o "$1" \
		-d '{"model":"medium","stream":true,"tokens":100000,"messages":[{"role":"user","content":"hello"}]}' 3>&- &
	asked+=($!)
	until grep -q w0 "$1" 2>/dev/null; do sleep 0.02; done
}

status() { curl -s -o "$scratch/body" -w '%{http_code}' "$@"; }

@test "the page loads nothing from elsewhere, and may not be framed" {
	curl -sS -D "$scratch/head" "$page/" -o "$scratch/index"
	grep -qi "^content-security-policy: default-src 'none';.*frame-ancestors 'none'" "$scratch/head"
	grep -qi '^x-content-type-options: nosniff' "$scratch/head"
	! grep -E '(src|href)="?(https?:)?//' "$scratch/index" || false
	! grep -E 'innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(' web/app.js || false
	[ "$(status "$page/app.js")" = 200 ]
	cmp "$scratch/body" web/app.js
	[ "$(status "$page/style.css")" = 200 ]
	cmp "$scratch/body" web/style.css
	[ "$(status "$page/../etc/passwd" --path-as-is)" = 404 ]
}

@test "who is led here by another site gets nothing" {
	[ "$(status "$page/" -H 'Host: evil.example')" = 403 ]
	[ "$(status "$page/requests" -H 'Host: evil.example:1')" = 403 ]
	[ "$(status "$page/requests" -H 'Origin: http://evil.example')" = 403 ]
	[ "$(status "$page/requests" -H "Host: localhost:$admin")" = 200 ]
	# a form, or a page of another port, cannot act; the page and a person's curl can
	[ "$(status -X POST "$page/requests/1/cancel" -H 'Origin: http://evil.example' -H 'X-Berth-Page: 1')" = 403 ]
	[ "$(status -X POST "$page/requests/1/cancel" -H "Origin: $page")" = 403 ]
	[ "$(status -X POST "$page/requests/1/cancel" -H 'Sec-Fetch-Site: same-origin')" = 403 ]
	[ "$(status -X POST "$page/requests/1/cancel" -H "Origin: $page" -H 'X-Berth-Page: 1')" = 404 ]
	[ "$(status -X POST "$page/requests/1/cancel")" = 404 ]
	# nobody else is asked in its name: no field lets another origin read
	[ "$(curl -s -D - -o /dev/null "$page/requests" | grep -ci '^access-control')" = 0 ]
}

@test "events tell of requests as they come and go, and end with the fleet" {
	curl -sN "$page/events" -o "$scratch/events" 3>&- &
	asked+=($!)
	until grep -q '"requests":\[\]' "$scratch/events"; do sleep 0.02; done
	ask "$scratch/one"
	until sed -n 's/^data: //p' "$scratch/events" | tail -n 2 | head -n 1 | jq -e '.router.requests[0].phase == "decode" and .status.fleet == "seen"' >/dev/null 2>&1; do sleep 0.05; done
	"$BERTH" down -f "$fleet" 2>/dev/null
	wait "${asked[0]}" || true
}

@test "a browser shows requests, explains one, and cancels it" {
	command -v chromium >/dev/null || skip "chromium is not here"
	ask "$scratch/one"
	run test/aids/browser.py "$page/" \
		'wait=document.querySelectorAll("#requests tbody tr").length == 1 && document.querySelector("#requests .tag").textContent == "decode"' \
		'eval=document.querySelector("#requests tbody tr").innerText' \
		'eval=[...document.querySelectorAll("#replicas h3")].map(e => e.innerText.replace(/\s+/g, " "))' \
		'click=#requests .id' 'wait=document.querySelector("#explain").open && document.querySelectorAll("#candidates tbody tr").length == 2' \
		'eval=document.querySelector("#explain-title").textContent' 'eval=document.querySelector("#explain").close()' \
		'click=.cancel' 'wait=document.querySelector(".cancel").textContent == "sure?"' 'click=.cancel' \
		'wait=document.querySelectorAll("#requests tbody tr").length == 0 && document.querySelector("#recent .tag").textContent.startsWith("cancelled")' \
		'eval=document.querySelector("#link").innerText'
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *medium*alpha*decode*'["alpha ready", "beta ready"]'*'"Request 1: POST /v1/chat/completions"'*'"live"'* ]]
	[[ $output != *console:* ]] # its policy refused nothing, and nothing was thrown
	wait "${asked[0]}" || true
	grep -q 'cancelled by the operator' "$scratch/one"
}

@test "what a client wrote is shown as it is, never as markup; a phone's width is enough" {
	command -v chromium >/dev/null || skip "chromium is not here"
	ask "$scratch/one" '/<img/src=x/onerror=alert(1)>&amp;'
	run test/aids/browser.py --size=360x800 --dark "$page/" \
		'wait=document.querySelectorAll("#requests tbody tr").length == 1' 'click=#requests .id' 'wait=document.querySelector("#explain").open' \
		'eval=document.querySelector("#explain-title").textContent' 'eval=document.querySelectorAll("img").length' \
		'eval=document.documentElement.scrollWidth <= 360' \
		'eval=getComputedStyle(document.documentElement).backgroundColor'
	echo "$output"
	[ "$status" -eq 0 ]
	[ "$output" = $'"Request 1: POST /<img/src=x/onerror=alert(1)>&amp;"\n0\ntrue\n"rgb(14, 20, 18)"' ]
}
