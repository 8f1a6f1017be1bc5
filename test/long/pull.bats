#!/usr/bin/env bats
# SPDX-License-Identifier: MIT
#
# A transfer of real size over a bad line. LONG_RUNS (3) is how often; the scratch folder is in memory when there is room.

load ../cli/hub

bytes_of_part=536870912

setup_file() {
	# the set twice, and something to spare
	if [ "$(df -k --output=avail /dev/shm | tail -n 1)" -gt $((3 * 2097152)) ]; then export TMPDIR=/dev/shm; fi
}

@test "2 GiB in four parts with a fault every 64 MiB (reset, stall, corruption, expiry, 429) end proven, every time" {
	for i in 1 2 3 4; do make_file "m-0000$i-of-00004.gguf" $((bytes_of_part + i)); done
	fleet '{source: "hf:org/model", weights: m-00001-of-00004.gguf}'
	start_hub --every 67108864 reset,stall,corrupt,expire,429
	berth lock
	for run in $(seq "${LONG_RUNS:-3}"); do
		rm -rf "$BERTH_STATE"
		curl -sf "$HUB/_zero"
		start=$SECONDS
		berth pull --stall 1
		echo "# run $run: exit $status, $(stat_of faults) faults, $(($(stat_of bytes) / 1048576)) MiB sent, $((SECONDS - start)) s, $(grep -c 'digest is' <<<"$errors") rounds of second copies" >&3
		[ "$status" -eq 0 ] || { echo "$errors"; false; }
		for i in 1 2 3 4; do same "m-0000$i-of-00004.gguf"; done
		[ "$(stat_of faults)" -ge 25 ]
	done
}
