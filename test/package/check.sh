# SPDX-License-Identifier: Apache-2.0
# The life of an installed shunt, in a clean Debian with systemd. /mnt has old.deb and new.deb,
# and in /mnt/parts the functions below to call after the start. Each line that begins
# with "ok" or "FAIL" is a check; /mnt/code is 0 if none failed.
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C
failed=0
check() { # check WHAT COMMAND...: the command succeeds
	local what=$1 out
	shift
	if out=$("$@" 2>&1); then echo "ok: $what"; else
		echo "FAIL: $what: $*: $out"
		journalctl --no-pager -q -n 20 -u shunt -u shunt-fastpath
		failed=1
	fi
}
refused() { ! "$@"; }
has() { grep -qF -- "$1" <<<"$2" || { echo "$2"; return 1; }; }
eventually() { # eventually SECONDS COMMAND...
	local end=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -lt $end ] || { "$@"; return 1; }
		sleep 0.1
	done
}
now() { cut -d' ' -f1 /proc/uptime; }
took() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f s", b - a }'; }
pid() { systemctl show -P MainPID shunt; }
armed() { shunt flows --json | grep -c '"state": "armed"' | grep -qx 2; }
repeated() { [ "$(hits)" -gt "$((${1:-0} + 20))" ]; }
hits() { shunt status --json | sed -nE 's/^  "hits": ([0-9]+),/\1/p'; }
links() { (cd /sys/fs/bpf/shunt/links && stat -c '%n %i' [1-9]*-*); } # 0-* are the daemon's own, at tracepoints
same() { [ "$1" = "$2" ] || { diff <(echo "$1") <(echo "$2"); return 1; }; }
journal() { grep -F -- "$1" <<<"$(journalctl --no-pager -q -u shunt)" >/dev/null; }
replaced() { local new; new=$(pid); [ "$new" -gt 0 ] && [ "$new" != "$old" ] && systemctl -q is-active shunt && shunt status --check; }
current() { [ "/proc/$(pid)/exe" -ef /usr/sbin/shunt ]; }
ended() { same inactive "$(systemctl is-active "$1")"; }
nothing() { # no pin, no state, no program on a port: "stop" finds none either
	! ls -d /sys/fs/bpf/shunt /run/shunt 2>/dev/null && ! ip -d link | grep xdp && /tmp/judge stop
}
conntrack_users() { cat /sys/module/nf_conntrack/refcnt; } # a program is one if it calls the module
inside() { nsenter -m -r -t "$(pid)" bash -c "$1"; } # the daemon's mounts
none() { ! find / -xdev \( -path /mnt -o -path /proc -o -path /tmp -o -path /var/log \) -prune -o -name '*shunt*' ! -name unshunt -print | grep .; } # bash-completion knows an unshunt

# A router: client - lan, wan - server, with conntrack, a drop policy and masquerade.
network() {
	ip netns add client && ip netns add server &&
		ip link add lan type veth peer name eth0 netns client && ip link add wan type veth peer name eth0 netns server &&
		ip addr add 198.18.0.1/24 dev lan && ip addr add 198.19.0.1/24 dev wan && ip link set lan up && ip link set wan up &&
		ip -n client addr add 198.18.0.2/24 dev eth0 && ip -n client link set eth0 up && ip -n client route add default via 198.18.0.1 &&
		ip -n server addr add 198.19.0.2/24 dev eth0 && ip -n server link set eth0 up &&
		sysctl -qw net.ipv4.ip_forward=1 && nft -f - <<-'RULES'
			table inet filter {
				chain forward { type filter hook forward priority 0; policy drop
					ct state established,related accept
					iifname lan accept
				}
			}
			table ip nat { chain out { type nat hook postrouting priority 100; oifname wan masquerade; }; }
		RULES
}
traffic() { ip netns exec client ping -n -i 0.05 -s 200 198.19.0.2 >/tmp/ping 2>&1 & ping=$!; }
unharmed() { # ends the traffic: every echo came back, unaltered and once
	kill -INT $ping; wait $ping
	local sent received
	read -r sent received < <(sed -nE 's/^([0-9]+) packets transmitted, ([0-9]+) received.*/\1 \2/p' /tmp/ping)
	echo "   $sent sent, $received received"
	# the last may be under way
	[ "$sent" -gt 20 ] && [ $((sent - received)) -le 1 ] && ! grep -E 'wrong data|DUP' /tmp/ping
}

