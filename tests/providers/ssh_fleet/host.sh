#!/bin/bash
# One host of a fleet, in namespaces of its own: its container store, its /run, its sshd. $1 is its directory.
set -e
H=$1
# Also /root: its ~/.bashrc, which every command would read, is of the machine that the tests run on.
for part in run dev/shm root; do mount -t tmpfs tmpfs "/$part"; done
mkdir -p /run/sshd "$H"/{bin,containers,cni,networks,srv}
cp -n /etc/cni/net.d/* "$H/networks"
mount --bind "$H/containers" /var/lib/containers
mount --bind "$H/cni" /var/lib/cni
mount --bind "$H/networks" /etc/cni/net.d
mount --bind "$H/srv" /srv
mount --bind "$H/etc" /etc/containers
hostname "$(basename "$H")"
if [ -n "$HOST_IMAGE" ] && [ ! -e "$H/loaded" ]; then
  podman load --quiet --input "$HOST_IMAGE" >/dev/null
  touch "$H/loaded"
fi
mount --bind "$H/bin" /usr/local/sbin
exec /usr/sbin/sshd -D -e -f "$H/sshd_config"
