# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: MIT
#
# Part of perf/router: what real engines have in their caches. Two replicas with two slots each ("-c 65536 -np 2 -t 1") of the tiny model, which was trained for 1,024 tokens and is told that it was
# for more: what it says is of no use, what it reads and caches is as with any model.

engines() { # engines POLICY CACHE
	local service="runtime: llama, model: tiny, context: 65536, slots: 2, threads: 1, prompt-cache: $2, args: [\"--override-kv\", \"llama.context_length=int:65536\"]"
	cat >"$scratch/engines.yaml" <<-EOT
		version: 1
		name: perf-engines
		runtimes:
		  llama: {engine: llama.cpp, source: "debian:forky", packages: [llama.cpp-tools, llama.cpp-tools-extra, libggml0-backend-rpc]}
		models:
		  tiny: {source: "file:$PWD/assets/tiny", weights: berth-tiny-f16.gguf}
		services:
		  a: {port: $p_a, $service}
		  b: {port: $p_b, $service}
		endpoints:
		  m: {services: [a, b], policy: $1}
		router: {listen: "127.0.0.1:$p_router"}
	EOT
	"$berth" up -d -f "$scratch/engines.yaml" >>"$scratch/out" 2>&1 || { cat "$scratch/out" >&2; exit 1; }
}

engines_down() { "$berth" down -f "$scratch/engines.yaml" >>"$scratch/out" 2>&1; }

# The engine itself, below what confines it.
engine_pid() { pgrep -f -- "llama-server .*--port $1( |\$)" | tail -1; }

row() { # row POLICY CACHE HOW LOAD...; the numbers are in the array `got`
	read -ra got < <(python3 perf/router_load.py "$4" "127.0.0.1:$p_router" m "${@:5}" 2>>"$scratch/out")
	printf '%-11s %-6s %-7s %7s %6s%% %7s %8s %8s %6s %6s\n' "$1" "$2" "$3" "${got[@]}"
}

affinity() {
	printf '%-11s %-6s %-7s %7s %7s %7s %8s %8s %6s %6s\n' policy cache header tokens cached 'mean s' client answer load failed
	local cache policy header got name
	for cache in 64MiB off; do
		name="RAM cache $([ $cache = off ] && echo off || echo on)"
		for policy in roundrobin least hash sticky counter adaptive; do
			for header in none header; do
				[ "$header" = none ] || [ $policy = hash ] || [ $policy = adaptive ] || continue
				engines $policy $cache
				row $policy $cache $header turns "${header#none}"
				engines_down
				[ $policy = adaptive ] || continue
				promise "cached share, $name, header: $header, %" "${got[1]}" ">=" "$([ $cache = off ] && echo 78 || echo 80)"
				promise "longest client over the mean, $name, header: $header" "${got[3]}" "<=" 3
				promise "load of the busier replica over the mean, $name, header: $header" "${got[5]}" "<=" 1.3
			done
		done
		engines adaptive $cache
		row adversary $cache none adversary
		promise "one scaffold before everything, load over the mean, $name" "${got[5]}" "<=" 1.3
		engines_down
		for header in none header; do
			engines adaptive $cache
			row killed $cache $header turns "${header#none}" kill "$(engine_pid "$p_a")"
			promise "a replica killed at half time, failed requests, $name, header: $header" "${got[6]}" "<=" 0
			engines_down
		done
	done
}