echo "kernel $(uname -r), $(sed -nE 's/^PRETTY_NAME="(.*)"/\1/p' /etc/os-release), systemd $(systemctl --version | sed -nE '1s/^systemd ([0-9]+).*/\1/p')"
check "the router works without shunt" network
check "ping" ip netns exec client ping -c 1 -W 5 198.19.0.2

began=$(now)
check "install" apt-get -qq install -y --no-install-recommends /mnt/old.deb
check "installing starts nothing" refused systemctl -q is-active shunt
check "installing enables nothing" refused systemctl -q is-enabled shunt
out=$(shunt config check 2>&1); code=$?
check "without a port the configuration is refused" has "/etc/shunt/shunt.toml: no port" "$out"
check "by exit code 2" test $code = 2
check "and the unit fails" refused systemctl start shunt
check "once, not for ever" test "$(systemctl show -P NRestarts shunt)" = 0
check "and the other half ends" eventually 20 ended shunt-fastpath
systemctl reset-failed shunt
cp /usr/sbin/shunt /tmp/judge # outlives the package
check "and nothing is left" eventually 20 nothing

sed -i '0,/^#port = .*/s//port = ["lan", "wan"]/' /etc/shunt/shunt.toml
users=$(conntrack_users)
check "enable --now" systemctl enable --now shunt
echo "   from install to a running service: $(took "$began"), guest's time"
check "active" systemctl -q is-active shunt
check "with its other half" systemctl -q is-active shunt-fastpath
traffic
check "a flow is fast" eventually 20 repeated
check "on both ports" test "$(shunt ports --json | grep -cE '"state": "(tc|xdp\+tc)"')" = 2
check "and in both directions" eventually 10 armed
check "programs look conntrack up" test "$(conntrack_users)" -gt "$users"
check "unharmed by the start" unharmed
[ $failed = 0 ] || exit 1 # what follows would signal process 0

# What a user looks at, and the sandbox.
looks() {
	check "a thread is real-time" bash -c "ps -L -o cls= -p $(pid) | grep -q RR"
	check "the daemon keeps CAP_NET_ADMIN and CAP_BPF" grep -qx 'CapEff:	0000008000001000' "/proc/$(pid)/status"
	check "and warns of nothing" refused journal " WARN "
	local path
	for path in /etc/x /var/x /proc/sys/net/ipv4/ip_forward /sys/class/net/lan/ifalias; do
		check "it cannot write $path" refused inside "echo 1 >$path"
	done
	check "it can write /run/shunt" inside "echo 1 >/run/shunt/x && rm /run/shunt/x"
	check "it can pin" inside "mkdir /sys/fs/bpf/x && rmdir /sys/fs/bpf/x"
	check "every file is as packed" dpkg --verify shunt
	check "man shunt" man -w shunt
	check "man shunt.toml" man -w 5 shunt.toml
	check "man shunt-run, as text" bash -c 'man shunt-run | grep -q "Be the daemon\|in the foreground"'
	check "completion" bash -c '. /usr/share/bash-completion/bash_completion; _completion_loader shunt; COMP_WORDS=(shunt rel) COMP_CWORD=1 COMP_LINE="shunt rel" COMP_POINT=9 COMP_TYPE=9; __start_shunt; [ "${COMPREPLY[*]% *}" = reload ] || { declare -p COMPREPLY; exit 1; }'
	check "the units are sound" systemd-analyze verify --man=no shunt.service shunt-fastpath.service
	systemd-analyze security --no-pager shunt.service 2>/dev/null | tail -1
}

# A reload applies the file as a whole, or refuses it and changes nothing.
reload() {
	traffic
	sed -i 's/^#lease = .*/lease = "2s"/' /etc/shunt/shunt.toml
	check "reload" systemctl reload shunt
	check "applies the file" has '"/etc/shunt/shunt.toml:' "$(shunt config show --json | grep -A4 '"key": "lease"')"
	before=$(shunt config show; pid; links)
	sed -i 's/^lease = .*/lease = "9s"/; s/^#threshold = .*/threshold = 0/' /etc/shunt/shunt.toml
	check "reload with a bad file fails" refused systemctl reload shunt
	check "and the journal names the line" eventually 5 journal "threshold = 0: allowed is"
	check "and nothing changed" same "$before" "$(shunt config show; pid; links)"
	check "and the daemon lives" systemctl -q is-active shunt
	sed -i 's/^lease = .*/lease = "2s"/; s/^threshold = .*/#threshold = 10/' /etc/shunt/shunt.toml
	check "reload with the mended file" systemctl reload shunt
	check "unharmed by reloads" unharmed
}

