#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# The guest's first process, in the initrd: finds the host's root, puts a layer for
# writing over it, and goes on there with guest.sh. What it says on the console after
# "vm: " becomes the host's error.
export PATH=/bin
/bin/busybox --install -s /bin

fail() {
	echo "vm: $*"
	poweroff -f
}

mount -t proc proc /proc && mount -t devtmpfs dev /dev || fail "no /proc or /dev"
for module in /modules/*.ko; do
	insmod "$module" || fail "insmod $module"
done
. /settings

# cache=loose: the host's files are taken as they are when the guest first looks.
over=trans=virtio,version=9p2000.L,msize=524288
mount -t 9p -o "$over,ro,cache=loose" host /lower || fail "the host's root cannot be mounted"
mount -t tmpfs -o size=75% upper /upper && mkdir /upper/data /upper/work || fail "no room for writing"
mount -t overlay -o lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work overlay /root ||
	fail "no overlay over the host's root"

mkdir -p "/root$share_dir" /root/lib/modules
[ -z "$share" ] || mount -t 9p -o "$over" share "/root$share_dir" || fail "the share cannot be mounted"
mount -o bind "/lower$modules_dir" /root/lib/modules || fail "the guest does not see $modules_dir"

for dir in proc sys dev run; do
	mkdir -p "/root/$dir"
done
mount -t tmpfs -o mode=755 run /root/run && mkdir /root/run/vm /root/run/netns /root/run/lock
cp /settings /guest.sh /root/run/vm/ || fail "no /run"
exec switch_root /root /bin/sh /run/vm/guest.sh </dev/console >/dev/console 2>&1
