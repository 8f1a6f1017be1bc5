# shellcheck shell=bash
# SPDX-License-Identifier: MIT
#
# shellcheck disable=SC2154 # scratch is common.bash's
#
# Shared by the tests of a fleet that lives: a fleet `life` of fake engines in the background, and streams that run across what is done to it.

router="{listen: '127.0.0.1:0'}"
aids=$(cd "$(dirname "${BERTH:-build/berth}")/aids" && pwd)

# ports N: N free ports, in ${port[@]}.
ports() {
	read -ra port < <(free_ports "$1")
}

# write_fleet SERVICE... [endpoints: ...]
write_fleet() {
	local part
	fleet=$scratch/fleet.yaml
	printf 'version: 1\nname: life\nruntimes: {sys: {engine: generic, source: system}}\nrouter: %s\n' "$router" >"$fleet.new"
	echo services: >>"$fleet.new"
	for part in "$@"; do
		case $part in endpoints:*) printf '%s\n' "$part" >>"$fleet.new" ;; *) printf '  %s\n' "$part" >>"$fleet.new" ;; esac
	done
	mv "$fleet.new" "$fleet"
}

pair() { # NAME: $scratch/NAME.pem and NAME.key
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "/CN=$1" -addext subjectAltName=IP:127.0.0.1 \
		-keyout "$scratch/$1.key" -out "$scratch/$1.pem" 2>/dev/null
	chmod 600 "$scratch/$1.key"
}

bring_up() {
	"$BERTH" up -d -f "$fleet" >"$scratch/up" 2>&1 3>&- || { cat "$scratch/up"; return 1; }
	up_pid=$(status_of .pid)
	url=$(status_of .router.url)
}

status_of() { # JQ
	"$BERTH" status --json -f "$fleet" | jq -r "$1"
}

# Waits, at most 10 s, until the status says so.
wait_status() { # JQ VALUE
	local got
	for _ in $(seq 200); do
		got=$(status_of "$1")
		[ "$got" != "$2" ] || return 0
		sleep 0.05
	done
	echo "$1 is $got, not $2"
	return 1
}

# Begins a stream in the background; it has begun when this returns.
stream() { # MODEL [CURL OPTION...]
	local model=$1
	shift
	: >"$scratch/stream"
	curl -sSN "$@" "$url/v1/chat/completions" -d "{\"model\":\"$model\",\"stream\":true}" >"$scratch/stream" 2>"$scratch/stream.err" 3>&- &
	stream_pid=$!
	for _ in $(seq 200); do
		! grep -q 'content' "$scratch/stream" || return 0
		sleep 0.02
	done
	cat "$scratch/stream" "$scratch/stream.err"
	return 1
}

# The stream ran all this time and is whole.
streamed() { # EVENTS
	kill -0 "$stream_pid" # what was done was done while it ran
	wait "$stream_pid" || { cat "$scratch/stream.err"; return 1; }
	[ "$(grep -c '"content"' "$scratch/stream")" = "$1" ]
	[ "$(tail -2 "$scratch/stream" | head -1)" = "data: [DONE]" ]
}

end_life() {
	[ -z "${stream_pid:-}" ] || kill "$stream_pid" 2>/dev/null || true
	[ -z "${up_pid:-}" ] || { kill -TERM "$up_pid" && sleep 0.2 && kill -TERM "$up_pid"; } 2>/dev/null || true
	for _ in $(seq 200); do
		[ -n "${up_pid:-}" ] && kill -0 "$up_pid" 2>/dev/null || return 0
		sleep 0.05
	done
	kill -KILL "$up_pid" || true
}
