#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# berth up with the real llama-server: a fleet's whole life, and what happens when parts of it are killed or cannot start.

load common

@test "two replicas answer through the router, and down leaves nothing" {
	write_fleet
	bring_up
	[[ $output == *"alpha"*"ready"* ]]
	[[ $output == *"router     $router"*"tiny"* ]]
	[[ $output == *"berth down"* ]]
	replicas=
	for i in 1 2 3 4; do
		ask "What is slot $i?" -D "$scratch/head$i" -o "$scratch/body"
		jq -e '.choices[0].message.content | test("[a-z]{3}")' "$scratch/body"
		replicas+=" $(sed -nE 's/^x-berth-replica: *([^[:space:]]*).*/\1/Ip' "$scratch/head$i")"
	done
	[[ $replicas == *alpha* && $replicas == *beta* ]]
	curl -sS "$router/v1/models" | jq -e '[.data[].id] | index("tiny") and index("gpt-4o")'
	pid=$("$BERTH" status --json -f "$fleet" | jq .pid)
	[ -n "$(engines)" ]
	run_split "$BERTH" down -f "$fleet"
	[ "$status" -eq 0 ]
	wait_for 2 is_gone_or_zombie "$pid"
	[ -z "$(engines)" ]
	[ ! -e "$BERTH_RUN/$name/control.sock" ]
	if curl -sS --max-time 2 "$router/health"; then false; fi
	run_split "$BERTH" down -f "$fleet"
	[ "$status" -eq 0 ]
}

restarted() { [ "$(status_of beta restarts)" = 1 ] && is_state beta ready; }

@test "an engine at a socket: it answers through the router, also after a kill, and nobody else can reach it" {
	write_fleet
	socket=$scratch/sockets/beta.sock
	sed -i -E "s|port: $port_b,|bind: \"unix:$socket\",|; s|services: \[alpha, beta\]|services: [beta]|" "$fleet"
	bring_up
	[[ $output == *"beta"*"ready"*"socket"* ]]
	[ "$(stat -c %a "$scratch/sockets")" = 700 ]
	[ "$(status_of beta bind)" = "unix:$socket" ]
	ask "What is a slot?" -o "$scratch/body"
	jq -e '.choices[0].message.content | test("[a-z]{3}")' "$scratch/body"
	# a stream, and its socket left behind by a kill
	ask "What is a slot?" -D "$scratch/head" -o /dev/null
	grep -qi '^x-berth-replica: beta' "$scratch/head"
	kill -9 "$(status_of beta pid)"
	wait_for 30 restarted
	ask "What is a slot?" -o "$scratch/body"
	jq -e '.choices[0].message.content | test("[a-z]{3}")' "$scratch/body"
	"$BERTH" down -f "$fleet"
	# somebody else's folder
	chmod 777 "$scratch/sockets"
	run_split "$BERTH" up -d -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $errors == *"'$scratch/sockets' of the socket of service 'beta' must be a folder of the engine's account"* ]]
}

@test "status tells what runs, also of a fleet that is down" {
	write_fleet
	run_split "$BERTH" status -f "$fleet"
	[ "$status" -eq 0 ]
	[[ $errors == *"not up"* ]]
	[[ $output == *alpha*down*"$port_a"*tiny* ]]
	run_split "$BERTH" status --json -f "$fleet"
	jq -e '.state == "down" and .pid == null and (.services | length) == 2 and .services[0].pid == null' <<<"$output"
	down_keys=$(jq -c '[paths | map(select(type == "string")) | join(".")] | unique' <<<"$output")
	bring_up
	ask "What is a slot?" >/dev/null
	run_split "$BERTH" status --json -f "$fleet"
	jq -e '.state == "up" and .router.state == "up" and .router.requests == 1 and .router.errors == 0' <<<"$output"
	jq -e '.services[] | select(.name == "beta") | .state == "ready" and .pid > 1 and .restarts == 0 and .memory_bytes > 1000000 and .uptime_ms >= 0' <<<"$output"
	[ "$(jq -c '[paths | map(select(type == "string")) | join(".")] | unique' <<<"$output")" = "$down_keys" ]
	grep -qa llama-server "/proc/$(jq '.services[0].pid' <<<"$output")/cmdline"
	run_split "$BERTH" status -f "$fleet"
	[[ $output == *alpha*ready*"$port_a"*tiny*MiB* ]]
	[[ $output == *"requests   1,"* ]]
	curl -sS --unix-socket "$BERTH_RUN/$name/control.sock" http://berth/metrics | grep -q '^berth_'
}

