// SPDX-License-Identifier: Apache-2.0

module libshard/shard

go 1.19
