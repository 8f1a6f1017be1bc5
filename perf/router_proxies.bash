# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: MIT
#
# Part of perf/router: nginx, haproxy and berth in front of the same backend.

# Each proxy gets what who runs it for its speed would give it: one worker on a core of its own, kept connections on both sides, no copy of an answer to disk, and a line of log for each request as
# berth writes it: nginx in pieces of 32 KiB, haproxy into a mapped ring, which costs it least.

nginx_conf() { # nginx_conf NAME SERVER-BLOCK [LOG]
	mkdir -p "$scratch/$1"
	cat >"$scratch/$1/conf" <<-EOT
		daemon off; worker_processes 1; pid $scratch/$1/pid; error_log stderr crit;
		events { worker_connections 4000; }
		http { access_log ${3:-off}; keepalive_requests 10000000; client_body_temp_path $scratch/$1; proxy_temp_path $scratch/$1; fastcgi_temp_path $scratch/$1;
		uwsgi_temp_path $scratch/$1; scgi_temp_path $scratch/$1; $2 }
	EOT
	echo "$scratch/$1/conf"
}

berth_before() { # berth_before BACKEND PORT [LOOPS]
	cat >"$scratch/berth$2.yaml" <<-EOT
		version: 1
		name: perf$2
		runtimes:
		  other: {engine: generic, source: system}
		services:
		  m: {runtime: other, port: $1, command: ["true"]}
		router: {listen: "127.0.0.1:$2", loops: ${3:-1}}
	EOT
	taskset -c $proxy_core "$berth" route -f "$scratch/berth$2.yaml" >"$scratch/berth$2.log" 2>>"$scratch/out" &
	pids+=($!)
}

declare -A worker # of each proxy: the process that serves

worker_of() { # worker_of PID
	local child
	child=$(pgrep -P "$1" | head -1)
	echo "${child:-$1}"
}

proxies() { # proxies BACKEND NGINX HAPROXY BERTH
	local conf
	conf=$(nginx_conf "nginx$2" "upstream b { server 127.0.0.1:$1; keepalive 64; keepalive_requests 10000000; } server { listen 127.0.0.1:$2; location / { proxy_pass http://b; proxy_http_version 1.1; proxy_set_header Connection \"\"; ${buffering:-} } }" "$scratch/nginx$2.log combined buffer=32k flush=1s")
	start $proxy_core nginx -e stderr -c "$conf"
	worker[nginx]=${pids[-1]}
	cat >"$scratch/haproxy$3" <<-EOT
		ring requests
		  format raw
		  maxlen 1200
		  size 1048576
		  backing-file $scratch/haproxy$3.log
		global
		  nbthread 1
		  maxconn 2000
		  log ring@requests local0
		defaults
		  mode http
		  log global
		  option httplog
		  timeout connect 5s
		  timeout client 60s
		  timeout server 60s
		  option http-no-delay
		  http-reuse always
		frontend f
		  bind 127.0.0.1:$3
		  default_backend b
		backend b
		  server s 127.0.0.1:$1
	EOT
	start $proxy_core haproxy -f "$scratch/haproxy$3"
	worker[haproxy]=${pids[-1]}
	berth_before "$1" "$4"
	worker[berth]=${pids[-1]}
	for p in "$2" "$3" "$4"; do listens "$p"; done
	for p in nginx haproxy berth; do worker[$p]=$(worker_of "${worker[$p]}"); done
}