@test "a replica killed under load: every question is answered, and it comes back" {
	write_fleet
	bring_up
	victim=$(status_of alpha pid)
	run test/aids/load.py "127.0.0.1:$router_port" tiny 200 8 60 "$victim"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"200 asked, 200 answered, 0 failed"* ]]
	is_gone "$victim"
	wait_for 15 is_state alpha ready
	[ "$(status_of alpha restarts)" = 1 ]
	[ "$(status_of alpha pid)" != "$victim" ]
	[ "$(status_of beta restarts)" = 0 ]
}

@test "berth killed: no engine is left after 2 seconds, and up starts again" {
	write_fleet
	bring_up
	pid=$("$BERTH" status --json -f "$fleet" | jq .pid)
	router_pid=$("$BERTH" status --json -f "$fleet" | jq .router.pid)
	kill -9 "$pid"
	all_gone() { [ -z "$(engines)" ] && is_gone_or_zombie "$router_pid"; }
	wait_for 2 all_gone
	bring_up
	ask "What is a slot?" | jq -e '.choices[0].message.content'
}

@test "a port that is taken: one error that names service and owner, nothing is started" {
	write_fleet
	python3 -c 'import socket, sys, time
s = socket.socket(); s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(); print("bound", flush=True); time.sleep(600)' "$port_b" >"$scratch/bound" 3>&- &
	leftovers+=($!)
	wait_for 5 grep -q bound "$scratch/bound"
	run_split "$BERTH" up -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $errors == *"port $port_b of service 'beta' is taken by python3"*"(pid $!)"* ]]
	[ -z "$(engines)" ]
	[ "$(grep -c . <<<"$errors")" -eq 1 ]
	sed -i "s/port: $port_b/port: $spare_port/; s/127.0.0.1:$router_port/127.0.0.1:$port_b/" "$fleet"
	run_split "$BERTH" up -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $errors == *"port $port_b of the router is taken by python3"* ]]
	[ -z "$(engines)" ]
}

@test "a corrupt model: the error names the service and shows the engine's words, the healthy one is stopped" {
	mkdir "$scratch/models"
	cp "$models/$weights" "$scratch/models/good.gguf"
	head -c 100000 "$models/$weights" >"$scratch/models/bad.gguf"
	write_fleet
	sed -i "s|tiny: {source.*|tiny: {source: \"file:$scratch/models\", weights: good.gguf}\n  broken: {source: \"file:$scratch/models\", weights: bad.gguf}|; /beta:/s/model: tiny/model: broken/" "$fleet"
	run_split "$BERTH" up -f "$fleet"
	echo "$errors"
	[ "$status" -eq 1 ]
	[[ $errors == *"service 'beta': the engine ended while loading (exit 1)"* ]]
	[[ $errors == *"the model file is damaged"* ]]
	[[ $errors == *"  | "*"load"* ]]
	[ -z "$(engines)" ]
	run_split "$BERTH" up -d -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $errors == *"service 'beta': the engine ended while loading"* ]]
	[ -z "$(engines)" ]
}

@test "a missing model file and a missing runtime: exit 1, what to do, nothing left" {
	write_fleet
	sed -i "s/weights: .*}/weights: nowhere.gguf}/" "$fleet"
	run_split "$BERTH" up -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $errors == *"service 'alpha'"*"nowhere.gguf"* ]]
	write_fleet
	BERTH_STATE=$scratch/state run_split "$BERTH" up --offline -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $errors == *"runtime 'llama'"*"offline"* ]]
	[ "$(grep -c . <<<"$errors")" -eq 1 ]
	sed -i "s|source: \"debian:forky\", packages: .*}|source: \"path:$scratch/nowhere\"}|" "$fleet"
	run_split "$BERTH" up -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $errors == *"runtime 'llama'"*"$scratch/nowhere"* ]]
	[ -z "$(engines)" ]
}

@test "a fleet that is up is not started twice" {
	write_fleet
	bring_up
	pid=$("$BERTH" status --json -f "$fleet" | jq .pid)
	run_split "$BERTH" up -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $errors == *"fleet '$name' is already up (pid $pid)"* ]]
	is_state alpha ready
}

