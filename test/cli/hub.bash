# shellcheck shell=bash
# SPDX-License-Identifier: MIT
#
# Shared by the tests of transfers: a hub of our own with one repository, org/model, and a fleet with one model of it.

# shellcheck source=test/cli/common.bash
source "${BASH_SOURCE[0]%/*}/common.bash"

setup() {
	BERTH=${BERTH:-$PWD/build/berth}
	FAKE_HUB=${BERTH%/*}/aids/fake_hub
	scratch=$(mktemp -d)
	export BERTH_STATE=$scratch/state BERTH_RUN=$scratch/run NO_COLOR=1 HOME=$scratch/home
	unset XDG_RUNTIME_DIR XDG_CACHE_HOME HF_TOKEN HF_TOKEN_PATH HF_HOME HF_HUB_CACHE HF_HUB_OFFLINE http_proxy https_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY all_proxy
	mkdir -p "$HOME" "$scratch/root/org/model"
	hub_pid=
}

teardown() {
	[ -z "$hub_pid" ] || stop_hub
	rm -rf "$scratch"
}

# start_hub [OPTIONS...]: HUB and CDN are its addresses. It ends with its standard input.
start_hub() {
	mkfifo "$scratch/in" "$scratch/out"
	"$FAKE_HUB" "$scratch/root" "$@" <"$scratch/in" >"$scratch/out" 3>&- &
	hub_pid=$!
	exec 8>"$scratch/in" 9<"$scratch/out"
	read -r hub_port cdn_port <&9
	export HF_ENDPOINT=http://127.0.0.1:$hub_port
	HUB=$HF_ENDPOINT CDN=http://127.0.0.2:$cdn_port
}

stop_hub() {
	exec 8>&- 9<&-
	wait "$hub_pid" || true
	hub_pid=
	rm -f "$scratch/in" "$scratch/out"
}

stat_of() { # NAME: what the hub counted
	curl -sf "$HUB/_stats" | awk -v n="$1" '$1 == n {print $2}'
}

fault() { # KIND [N]
	curl -sf "$HUB/_fault?kind=$1&n=${2:-1}" >/dev/null
}

make_file() { # NAME BYTES
	mkdir -p "$(dirname "$scratch/root/org/model/$1")"
	head -c "$2" /dev/urandom >"$scratch/root/org/model/$1"
}

# A model of one file, or of what is given.
fleet() { # [MODEL LINE]
	cat >"$scratch/fleet.yaml" <<-EOT
		version: 1
		name: pulls
		models:
		  m: ${1:-{source: "hf:org/model", weights: w.gguf\}}
	EOT
}

berth() { # COMMAND...: stdout in $output, stderr in $errors
	run_split "$BERTH" "$@" -f "$scratch/fleet.yaml"
}

# The file as it was fetched: at its commit when it is locked, else at its revision.
payload() { # NAME
	find "$BERTH_STATE/store/payloads" -path "*/$1" -type f | head -n 1
}

same() { # NAME
	cmp "$scratch/root/org/model/$1" "$(payload "$1")"
}

# Starts a pull and waits until the hub has sent so many bytes, or the pull has ended.
pull_until() { # BYTES
	"$BERTH" pull -f "$scratch/fleet.yaml" >"$scratch/log" 2>&1 3>&- 8>&- 9<&- &
	pull_pid=$!
	until [ "$(stat_of bytes)" -ge "$1" ] || ! kill -0 $pull_pid 2>/dev/null; do :; done
}
