#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# Keys of the router's clients: made once and kept as hashes, shown in three ways, limited, replaced while the router runs; and pages of other origins.

load common

setup_file() {
	export FAKE=$PWD/build/aids/fake_engine
}

teardown() {
	"$BERTH" down -f "$fleet" >/dev/null 2>&1 || true
	rm -rf "$scratch"
}

write_fleet() { # write_fleet [MORE OF ROUTER]
	chmod 755 "$scratch"
	fleet=$scratch/fleet.yaml
	read -r port_a port_b router_port < <(free_ports 3)
	cat >"$fleet" <<-EOT
		version: 1
		name: keys
		runtimes:
		  fake: {engine: generic, source: system}
		services:
		  a: {runtime: fake, port: $port_a, command: ["$FAKE", --port, "{port}", --name, a, --work, "${work:-0}"]}
		  b: {runtime: fake, port: $port_b, command: ["$FAKE", --port, "{port}", --name, b]}
		router: {listen: "127.0.0.1:$router_port"${1:-, keys-file: keys}}
	EOT
	url=http://127.0.0.1:$router_port
}

bring_up() {
	timeout 60 "$BERTH" up -d -f "$fleet" >"$scratch/out" 2>"$scratch/err" 3>&- || { cat "$scratch/err"; return 1; }
}

code() { curl -sS --max-time 20 -o /dev/null -w '%{http_code}' "$@"; }

# absent GREP-ARGUMENTS: it must find nothing
absent() { if grep "$@"; then return 1; fi; }

chat() { code "$url/v1/chat/completions" -d "{\"model\":\"${model:-a}\",\"messages\":[]}" "$@"; }

@test "a key is shown once, its file is private and has no secret; list and remove" {
	write_fleet
	run_split "$BERTH" key -f "$fleet" --models a --concurrency 2 --rate 60 add alice
	[ "$status" -eq 0 ]
	[[ $output =~ ^berth_[A-Za-z0-9_-]{43}$ ]]
	[ "$errors" = "this is the only time that key 'alice' is shown" ]
	[ "$(stat -c %a "$scratch/keys")" = 600 ]
	absent -q "${output#berth_}" "$scratch/keys"
	[ "$(cut -d ' ' -f 1,3- "$scratch/keys")" = 'alice models=a concurrency=2 rate=60' ]
	[ "$(cut -d ' ' -f 2 "$scratch/keys")" = "sha256:$(printf %s "$output" | sha256sum | cut -d ' ' -f 1)" ]
	"$BERTH" key -f "$fleet" add bob >/dev/null
	[ "$("$BERTH" key --json list -f "$fleet" | jq -c '[.[] | [.name, .models, .concurrency, .rate]]')" = '[["alice",["a"],2,60],["bob",[],0,0]]' ]
	[ "$("$BERTH" key list -f "$fleet" | tr -s ' ')" = $'KEY AT ONCE RATE MODELS\nalice 2 60/min a\nbob any any all' ]
	run_split "$BERTH" key -f "$fleet" add bob
	[ "$status" -eq 1 ]
	run_split "$BERTH" key -f "$fleet" --models c add carol
	[ "$status" -eq 2 ]
	[[ $errors == *"no endpoint 'c'"* ]]
	run_split "$BERTH" key -f "$fleet" --rate 0 add carol
	[ "$status" -eq 2 ]
	"$BERTH" key -f "$fleet" remove alice
	[ "$("$BERTH" key --json list -f "$fleet" | jq -r '.[].name')" = bob ]
	run_split "$BERTH" key -f "$fleet" remove alice
	[ "$status" -eq 1 ]
	chmod 640 "$scratch/keys"
	run_split "$BERTH" key -f "$fleet" list
	[ "$status" -eq 1 ]
	[[ $errors == *"chmod 600"* ]]
	run_split timeout 60 "$BERTH" up -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $errors == *"chmod 600"* ]]
}