@test "rolling restart while clients ask: no question is lost" {
	write_fleet
	bring_up
	before="$(status_of alpha pid) $(status_of beta pid)"
	test/aids/load.py "127.0.0.1:$router_port" tiny 150 4 >"$scratch/load" 3>&- &
	load=$!
	run_split "$BERTH" restart -f "$fleet"
	echo "$errors"
	[ "$status" -eq 0 ]
	[[ $errors == *"alpha: ready again"*"beta: ready again"* ]]
	wait "$load" || { cat "$scratch/load"; false; }
	[[ $before != *$(status_of alpha pid)* ]]
	[[ $before != *$(status_of beta pid)* ]]
	[ "$(status_of alpha restarts)" = 0 ]
	run_split "$BERTH" restart -f "$fleet" alhpa
	[ "$status" -eq 2 ]
	[[ $errors == *"did you mean 'alpha'"* ]]
}

@test "a restart that fails says why, and the other replica goes on" {
	mkdir "$scratch/models"
	cp "$models/$weights" "$scratch/models/"
	models=$scratch/models
	write_fleet
	bring_up
	head -c 100000 "$models/$weights" >"$scratch/cut"
	mv "$scratch/cut" "$models/$weights"
	run_split "$BERTH" restart -f "$fleet" alpha
	[ "$status" -eq 1 ]
	[[ $errors == *"service 'alpha': the engine ended while loading"* ]]
	is_state alpha failed
	is_state beta ready
	ask "What is a slot?" | jq -e '.choices[0].message.content'
	cp "$PWD/assets/tiny/$weights" "$models/$weights"
	"$BERTH" restart -f "$fleet" alpha
	is_state alpha ready
}

@test "the router is killed: it comes back, and no engine was touched" {
	write_fleet
	bring_up
	before="$(status_of alpha pid) $(status_of beta pid)"
	router_pid=$("$BERTH" status --json -f "$fleet" | jq .router.pid)
	talk() { # talk MESSAGES: who answers, and why
		curl -sS -o "$scratch/answer" -D - --max-time 60 "$router/v1/chat/completions" -H 'Content-Type: application/json' \
			-d "{\"model\":\"tiny\",\"temperature\":0,\"max_tokens\":8,\"messages\":[$1]}" | tr -d '\r' | grep -iE '^x-berth-(replica|decision)'
	}
	home=$(talk '{"role":"user","content":"one"}' | grep -i replica)
	wait_for 20 test -s "$BERTH_STATE/fleets/$name/router.index"
	[ "$(stat -c %a "$BERTH_STATE/fleets/$name/router.index")" = 600 ]
	kill -9 "$router_pid"
	# Asked at once: the connection waits in the backlog.
	ask "What is a slot?" | jq -e '.choices[0].message.content'
	"$BERTH" status --json -f "$fleet" | jq -e '.router.restarts == 1 and .router.state == "up"'
	[ "$(status_of alpha pid) $(status_of beta pid)" = "$before" ]
	# What it knew of conversations is not lost.
	said=$(jq -c '.choices[0].message' "$scratch/answer")
	next=$(talk "{\"role\":\"user\",\"content\":\"one\"},$said,{\"role\":\"user\",\"content\":\"two\"}")
	[[ $next == *"$home"* && ${next,,} == *"decision: affine"* ]]
	"$BERTH" logs berth -f "$fleet" | grep -q 'level=warn subject="router" msg="the router ended (killed by SIGKILL)'
}

@test "logs: the last lines, following over a log that is moved away" {
	write_fleet
	bring_up
	run_split "$BERTH" logs -f "$fleet" alpha
	[ "$status" -eq 0 ]
	[ "$(grep -c '' <<<"$output")" -le 100 ]
	run_split "$BERTH" logs -n 3 -f "$fleet" alpha
	[ "$(grep -c '' <<<"$output")" -eq 3 ]
	run_split "$BERTH" logs -n 100000 -f "$fleet" alpha
	[[ $output == "berth: "*" start 1 ("*"): "*"llama-server"*"--port $port_a"* ]]
	"$BERTH" logs -F -n 1 -f "$fleet" alpha >"$scratch/followed" 2>"$scratch/follow-errors" 3>&- &
	follower=$!
	leftovers+=("$follower")
	wait_for 5 test -s "$scratch/followed"
	log=$BERTH_STATE/fleets/$name/logs/alpha.log
	echo "before the cut" >>"$log"
	wait_for 5 grep -q "before the cut" "$scratch/followed"
	: >"$log"
	wait_for 5 test ! -s "$log"
	sleep 0.3 # one look of the follower at the empty file
	echo "after the cut" >>"$log"
	wait_for 5 grep -q "after the cut" "$scratch/followed"
	mv "$log" "$log.1"
	echo "last of the old" >>"$log.1"
	echo "first of the new" >"$log"
	wait_for 5 grep -q "first of the new" "$scratch/followed"
	grep -q "last of the old" "$scratch/followed"
	kill -INT "$follower"
	wait "$follower"
	[ ! -s "$scratch/follow-errors" ]
	run_split "$BERTH" logs -f "$fleet" alpah
	[ "$status" -eq 2 ]
	[[ $errors == *"did you mean 'alpha'"* ]]
}

