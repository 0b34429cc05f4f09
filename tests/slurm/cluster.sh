#!/usr/bin/env bash
# A real Slurm cluster of virtual nodes on this one machine, for the tests.
#
#   cluster.sh install          Slurm's packages and shellcheck from Debian (needs root; their services do not start)
#   cluster.sh up | down        start (again: does nothing) | stop and remove
#   cluster.sh env              what a shell must export to be a client: eval "$(cluster.sh env)"
#   cluster.sh kill-node n2     power failure: everything on the node dies at once
#   cluster.sh start-node n2    bring it back
#   cluster.sh reap             remove the clusters of owners that are gone, if their guards are gone too
#
# Each node has its own network, host name, process ids, IPC and /dev/shm; files are shared, as on a cluster with a shared file
# system. All state lies under ROOT; outside it there are only a bridge and network namespaces named after the cluster's index.
#
# Settings (environment):
#   ROOT=/tmp/slime-hpc-cluster.$UID   state of this cluster; must start with /tmp/slime-hpc-cluster. for `reap` to find it
#   OWNER=                             pid of a process whose end, even by SIGKILL, ends the cluster; empty: none
#   NODES=4 CPUS=64 MEM=65536 GPUS=8   of a node, as declared to Slurm; the GPUs are null devices
set -euo pipefail

ROOT=${ROOT:-/tmp/slime-hpc-cluster.$UID} OWNER=${OWNER:-}
NODES=${NODES:-4} CPUS=${CPUS:-64} MEM=${MEM:-65536} GPUS=${GPUS:-8}
PACKAGES=(slurmctld slurmd slurm-client munge iproute2)
PATH=$PATH:/usr/sbin:/sbin
export SLURM_CONF=$ROOT/slurm.conf

say() { echo "cluster.sh: $*" >&2; }
alive() { [ -s "$1" ] && kill -0 "$(cat "$1")" 2>/dev/null; }

stop() { # PIDFILE [SECONDS]: TERM, then KILL
  if alive "$1"; then
    local pid; pid=$(cat "$1"); kill "$pid" 2>/dev/null || true
    for _ in $(seq $((${2:-5} * 20))); do kill -0 "$pid" 2>/dev/null || break; sleep .05; done
    kill -9 "$pid" 2>/dev/null || true
  fi
  rm -f "$1"
}

index() { cat "$ROOT/index"; }
names() { seq -f 'n%g' "$NODES"; }
address() { echo "10.99.$(index).$((10 + ${1#n}))"; }
namespace() { echo "slime-hpc-$(index)-$1"; }

missing_packages() { # [MORE...]
  local package
  for package in "${PACKAGES[@]}" "$@"; do dpkg -s "$package" >/dev/null 2>&1 || echo "$package"; done
}

require_packages() { # [MORE...]
  local missing; missing=$(missing_packages "$@" | xargs)
  [ -z "$missing" ] && return 0
  say "the tests start a Slurm cluster and check scripts, and these Debian packages are missing: $missing"
  say "as root: apt-get install --no-install-recommends $missing"
  return 1
}