@test "who shows a key is served, in three ways; who shows none is refused in his API's form" {
	write_fleet
	key=$("$BERTH" key -f "$fleet" add alice 2>/dev/null)
	bring_up
	[ "$(chat)" = 401 ]
	[ "$(chat -H 'Authorization: Bearer berth_nobody')" = 401 ]
	[ "$(chat -H "Authorization: Basic $key")" = 401 ]
	[ "$(chat -H "Authorization: Bearer $key")" = 200 ]
	[ "$(chat -H "x-api-key: $key")" = 200 ]
	[ "$(chat -H "api-key: $key")" = 200 ]
	[ "$(code "$url/health")" = 200 ]
	[ "$(code "$url/v1/models")" = 401 ]
	[ "$(code "$url/v1/models" -H "Authorization: Bearer $key")" = 200 ]
	# who runs the router sees whose request it was
	[ "$(curl -sS --max-time 20 --unix-socket "$BERTH_RUN/keys/control.sock" http://berth/requests | jq -r '[.recent[] | select(.status == 200) | .key] | unique | join(" ")')" = alice ]
	[ "$(curl -sS --max-time 20 "$url/v1/messages" -d '{"model":"a"}' | jq -r '.type + " " + .error.type')" = "error authentication_error" ]
	curl -sS --max-time 20 -o /dev/null -D - "$url/v1/chat/completions" -d '{"model":"a"}' | grep -qi '^www-authenticate: bearer'
	# nobody has it in a log, its name is there
	"$BERTH" down -f "$fleet"
	absent -rq "${key#berth_}" "$BERTH_STATE" "$scratch/out" "$scratch/err"
	grep -q '"key":"alice"' "$BERTH_STATE/fleets/keys/logs/router.log"
}

@test "limits: models, at once, a minute" {
	work=1500
	write_fleet
	one=$("$BERTH" key -f "$fleet" --concurrency 1 add one 2>/dev/null)
	few=$("$BERTH" key -f "$fleet" --rate 2 --models b add few 2>/dev/null)
	bring_up
	chat -H "x-api-key: $one" >"$scratch/first" &
	wait_for 10 busy
	run curl -sS --max-time 20 -D "$scratch/head" "$url/v1/messages" -H "x-api-key: $one" -d '{"model":"a"}'
	[ "$(jq -r .error.type <<<"$output")" = rate_limit_error ]
	grep -qi '^retry-after: 1' "$scratch/head"
	wait
	[ "$(cat "$scratch/first")" = 200 ]
	[ "$(chat -H "x-api-key: $one")" = 200 ]
	# it sees what it may use
	[ "$(curl -sS --max-time 20 "$url/v1/models" -H "x-api-key: $one" | jq -r '[.data[].id] | contains(["a", "b"])')" = true ]
	[ "$(curl -sS --max-time 20 "$url/v1/models" -H "x-api-key: $few" | jq -c '[.data[].id]')" = '["b"]' ]
	[ "$(curl -sS --max-time 20 "$url/api/tags" -H "x-api-key: $few" | jq -c '[.models[].name]')" = '["b"]' ]
	[ "$(code "$url/v1/models/a" -H "x-api-key: $few")" = 404 ]
	[ "$(code "$url/v1/models/b" -H "x-api-key: $few")" = 200 ]
	[ "$(code "$url/api/show" -H "x-api-key: $one" -d '{"model":"a"}')" = 200 ]
	[ "$(chat -H "x-api-key: $few")" = 403 ]
	[ "$(model=b chat -H "x-api-key: $few")" = 200 ]
	run curl -sS --max-time 20 -D "$scratch/head" "$url/v1/chat/completions" -H "x-api-key: $few" -d '{"model":"b"}'
	[[ $(jq -r .error.message <<<"$output") == "key 'few' may ask 2 times a minute; again in "* ]]
	grep -Eqi '^retry-after: (2[5-9]|3[01])' "$scratch/head"
}

busy() { [ "$("$BERTH" status --json -f "$fleet" | jq .router.active)" = 1 ]; }

@test "a file that changed is used within moments, a broken one is not, and nothing is dropped" {
	work=3000
	write_fleet
	old=$("$BERTH" key -f "$fleet" add old 2>/dev/null)
	bring_up
	chat -H "x-api-key: $old" >"$scratch/long" &
	wait_for 10 busy
	new=$("$BERTH" key -f "$fleet" add new 2>/dev/null)
	"$BERTH" key -f "$fleet" remove old
	model=b
	wait_for 10 knows "$new"
	[ "$(chat -H "x-api-key: $old")" = 401 ]
	wait
	[ "$(cat "$scratch/long")" = 200 ]
	echo 'new sha256:x' >"$scratch/keys"
	wait_for 10 grep -q "the keys stay as they were: $scratch/keys:1: " "$BERTH_STATE/fleets/keys/logs/berth.log"
	[ "$(chat -H "x-api-key: $new")" = 200 ]
}