# Starts `berth up` in the foreground; its pid in $up.
up_in_foreground() {
	"$BERTH" up -f "$fleet" >"$scratch/up.out" 2>"$scratch/up.err" 3>&- &
	up=$!
	leftovers+=("$up")
	wait_for 60 grep -q '^stop ' "$scratch/up.out"
}

# ended_within SECONDS: berth ends by then; its exit code in $status.
ended_within() {
	wait_for "$1" is_gone_or_zombie "$up"
	wait "$up" && status=0 || status=$?
}

@test "Ctrl-C in the foreground ends everything with 0" {
	write_fleet
	up_in_foreground
	grep -q "stop       Ctrl-C" "$scratch/up.out"
	kill -INT "$up"
	ended_within 10
	[ "$status" -eq 0 ]
	[ -z "$(engines)" ]
}

# complete TOKENS STREAM: so many tokens, past every end-of-text.
complete() {
	curl -sS --max-time 120 "$router/completion" -H 'Content-Type: application/json' -d "{\"model\":\"tiny\",\"prompt\":\"a\",\"n_predict\":$1,\"ignore_eos\":true,\"stream\":$2}"
}

# busy N: so many engines work on a request.
busy() {
	[ "$(curl -s "http://127.0.0.1:$port_a/slots" "http://127.0.0.1:$port_b/slots" | grep -o '"is_processing":true' | wc -l)" -eq "$1" ]
}

@test "TERM while a request is under way: it is answered, then everything ends" {
	endless=1
	write_fleet
	up_in_foreground
	complete 4000 false >"$scratch/answer" 3>&- &
	asked=$!
	wait_for 10 busy 1
	kill -TERM "$up"
	ended_within 30
	[ "$status" -eq 0 ]
	wait "$asked"
	jq -e '.tokens_predicted == 4000' "$scratch/answer"
	[ -z "$(engines)" ]
}

@test "TERM twice while requests do not end, streaming or not: everything ends soon" {
	endless=1
	write_fleet
	up_in_foreground
	complete 1000000 true >"$scratch/stream" 2>&1 3>&- &
	complete 1000000 false >"$scratch/plain" 2>&1 3>&- &
	wait_for 20 busy 2
	kill -TERM "$up"
	wait_for 5 grep -q "once more to hurry" "$scratch/up.err"
	sleep 0.3 # requests under way are being waited for
	kill -0 "$up"
	kill -TERM "$up"
	ended_within 10
	[ "$status" -eq 0 ]
	[ -z "$(engines)" ]
	wait
}

@test "an engine that hangs: TERM does not wait for it for ever" {
	write_fleet
	up_in_foreground
	stuck=$(status_of alpha pid)
	kill -STOP "$stuck"
	kill -TERM "$up"
	wait_for 5 grep -q "once more to hurry" "$scratch/up.err" # two signals at once are one
	kill -TERM "$up"
	ended_within 15
	[ "$status" -eq 0 ]
	[ -z "$(engines)" ]
}

@test "layers for a card that is not there: the engine is up, and berth says that it did not do it" {
	write_fleet
	sed -i 's/threads: 1/threads: 1, gpu-layers: 99/' "$fleet"
	run_split "$BERTH" up -d -f "$fleet"
	[ "$status" -eq 1 ]
	[[ $errors == *"did not do what was asked for"* ]] || { echo "$errors"; false; }
	[ -z "$(engines)" ]
}

@test "the router's log is bounded: what is over is kept once, and it goes on" {
	write_fleet
	bring_up
	log=$BERTH_STATE/fleets/$name/logs/router.log
	[ -f "$log" ]
	truncate -s 33M "$log"
	trimmed() { [ "$(stat -c %s "$log")" -lt 1000000 ]; }
	wait_for 10 trimmed
	[ "$(stat -c %s "$log.1")" -ge 33000000 ]
	ask "What is a slot?" >/dev/null
	wait_for 5 grep -q replica "$log"
}
