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
# The time of its start, which is this machine's otherwise.
sed "s/^btime .*/btime $(date +%s)/" /proc/stat >/run/stat
mount --bind /run/stat /proc/stat
hostname "$(basename "$H")"
if [ "$HOST_ENGINE" = docker ]; then
  mkdir -p "$H/docker" /var/lib/docker
  mount --bind "$H/docker" /var/lib/docker
  dockerd --insecure-registry=10.0.0.0/8 >>"$H/dockerd.log" 2>&1 &
  until docker info >/dev/null 2>&1; do sleep 0.05; done
fi
if [ -n "$HOST_IMAGE" ] && [ ! -e "$H/loaded" ]; then
  "$HOST_ENGINE" load --quiet --input "$HOST_IMAGE" >/dev/null
  touch "$H/loaded"
fi
mount --bind "$H/bin" /usr/local/sbin
exec /usr/sbin/sshd -D -e -f "$H/sshd_config"
