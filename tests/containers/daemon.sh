#!/usr/bin/env bash
# A Docker daemon of its own in a scratch directory, with an image that holds nothing but empty directories
# to mount this machine's into; then a command inside it. Everything stops at the end.
#
#   tests/containers/daemon.sh DIRECTORY COMMAND [ARGUMENT ...]
#
# Needs root and Debian's package: apt-get install --no-install-recommends docker.io
set -euo pipefail
directory=$(mkdir -p "$1" && cd "$1" && pwd)
shift
for program in dockerd docker; do
    command -v "$program" >/dev/null || { echo "$program is missing: apt-get install docker.io" >&2; exit 77; }
done
[ "$(id -u)" = 0 ] || { echo "dockerd needs root" >&2; exit 77; }

export DOCKER_HOST=unix://$directory/socket
dockerd --data-root "$directory/data" --exec-root "$directory/exec" --pidfile "$directory/pid" \
    --host "$DOCKER_HOST" --bridge=none --iptables=false --ip6tables=false --ip-forward=false \
    >"$directory/dockerd.log" 2>&1 &
daemon=$!
stop() {
    docker ps --all --quiet | xargs --no-run-if-empty docker rm --force >/dev/null || true
    kill "$daemon" 2>/dev/null || true
    wait "$daemon" 2>/dev/null || true
    umount "$directory"/exec/netns/* 2>/dev/null || true  # it would keep the directory from being removed
}
trap stop EXIT
for _ in $(seq 100); do docker version >/dev/null 2>&1 && break; sleep 0.3; done
docker version >/dev/null || { tail -n 20 "$directory/dockerd.log" >&2; exit 77; }

mkdir -p "$directory"/root/{proc,sys,dev,etc,usr,lib,lib64,bin,sbin,tmp}
chmod 1777 "$directory/root/tmp"
tar --create --directory "$directory/root" . | docker import - windowed-mtp-test:1 >/dev/null
"$@"