# systemd restarts a daemon that dies, and the fast path stays. SIGABRT ends a program of Go as a
# panic does.
crash() {
	local signal
	for signal in KILL ABRT; do
		traffic
		old=$(pid) before=$(links)
		began=$(now)
		kill -$signal "$old"
		check "after SIG$signal it is back" eventually 20 replaced
		echo "   $(took "$began"), guest's time"
		check "with the same programs attached" same "$before" "$(links)"
		base=$(hits)
		check "flows go on" eventually 20 repeated "$base"
		check "unharmed by SIG$signal" unharmed
	done
	check "the fast path was never taken away" same 0active "$(systemctl show -P NRestarts shunt-fastpath)$(systemctl is-active shunt-fastpath)"
}

# A daemon that hangs sends no sign of life to the watchdog.
hang() {
	traffic
	old=$(pid) before=$(links)
	began=$(now)
	kill -STOP "$old"
	check "a daemon that hangs is started again" eventually 60 replaced
	echo "   $(took "$began"), guest's time"
	check "by the watchdog's signal" bash -c "journalctl --no-pager -q _PID=$old | grep -F 'SIGABRT: abort'"
	check "with the same programs attached" same "$before" "$(links)"
	check "unharmed by a hang" unharmed
}

upgrade() {
	traffic
	old=$(pid) before=$(links)
	check "restart" systemctl restart shunt
	check "starts another daemon" replaced
	check "with the same programs attached" same "$before" "$(links)"
	old=$(pid)
	check "upgrade" dpkg --install /mnt/new.deb
	check "has the new version" same 0.0.2~test "$(dpkg-query -W -f '${Version}' shunt)"
	check "keeps the configuration" grep -q '^port = \["lan", "wan"\]' /etc/shunt/shunt.toml
	check "starts the new program" replaced
	check "of the new file" current
	check "with the same programs attached" same "$before" "$(links)"
	check "the service stays enabled" systemctl -q is-enabled shunt
	base=$(hits)
	check "flows go on" eventually 20 repeated "$base"
	check "unharmed by restart and upgrade" unharmed
}

stop() {
	traffic
	check "stop" systemctl stop shunt
	check "takes the fast path away" eventually 20 nothing
	check "start again" systemctl start shunt
	check "a flow is fast again" eventually 20 repeated
	check "shunt stop" shunt stop
	check "ends the unit" eventually 20 ended shunt
	check "and its other half" eventually 20 ended shunt-fastpath
	check "and neither failed" refused systemctl -q is-failed shunt shunt-fastpath
	check "and nothing is left" nothing
	check "start a third time" systemctl start shunt
	check "stop and start at once" bash -c "systemctl stop shunt && systemctl start shunt"
	check "a flow is fast again" eventually 20 repeated
	check "systemctl stop and shunt stop at once" bash -c "systemctl stop shunt && shunt stop"
	check "end the other half" eventually 20 ended shunt-fastpath
	check "and neither failed" refused systemctl -q is-failed shunt shunt-fastpath
	check "and nothing is left" nothing
	check "start a fourth time" systemctl start shunt
	check "kill" systemctl kill --signal=TERM shunt
	check "ends the unit" eventually 20 ended shunt
	check "and takes the fast path away" eventually 20 nothing
	check "and neither failed" refused systemctl -q is-failed shunt shunt-fastpath
	check "start a fifth time" systemctl start shunt
	sed -i 's/^port = /#&/' /etc/shunt/shunt.toml
	check "restart without a port fails" refused systemctl restart shunt
	check "and takes the fast path away" eventually 20 nothing
	sed -i 's/^#\(port = \["lan", "wan"\]\)/\1/' /etc/shunt/shunt.toml
	systemctl reset-failed shunt
	check "unharmed by stops" unharmed
}

remove() {
	traffic
	check "start once more" systemctl start shunt
	check "a flow is fast" eventually 20 repeated
	check "remove" dpkg --remove shunt
	check "ends the unit" ended shunt
	check "leaves nothing in force" nothing
	check "keeps the configuration" test -e /etc/shunt/shunt.toml
	check "unharmed by removal" unharmed
	check "purge" dpkg --purge shunt
	check "leaves no file" none
	check "leaves no unit" refused systemctl -q is-enabled shunt
	check "the router works without shunt" ip netns exec client ping -c 1 -W 5 198.19.0.2
}

for part in $(cat /mnt/parts); do $part; done
echo $failed >/mnt/code
