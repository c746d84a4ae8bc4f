// SPDX-License-Identifier: Apache-2.0

package shard

// #include "shard/shard.h"
import "C"

// DType is the type of a tensor's elements. Parameters are F32, BF16 or F16, and
// frozen ones F64 too; the other types are in buffers and files.
type DType int32

// The types of elements.
const (
	F32    DType = C.SHARD_F32
	BF16   DType = C.SHARD_BF16
	F16    DType = C.SHARD_F16
	F64    DType = C.SHARD_F64
	Q8     DType = C.SHARD_Q8
	F8E4M3 DType = C.SHARD_F8_E4M3
	F8E5M2 DType = C.SHARD_F8_E5M2
	I8     DType = C.SHARD_I8
	I16    DType = C.SHARD_I16
	I32    DType = C.SHARD_I32
	I64    DType = C.SHARD_I64
	U8     DType = C.SHARD_U8
	U16    DType = C.SHARD_U16
	U32    DType = C.SHARD_U32
	U64    DType = C.SHARD_U64
	Bool   DType = C.SHARD_BOOL
	Opaque DType = C.SHARD_OPAQUE
)

// MaxDims is the most dimensions that a tensor of a model has.
const MaxDims = C.SHARD_MAX_DIMS

// String returns the name of the type, such as "bf16".
func (d DType) String() string { return C.GoString(C.shard_dtype_name(C.shard_dtype(d))) }

// Size returns the bytes of an element: 0 for Opaque and for a value that is no
// type.
func (d DType) Size() int { return int(C.shard_dtype_size(C.shard_dtype(d))) }
