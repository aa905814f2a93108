#!/usr/bin/env bash
# A SLURM cluster of one node in a scratch directory, then a command inside it; everything stops at the end.
#
#   tests/slurm/single_node.sh DIRECTORY COMMAND [ARGUMENT ...]
#
# Needs root and Debian's packages: apt-get install --no-install-recommends slurm-wlm munge
set -euo pipefail
directory=$(mkdir -p "$1" && cd "$1" && pwd)
shift
for program in munged slurmctld slurmd sbatch; do
    command -v "$program" >/dev/null || { echo "$program is missing: apt-get install slurm-wlm munge" >&2; exit 77; }
done
[ "$(id -u)" = 0 ] || { echo "slurmd needs root" >&2; exit 77; }

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
host=$(hostname -s)
mkdir -p "$directory"/{state,spool,munge}
chmod 700 "$directory/munge"
dd if=/dev/urandom of="$directory/munge/key" bs=1024 count=1 status=none
chmod 400 "$directory/munge/key"

cat >"$directory/slurm.conf" <<CONF
ClusterName=onenode
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$directory/munge/socket
CredType=cred/munge
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
StateSaveLocation=$directory/state
SlurmdSpoolDir=$directory/spool
SlurmctldPidFile=$directory/slurmctld.pid
SlurmdPidFile=$directory/slurmd.pid
SlurmctldLogFile=$directory/slurmctld.log
SlurmdLogFile=$directory/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=10
SchedulerParameters=sched_interval=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$directory/slurm.conf

pids=()
stop() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
}
trap stop EXIT
munged --foreground --force --key-file="$directory/munge/key" --socket="$directory/munge/socket" \
    --pid-file="$directory/munge/pid" --log-file="$directory/munge/log" --seed-file="$directory/munge/seed" &
pids+=($!)
for _ in $(seq 50); do [ -S "$directory/munge/socket" ] && break; sleep 0.1; done
slurmctld -D -f "$SLURM_CONF" >"$directory/slurmctld.out" 2>&1 &
pids+=($!)
slurmd -D -f "$SLURM_CONF" -N "$host" >"$directory/slurmd.out" 2>&1 &
pids+=($!)
for _ in $(seq 100); do
    sinfo --noheader --format=%T 2>/dev/null | grep -q idle && break
    sleep 0.3
done
sinfo --noheader --format=%T | grep -q idle || { tail -n 20 "$directory"/slurm*.log >&2; exit 1; }
"$@"
