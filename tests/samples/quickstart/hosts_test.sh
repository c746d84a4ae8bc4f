#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: hosts_test PROGRAM
#
# Tests the quickstart, PROGRAM, as users of several hosts run it: by shardctl,
# with real agents and network helpers, on hosts that are all this machine. It
# ends with the bits of one host, also after a restart, and a rank of an earlier
# start does not meet those of a later one.

set -euo pipefail

export LD_LIBRARY_PATH="$PWD/api${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export SHARD_NETWORK_HELPER="$PWD/sdk/network/shard-network"
shardctl="$PWD/sdk/cli/shardctl"
program="$PWD/$1"
unset SHARD_TOKEN

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# on_hosts HOSTS OPTION... -- COMMAND...: the agents inherit the environment.
on_hosts() {
  local hosts="$1"
  shift
  "$shardctl" run --hosts "$hosts" --master 127.0.0.1 \
    --via 'env VIA_HOST={host}' --timeout 60 "$@"
}

# same A B: expects two checkpoints with the same bits.
same() {
  "$shardctl" diff "$1" "$2" || fail "$1 and $2 differ"
}

cd "$TEST_TMPDIR"

# Equal numbers of ranks, and unequal ones.
"$shardctl" run -n 3 -- "$program" one 100
for hosts in a:1,b:2 a:2,b:1 a,b,c; do
  on_hosts "$hosts" -- "$program" "on-$hosts" 100 >printed ||
    fail "on $hosts: exit code $?"
  cat printed
  grep -q '^\[a:0\] step 100: loss ' printed || fail "no line of rank 0"
  same one "on-$hosts"
done

# The first start saves a checkpoint at step 100, goes on, and is in the middle of
# something when rank 1 is killed. The second start goes on from step 100.
"$shardctl" run -n 2 -- "$program" whole 200 >/dev/null
cat >killed.sh <<'END'
program="$1"
[ "$SHARD_RESTART_COUNT" = 1 ] && exec "$program" killed 200
"$program" killed 100 || exit
[ "$SHARD_RANK" = 0 ] && exec stdbuf -oL "$program" killed 1000000
"$program" killed 1000000 &
until grep -q ' step 300: ' printed; do :; done
kill -KILL $!
wait $!
END
on_hosts a,b --restarts 2 -- sh killed.sh "$program" >printed 2>said ||
  fail "after a restart: exit code $?, $(<said)"
cat said
grep -q '^shardctl: restart 1 of 2$' said || fail "no restart"
grep -q '^shardctl: restart 2' said && fail "two restarts"
[[ "$(grep -c ' step 100: ' printed)" == 1 ]] ||
  fail "the second start began again: $(<printed)"
same whole killed

# A rank of the first start comes when those of the second one meet, which they
# do once it is gone.
cat >late.sh <<'END'
case "$SHARD_RESTART_COUNT$SHARD_RANK" in
  00) exec sleep 1000 ;;
  01)
    setsid sh -c ': >late.started
      until [ -e second ]; do :; done
      "$@" >late.printed 2>&1
      echo $? >late.new
      mv late.new late.code' sh "$@" >/dev/null 2>&1 &
    until [ -e late.started ]; do :; done
    exit 3
    ;;
  10) : >second ;;
  11) until [ -e late.code ]; do :; done ;;
esac
exec "$@"
END
on_hosts a,b --restarts 1 -- sh late.sh "$program" late 100 >printed 2>said ||
  fail "with a late rank: exit code $?, $(<said)"
cat late.printed
[[ "$(<late.code)" != 0 ]] || fail "the late rank met somebody"
grep -q restart late.printed || fail "the late rank is not told why"
"$shardctl" run -n 2 -- "$program" two 100 >/dev/null
same two late

# Without a launcher, by a folder that the hosts share.
mkdir meeting
for rank in 0 1; do
  host="$(tr 01 ab <<<"$rank")"
  SHARD_RANK="$rank" SHARD_WORLD_SIZE=2 SHARD_LOCAL_WORLD_SIZE=1 \
    SHARD_RENDEZVOUS="file:$PWD/meeting?address=127.0.0.1&host=$host" \
    timeout 60 "$program" by-folder 100 &
  ranks[rank]=$!
done
for rank in 0 1; do
  wait "${ranks[rank]}" || fail "rank $rank by a folder: exit code $?"
done
same two by-folder
[[ -z "$(ls meeting)" ]] || fail "left in the folder: $(ls meeting)"