cpu_ns() { # cpu_ns PID: time that its threads have had
	cat "/proc/$1/task"/*/schedstat | awk '{ n += $1 } END { printf "%.0f", n }'
}

requests() { # requests PORT PATH WORKER -> requests a second, median in us, CPU time of the worker for each in us
	local before=0 after=0 got
	[ -z "$3" ] || before=$(cpu_ns "$3")
	got=$(taskset -c "$other_core" wrk -t1 -c32 -d"${seconds}s" --latency "http://127.0.0.1:$1/$2")
	[ -z "$3" ] || after=$(cpu_ns "$3")
	awk -v ns="$((after - before))" '
		/requests in/ { n = $1 }
		/Requests\/sec/ { rate = $2 }
		/ 50%/ { us = $2 + 0; if ($2 ~ /ms$/) us *= 1000; else if ($2 !~ /us$/) us *= 1000000 }
		/Non-2xx/ { bad = 1 }
		END { print bad ? 0 : rate, us, n ? ns / n / 1000 : 0 }' <<<"$got"
}

median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

# One proxy after the other, forwards and backwards, and of each the median: what the machine does meanwhile strikes all alike.
measure() { # measure SIZE: fills rate, delay and cost
	local names=(direct relay nginx haproxy berth) order=() round name port seen=$scratch/seen
	rm -f "$seen".*
	for round in 1 2 3; do
		order=("${names[@]}")
		[ $round != 2 ] || order=(berth haproxy nginx relay direct)
		for name in "${order[@]}"; do
			port=p_$name
			[ "$name" != direct ] || port=p_back
			requests "${!port}" "$1" "${worker[$name]:-}" >>"$seen.$name"
		done
	done
	for name in "${names[@]}"; do
		rate[$1$name]=$(awk '{ print $1 }' "$seen.$name" | median)
		delay[$1$name]=$(awk '{ print $2 }' "$seen.$name" | median)
		cost[$1$name]=$(awk '{ print $3 }' "$seen.$name" | median)
		printf '%-10s %12s %12.0f %12.0f %12.2f\n' "$1" "$name" "${rate[$1$name]}" "${delay[$1$name]}" "${cost[$1$name]}"
	done
}

throughput() {
	mkdir -p "$scratch/www"
	head -c 2048 /dev/zero >"$scratch/www/2k"
	head -c 65536 /dev/zero >"$scratch/www/64k"
	head -c 1048576 /dev/zero >"$scratch/www/1024k"
	printf ok >"$scratch/www/health" # a backend without it is none
	start "$other_core" nginx -e stderr -c "$(nginx_conf back "sendfile on; server { listen 127.0.0.1:$p_back; root $scratch/www; open_file_cache max=10; }")"
	listens "$p_back"
	start "$proxy_core" "$relay" "$p_back" "$p_relay"
	worker[relay]=${pids[-1]}
	listens "$p_relay"
	proxies "$p_back" "$p_nginx" "$p_haproxy" "$p_berth"
	printf '%-10s %12s %12s %12s %12s\n' body proxy requests/s 'median us' 'CPU us each'
	local size
	declare -A rate delay cost
	for size in 2k 64k 1024k; do measure $size; done
	ratio() { awk -v a="${rate[$1]}" -v b="${rate[$2]}" 'BEGIN { printf "%.2f", (b > 0 ? a / b : 0) }'; }
	echo "2 KB: a relay that copies bytes unread, the least that a proxy can do: $(ratio 2krelay 2knginx) times nginx, $(ratio 2krelay 2khaproxy) times haproxy"
	promise "2 KB, times nginx" "$(ratio 2kberth 2knginx)" ">=" 1.0
	promise "2 KB, times haproxy" "$(ratio 2kberth 2khaproxy)" ">=" 1.7
	promise "2 KB, median over nginx's, us" "$(awk -v a="${delay[2kberth]}" -v b="${delay[2knginx]}" 'BEGIN { print a - b }')" "<=" 20
	promise "64 KB, times nginx" "$(ratio 64kberth 64knginx)" ">=" 1.0
	promise "64 KB, times haproxy" "$(ratio 64kberth 64khaproxy)" ">=" 1.0
	echo "1024 KB: $(ratio 1024kberth 1024knginx) times nginx, $(ratio 1024kberth 1024khaproxy) times haproxy"
}

# ---- streams ------------------------------------------------------------------------------------------------------

events() {
	start "$other_core" "$streams" serve "$p_events" 20000 100
	listens "$p_events"
	buffering="proxy_buffering off;" proxies "$p_events" "$p_nginx_e" "$p_haproxy_e" "$p_berth_e"
	printf '%-10s %10s %10s %10s %8s %8s %7s\n' '200 streams' 'median ms' '99 % ms' 'most ms' events reads broken
	local name port got
	declare -A median most
	for name in direct nginx haproxy berth; do
		port=p_${name}_e
		[ $name != direct ] || port=p_events
		read -ra got < <(taskset -c "$other_core" "$streams" watch "${!port}" 200)
		printf '%-11s %10s %10s %10s %8s %8s %7s\n' $name "${got[@]}"
		median[$name]=${got[0]} most[$name]=${got[2]}
		[ $name != berth ] || promise "events for each read, of 200 streams" "$(awk -v a="${got[3]}" -v b="${got[4]}" 'BEGIN { printf "%.2f", a / b }')" "<=" 1.1
	done
	promise "median delay added, ms" "$(awk -v a="${median[berth]}" -v b="${median[direct]}" 'BEGIN { printf "%.3f", a - b }')" "<=" 0.1
	promise "largest delay added, ms" "$(awk -v a="${most[berth]}" -v b="${most[direct]}" 'BEGIN { printf "%.3f", a - b }')" "<=" 2
}

# The same while bodies of 16 MiB come, directly and through berth; medians of three rounds.
bodies() {
	local kind round got way port sent sender
	start "$other_core" "$streams" serve "$p_big" 20000 100
	listens "$p_big"
	berth_before "$p_big" "$p_bigs"
	listens "$p_bigs"
	printf '%-20s %10s %10s %10s %8s\n' '200 streams beside' 'median ms' '99 % ms' 'most ms' bodies
	declare -A median most
	for kind in code picture; do
		for round in 1 2 3; do
			for way in direct berth; do
				port=$p_big
				[ $way = direct ] || port=$p_bigs
				taskset -c "$other_core" "$streams" send "$port" $kind 16 48 >"$scratch/sent" 2>>"$scratch/out" &
				sender=$!
				read -ra got < <(taskset -c "$other_core" "$streams" watch "$port" 200)
				kill $sender 2>/dev/null || promise "bodies of $kind that are taken, $way" 0 ">=" 1
				wait $sender 2>/dev/null || true
				sent=$(wc -l <"$scratch/sent")
				printf '%-20s %10s %10s %10s %8s\n' "$kind, $way" "${got[@]:0:3}" "$sent"
				echo "${got[0]}" >>"$scratch/median.$kind.$way"
				echo "${got[2]}" >>"$scratch/most.$kind.$way"
				[ "${got[5]}" = 0 ] || promise "streams beside $kind that break" "${got[5]}" "<=" 0
			done
		done
		for way in direct berth; do
			median[$way]=$(median <"$scratch/median.$kind.$way") most[$way]=$(median <"$scratch/most.$kind.$way")
		done
		promise "median delay added while bodies of $kind come, ms" "$(awk -v a="${median[berth]}" -v b="${median[direct]}" 'BEGIN { printf "%.3f", a - b }')" "<=" 0.2
		promise "largest delay added while bodies of $kind come, ms" "$(awk -v a="${most[berth]}" -v b="${most[direct]}" 'BEGIN { printf "%.3f", a - b }')" "<=" 2
	done
}

rss() { awk '/^VmRSS/ { print $2 }' "/proc/$1/status"; }
descriptors() { find "/proc/$1/fd" -mindepth 1 | wc -l; }

served_by() { # served_by PID: the process that serves, of a router
	local child
	for _ in $(seq 100); do
		child=$(pgrep -P "$1" | head -1)
		[ -z "$child" ] || break
		sleep 0.05
	done
	echo "${child:-$1}"
}

# Opens so many streams, or connections that ask nothing, and closes them: KiB that the router has while they are open in `held`, and once they are gone in `after`; descriptors in `line`.
flood() { # flood hold|idle PORT N WORKER BASE-KIB DESCRIPTORS
	coproc HOLD { taskset -c "$other_core" "$streams" "$1" "$2" "$3" 2>>"$scratch/out"; }
	line=
	read -r -t 120 line <&"${HOLD[0]}" || true
	[ "$line" = "open $3" ] || { promise "connections that open ($1), of $3" 0 ">=" "$3"; return 1; }
	held=$(rss "$4")
	line=$(descriptors "$4")
	eval "exec ${HOLD[1]}>&-"
	wait "$HOLD_PID" 2>/dev/null || true
	for _ in $(seq 100); do
		[ "$(descriptors "$4")" -gt "$6" ] || break
		sleep 0.1
	done
	# memory goes back at the router's next tick
	for _ in $(seq 30); do
		after=$(rss "$4")
		[ $((after - $5)) -gt 4096 ] || break
		sleep 0.1
	done
}

memory() {
	local n base before held after worker line each kind
	start "$other_core" "$streams" serve "$p_hold" 5000000 0
	listens "$p_hold"
	berth_before "$p_hold" "$p_held"
	listens "$p_held"
	worker=$(served_by "${pids[-1]}")
	base=$(rss "$worker") before=$(descriptors "$worker")
	printf '%-8s %10s %10s %10s %12s %12s\n' streams 'KiB each' 'rss KiB' 'after KiB' descriptors after
	for n in 1000 4000 8000; do
		flood hold "$p_held" "$n" "$worker" "$base" "$before" || return 0
		each=$(awk -v a="$held" -v b="$base" -v n="$n" 'BEGIN { printf "%.1f", (a - b) / n }')
		printf '%-8s %10s %10s %10s %12s %12s\n' "$n" "$each" "$held" "$after" "$line" "$(descriptors "$worker")"
		promise "KiB for each of $n streams" "$each" "<=" 30
		promise "descriptors more than before, after $n streams" "$(($(descriptors "$worker") - before))" "<=" 0
		promise "memory more than before, KiB, after $n streams" "$((after - base))" "<=" 4096
	done
	berth_before "$p_hold" "$p_held4" 4
	listens "$p_held4"
	worker=$(served_by "${pids[-1]}")
	base=$(rss "$worker") before=$(descriptors "$worker")
	for kind in hold idle hold idle; do
		flood $kind "$p_held4" 4500 "$worker" "$base" "$before" || return 0
		promise "memory more than before, KiB, 4 loops, after 4500 $([ $kind = hold ] && echo streams || echo connections without a request) ($held KiB)" "$((after - base))" "<=" 5120
	done
}
