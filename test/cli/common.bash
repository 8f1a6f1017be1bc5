# shellcheck shell=bash
# SPDX-License-Identifier: MIT
#
# Shared by the command-line tests: the program under test, and a state folder of its own for each test.

# shellcheck source=test/aids/ports.bash
source "${BASH_SOURCE[0]%/*}/../aids/ports.bash"
# shellcheck source=test/aids/wait.bash
source "${BASH_SOURCE[0]%/*}/../aids/wait.bash"

# No question waits for ever.
curl() { command curl --max-time 30 "$@"; }

setup() {
	BERTH=${BERTH:-$PWD/build/berth}
	scratch=$(mktemp -d)
	export BERTH_STATE=$scratch/state BERTH_RUN=$scratch/run NO_COLOR=1
	unset XDG_RUNTIME_DIR
}

teardown() {
	rm -rf "$scratch"
}

# Runs a command with stdout in $output and stderr in $errors.
run_split() {
	output=$("$@" 2>"$scratch/stderr") && status=0 || status=$?
	errors=$(cat "$scratch/stderr")
}

