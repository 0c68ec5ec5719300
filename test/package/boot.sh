#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# boot.sh ROOT: in the guest of internal/vm, boots the Debian root under a layer of memory, with
# systemd as the first process of namespaces of its own, and lets check.sh run there as a unit.
# Packages, check.sh and its log lie in the share.
set -eu
share=/mnt/share
mkdir /run/layer
mount -t tmpfs -o size=70% layer /run/layer
mkdir /run/layer/upper /run/layer/work /run/layer/root
mount -t overlay -o "lowerdir=$1,upperdir=/run/layer/upper,workdir=/run/layer/work" overlay /run/layer/root
cd /run/layer/root
mount --bind $share mnt
cp -L /etc/resolv.conf etc/ 2>/dev/null || :
cat >etc/systemd/system/check.service <<'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash /mnt/check.sh
ExecStopPost=/bin/systemctl poweroff --force --force
StandardOutput=append:/mnt/log
StandardError=append:/mnt/log
UNIT
# Each costs an emulated machine many seconds: caches that a first boot makes, and mandb's.
touch etc/.updated var/.updated
rm -f var/lib/man-db/auto-update
for unit in getty.target systemd-logind.service apt-daily.timer apt-daily-upgrade.timer man-db.timer e2scrub_all.timer fstrim.timer; do
	ln -sf /dev/null etc/systemd/system/$unit
done
mkdir -p etc/systemd/system/default.target.wants
ln -sf /etc/systemd/system/check.service etc/systemd/system/default.target.wants/
ln -sf /lib/systemd/system/multi-user.target etc/systemd/system/default.target
: >$share/log
tail -f $share/log &
unshare --mount --pid --fork --propagation private -- chroot . /lib/systemd/systemd --log-target=null || :
kill $!
[ "$(cat $share/code 2>/dev/null)" = 0 ]
