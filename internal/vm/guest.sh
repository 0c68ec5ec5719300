# SPDX-License-Identifier: Apache-2.0
# The guest's first process, on the host's root under an overlay: completes the system,
# runs the command, tells its exit code and ends the guest. Its own words go to the console.
. /run/vm/settings

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /dev/net
mknod /dev/net/tun c 10 200 # opening it loads the module
mount -t devpts pts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t bpf bpf /sys/fs/bpf
mount -t debugfs debug /sys/kernel/debug
mount -t tracefs trace /sys/kernel/tracing
mount -t cgroup2 cgroup /sys/fs/cgroup
hostname vm
ip link set lo up
ulimit -n 65536
echo "$timer_slack" >/proc/$$/timerslack_ns # what is started from here inherits it

# The ports' numbers are given by the host, their device's is not. To the first goes what
# the command says: through a pipe, because a port can be opened but once.
for port in /dev/vport*p1; do output=$port; done
for port in /dev/vport*p2; do report=$port; done
exec 9>"$report"

end() {
	echo "$*" >&9
	echo o >/proc/sysrq-trigger
	while :; do sleep 60; done
}

if [ -n "$modules" ]; then
	words=$(modprobe -a $modules 2>&1) || end "error cannot load a module: $words"
fi
cd "$dir" || end "error the guest has no directory $dir"
mkfifo /run/vm/output
{
	cat /run/vm/output >"$output"
	: >/run/vm/silent
} 9>&- &
echo "started $(uname -r) $(cut -d' ' -f1 /proc/uptime)" >&9
setsid --wait "$@" </dev/null >/run/vm/output 2>&1 9>&-
code=$?

# What the command left behind may hold its output open: then what is on its way counts.
for tick in 1 2 3 4 5 6 7 8 9 10; do
	[ ! -e /run/vm/silent ] || break
	sleep 0.1
done
end "exit $code"