knows() { [ "$(chat -H "x-api-key: $1")" = 200 ]; }

@test "a reload asks for keys, for those of another file, and for none again; a file that is not usable changes nothing" {
	write_fleet ' '
	model=b
	bring_up
	[ "$(chat)" = 200 ]
	sed -i 's/^router: {/&keys-file: keys, /' "$fleet"
	run_split "$BERTH" reload -f "$fleet"
	[ "$status" -eq 2 ]
	[[ $errors == *"keys file '$scratch/keys' does not exist; 'berth key add NAME' makes it"* ]]
	[ "$(chat)" = 200 ]
	one=$("$BERTH" key -f "$fleet" add one 2>/dev/null)
	"$BERTH" reload -f "$fleet"
	wait_for 10 knows "$one"
	[ "$(chat)" = 401 ]
	sed -i 's/keys-file: keys/keys-file: others/' "$fleet"
	other=$("$BERTH" key -f "$fleet" add other 2>/dev/null)
	"$BERTH" reload -f "$fleet"
	wait_for 10 knows "$other"
	[ "$(chat -H "x-api-key: $one")" = 401 ]
	chmod 644 "$scratch/others"
	run_split "$BERTH" reload -f "$fleet"
	[ "$status" -eq 2 ]
	[[ $errors == *"chmod 600"* ]]
	[ "$(chat -H "x-api-key: $other")" = 200 ]
	sed -i 's/keys-file: others, //' "$fleet"
	"$BERTH" reload -f "$fleet"
	wait_for 10 knows ''
	[ "$(chat)" = 200 ]
}

@test "pages: only declared origins, exactly, and never with credentials" {
	write_fleet ', cors: ["https://chat.example"]'
	bring_up
	head() { curl -sS --max-time 20 -o /dev/null -D - "$@" | tr -d '\r'; }
	preflight=(-X OPTIONS "$url/v1/chat/completions" -H 'Access-Control-Request-Method: POST' -H 'Access-Control-Request-Headers: authorization,content-type')
	run head "${preflight[@]}" -H 'Origin: https://chat.example'
	[[ ${lines[0]} == *204* ]]
	grep -qix 'access-control-allow-origin: https://chat.example' <<<"$output"
	grep -qix 'access-control-allow-headers: authorization,content-type' <<<"$output"
	grep -qix 'vary: origin' <<<"$output"
	absent -qi 'allow-credentials' <<<"$output"
	for origin in https://chat.example.evil https://evil.example http://chat.example null; do
		run head "${preflight[@]}" -H "Origin: $origin"
		[[ ${lines[0]} == *403* ]]
		absent -qi 'access-control-allow-origin' <<<"$output"
	done
	run head "$url/v1/chat/completions" -H 'Origin: https://chat.example' -d '{"model":"a"}'
	grep -qix 'access-control-allow-origin: https://chat.example' <<<"$output"
	run head "$url/v1/chat/completions" -H 'Origin: https://evil.example' -d '{"model":"a"}'
	[[ ${lines[0]} == *200* ]]
	absent -qi 'access-control-allow' <<<"$output"
	grep -qix 'vary: origin' <<<"$output"
	run head "$url/v1/models" -H 'Origin: https://chat.example'
	grep -qix 'access-control-allow-origin: https://chat.example' <<<"$output"
}

@test "berth has a key of its own, for as long as it runs, told to its account alone" {
	write_fleet
	"$BERTH" key -f "$fleet" add alice >/dev/null
	bring_up
	own=$(curl -sf --unix-socket "$BERTH_RUN/keys/control.sock" http://berth/key | jq -r .key)
	[[ $own =~ ^berth_[A-Za-z0-9_-]{43}$ ]]
	[ "$(chat -H "Authorization: Bearer $own")" = 200 ]
	[ "$(chat -H "Authorization: Bearer ${own}x")" = 401 ]
	absent -rqF "${own#berth_}" "$scratch"
	absent -q berth.itself "$scratch/keys"
	"$BERTH" down -f "$fleet"
	bring_up
	[ "$(chat -H "Authorization: Bearer $own")" = 401 ]
}
