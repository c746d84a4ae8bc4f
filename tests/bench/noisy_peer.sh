#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A peer (tests/bench/peer.h) that prints more than the protocol, for
# peer_test.cc. Called as `noisy_peer.sh KIND RANK WORLD_SIZE FOLDER`. KIND is
# noisy, missing (not installed), or silent (ends without being ready).

echo "[INFO] Setting ds_accelerator to cpu (auto detect)"
echo "3 warnings"
case $1 in
  missing) exit 77 ;;
  silent) exit 0 ;;
esac
printf 'Loading extension module cpu_adam...'
echo "peer: ready"
while read -r variant; do
  echo "17 is no time, and ready is no answer: $variant"
  echo ready
  case $variant in
    step) printf 'Time: 0.1 seconds '; echo "peer: $2.5" ;;
    end) exit 0 ;;
    *) echo "peer: unavailable" ;;
  esac
done
