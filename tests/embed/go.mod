// SPDX-License-Identifier: Apache-2.0

module libshard/tests/embed

go 1.19

require libshard/shard v0.0.0

replace libshard/shard v0.0.0 => ../../sdk/go
