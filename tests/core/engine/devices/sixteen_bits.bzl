# SPDX-License-Identifier: Apache-2.0
"""Tests of 16-bit sums, which several devices leave out."""

# Tests of 16-bit gradients that are left out where ranks share no memory: those of
# several ranks whose plan neither is deterministic nor has f32_grads.
SUMS_OF_16_BITS = {
    "*EnginePrecisionTest.*16_%s%s_W%d" % (masters, clipped, ranks): "sums of 16 bits are rounded between ranks"
    for masters in ["masters", "nearest"]
    for clipped in ["", "_clipped"]
    for ranks in [2, 3]
}
