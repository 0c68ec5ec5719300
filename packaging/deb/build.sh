#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# build.sh PROGRAM DIR: package the program and files of this tree into DIR, and print the package's
# name. `make deb` calls it. The same commit gives the same bytes: SOURCE_DATE_EPOCH, or else the
# commit, dates the files. VERSION overrides the version; COMPRESS=none is quick.
set -euo pipefail
program=$1 out=$2
top=$(cd "$(dirname "$0")/../.." && pwd)
cd "$top"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)} TZ=UTC LC_ALL=C
release=$(sed -nE 's/^const release = "(.*)"$/\1/p' internal/api/version.go)
version=${VERSION:-$release~$(date -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M%S).$(git rev-parse --short=12 HEAD)}
arch=$(dpkg --print-architecture)
umask 022
root=$(mktemp -d)
chmod 755 "$root"
trap 'rm -rf "$root"' EXIT

put() { install -D -m "$1" "$2" "$root/$3"; }
put 755 "$program" usr/sbin/shunt
for unit in packaging/*.service; do put 644 "$unit" "usr/lib/systemd/system/${unit##*/}"; done
for page in docs/*.md README.md SECURITY.md; do put 644 "$page" "usr/share/doc/shunt/${page##*/}"; done
put 644 packaging/prometheus/shunt.rules.yml usr/share/shunt/prometheus/shunt.rules.yml
put 644 packaging/grafana/shunt.json usr/share/shunt/grafana/shunt.json
put 644 packaging/deb/copyright usr/share/doc/shunt/copyright
gzip -9n <CHANGELOG.md >"$root/usr/share/doc/shunt/changelog.gz"
go run ./packaging/gen "$root"

mkdir "$root/DEBIAN"
for script in postinst prerm postrm; do put 755 "packaging/deb/$script" "DEBIAN/$script"; done
(cd "$root" && find etc -type f -printf '/%p\n' | sort) >"$root/DEBIAN/conffiles"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
sed -e "s/@VERSION@/$version/" -e "s/@ARCH@/$arch/" \
	-e "s/@SIZE@/$(du -sk --apparent-size --exclude=DEBIAN "$root" | cut -f1)/" packaging/deb/control >"$root/DEBIAN/control"
find "$root" -newermt "@$SOURCE_DATE_EPOCH" -print0 | xargs -0r touch --no-dereference --date="@$SOURCE_DATE_EPOCH"

mkdir -p "$out"
deb=$out/shunt_${version}_$arch.deb
dpkg-deb --root-owner-group -Z"${COMPRESS:-xz}" --threads-max=1 --build "$root" "$deb" >/dev/null
echo "$deb"