install_packages() {
  local missing; mapfile -t missing < <(missing_packages shellcheck)
  [ ${#missing[@]} = 0 ] && return 0
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then require_packages shellcheck; fi
  # The packages' own services are of no use here: keep them from starting.
  local policy=/usr/sbin/policy-rc.d made=
  [ -e $policy ] || { made=$policy; printf '#!/bin/sh\nexit 101\n' > $policy; chmod +x $policy; }
  # shellcheck disable=SC2064
  trap "rm -f $made" EXIT
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
}

# The first free subnet 10.99.INDEX.0/24: making the bridge is what takes it, so two clusters cannot get the same.
take_index() {
  local i
  for i in $(seq 1 250); do
    if ip link add "slimehpc$i" type bridge 2>/dev/null; then
      echo "$i" > "$ROOT/index"
      ip addr add "10.99.$i.1/24" dev "slimehpc$i"; ip link set "slimehpc$i" up
      return 0
    fi
  done
  say "cannot make a network bridge: this needs root and network namespaces (CAP_NET_ADMIN, CAP_SYS_ADMIN)"; return 1
}

configure() {
  local base=$((17000 + 10 * $(index))) name i
  mkdir -p "$ROOT"/{state,log,pid,dev,spool,munge}; chmod 755 "$ROOT" "$ROOT/munge"
  (umask 077; head -c 128 /dev/urandom > "$ROOT/munge/munge.key")
  for i in $(seq 0 $((GPUS - 1))); do mknod -m 666 "$ROOT/dev/gpu$i" c 1 3; done
  echo "Name=gpu File=$ROOT/dev/gpu[0-$((GPUS - 1))]" > "$ROOT/gres.conf"
  { cat /etc/hosts; for name in $(names); do echo "$(address "$name") $name"; done; } > "$ROOT/hosts"
  # No name server is reachable from a node: fail at once.
  printf 'nameserver 127.0.0.1\noptions timeout:1 attempts:1\n' > "$ROOT/resolv.conf"
  # cred_expire is also how long a requeued job waits; config_overrides lets a node declare more than this machine has.
  cat > "$ROOT/slurm.conf" <<CONF
ClusterName=slimehpc$(index)
SlurmctldHost=$(hostname -s)(10.99.$(index).1)
SlurmctldPort=$base
SlurmdPort=$((base + 1))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$ROOT/munge/munge.sock,cred_expire=10
CredType=cred/munge
StateSaveLocation=$ROOT/state
SlurmdSpoolDir=$ROOT/spool/%n
SlurmctldPidFile=$ROOT/pid/slurmctld.pid
SlurmdPidFile=$ROOT/spool/%n.pid
SlurmctldLogFile=$ROOT/log/slurmctld.log
SlurmdLogFile=$ROOT/log/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=512
GresTypes=gpu
SlurmdParameters=config_overrides
SlurmdTimeout=10
KillWait=20
UnkillableStepTimeout=15
InactiveLimit=0
MinJobAge=3600
CompleteWait=0
ReturnToService=2
JobRequeue=1
MessageTimeout=30
TCPTimeout=5
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
CONF
  for name in $(names); do
    echo "NodeName=$name NodeHostname=$name NodeAddr=$(address "$name") CPUs=$CPUS Boards=1 SocketsPerBoard=1" \
      "CoresPerSocket=$CPUS ThreadsPerCore=1 RealMemory=$MEM Gres=gpu:$GPUS State=UNKNOWN" >> "$ROOT/slurm.conf"
  done
  echo "PartitionName=gpu Nodes=ALL Default=YES MaxTime=1-00:00:00 State=UP" >> "$ROOT/slurm.conf"
}

start_network() { # NODE
  local space; space=$(namespace "$1")
  [ -e "/run/netns/$space" ] && return 0
  ip netns add "$space"
  ip link add "shpc$(index)-${1#n}" type veth peer name eth0 netns "$space"
  ip link set "shpc$(index)-${1#n}" master "slimehpc$(index)" up
  ip -n "$space" link set lo up
  ip -n "$space" addr add "$(address "$1")/24" dev eth0
  ip -n "$space" link set eth0 up
  ip -n "$space" route add default via "10.99.$(index).1"
}

start_node() { # NODE
  local name=$1 outer init
  alive "$ROOT/pid/$name.pid" && return 0
  start_network "$name"
  mkdir -p "$ROOT/spool/$name"
  # The shell is the node's init: it reaps, and SIGKILL to it ends all that runs on the node.
  # nsenter, not `ip netns exec`: that mounts a /sys without cgroups, and slurmd refuses to start.
  setsid nsenter --net="/run/netns/$(namespace "$name")" unshare --uts --ipc --pid --mount --fork -- sh -c '
    hostname "$1"; mount -t proc proc /proc; mount -t tmpfs tmpfs /dev/shm
    mount --bind "$2/hosts" /etc/hosts; mount --bind "$2/resolv.conf" "$(readlink -f /etc/resolv.conf)"
    slurmd -D -N "$1" & trap "kill $!" TERM; wait $!; wait $!' node "$name" "$ROOT" \
    </dev/null >"$ROOT/log/$name.out" 2>&1 &
  outer=$!
  for _ in $(seq 250); do
    init=$(pgrep -P $outer -x sh || true)
    [ -n "$init" ] && { echo "$init" > "$ROOT/pid/$name.pid"; return 0; }
    sleep .02
  done
  say "node $name did not start:"; cat "$ROOT/log/$name.out" >&2; return 1
}

# Power failure: the end of its init ends all that runs in the node's process namespace.
kill_node() { kill -9 "$(cat "$ROOT/pid/$1.pid")"; rm -f "$ROOT/pid/$1.pid"; }

up() {
  if ! alive "$ROOT/pid/slurmctld.pid"; then
    down
    mkdir -p "$ROOT"; echo "$OWNER" > "$ROOT/owner"
    if [ -n "$OWNER" ]; then setsid "$0" guard </dev/null >/dev/null 2>&1 & fi
    take_index; configure
    # --force: /tmp is world-writable. Its own socket, beside a munged of the machine.
    munged --force --key-file="$ROOT/munge/munge.key" --socket="$ROOT/munge/munge.sock" --pid-file="$ROOT/pid/munged.pid" \
      --log-file="$ROOT/log/munged.log" --seed-file="$ROOT/munge/munged.seed" 2>>"$ROOT/log/munged.err"
    slurmctld </dev/null >/dev/null 2>&1
  fi
  local name
  for name in $(names); do start_node "$name"; done
  for _ in $(seq 200); do
    [ "$(timeout 5 sinfo -h -N -o '%t' 2>/dev/null | grep -cxE 'idle|alloc|mix|comp')" = "$NODES" ] && return 0
    sleep .1
  done
  say "the cluster is not ready:"; tail -n 5 "$ROOT"/log/* >&2; return 1
}

down() {
  [ -d "$ROOT" ] || return 0
  local name
  if [ -e "$ROOT/index" ]; then
    stop "$ROOT/pid/slurmctld.pid" 10
    for name in $(names); do
      if alive "$ROOT/pid/$name.pid"; then kill_node "$name"; fi
      ip netns del "$(namespace "$name")" 2>/dev/null || true
    done
    stop "$ROOT/pid/munged.pid"
    ip link del "slimehpc$(index)" 2>/dev/null || true
  fi
  rm -rf "$ROOT"
}

# Waits for the owner's end, then removes the cluster, unless another has taken its place.
guard() {
  tail --pid="$OWNER" -f /dev/null
  if [ "$(cat "$ROOT/owner" 2>/dev/null)" = "$OWNER" ]; then down; fi
}

reap() {
  local folder owner
  for folder in /tmp/slime-hpc-cluster.*; do
    [ -e "$folder/owner" ] || continue
    owner=$(cat "$folder/owner")
    if [ -n "$owner" ] && ! kill -0 "$owner" 2>/dev/null; then ROOT=$folder "$0" down || say "$folder stays"; fi
  done
}

case ${1:-} in
  install) install_packages ;;
  up) require_packages; up ;;
  down) down ;;
  env) echo "export SLURM_CONF=$ROOT/slurm.conf" ;;
  kill-node) kill_node "$2" ;;
  start-node) start_node "$2" ;;
  reap) reap ;;
  guard) guard ;; # started by `up`
  *) sed -n '2,20p' "$0" >&2; exit 2 ;;
esac
