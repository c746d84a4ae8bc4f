// SPDX-License-Identifier: Apache-2.0

package shard

// #include "shard/shard.h"
import "C"

import "unsafe"

// Format is a format that checkpoints are read from.
type Format int32

// The formats.
const (
	FormatCheckpoint  Format = C.SHARD_FORMAT_CHECKPOINT
	FormatSafetensors Format = C.SHARD_FORMAT_SAFETENSORS
)

// Role is the purpose of a tensor.
type Role int32

// The roles.
const (
	RoleParam  Role = C.SHARD_ROLE_PARAM
	RoleBuffer Role = C.SHARD_ROLE_BUFFER
	RoleState  Role = C.SHARD_ROLE_STATE
)

// Checkpoint is named tensors in files: a checkpoint, a safetensors file, or
// several with an index. It does not change: any goroutine. Tensors, files,
// groups, scalars and blobs are numbered from 0.
type Checkpoint struct {
	h *handle
}

// CheckpointOpen opens a checkpoint or safetensors; the path is as in
// CheckpointLoad. Local.
func CheckpointOpen(path string) (*Checkpoint, error) {
	if err := checkLibrary(); err != nil {
		return nil, err
	}
	var in arguments
	defer in.free()
	var object *C.shard_checkpoint
	if err := in.result(takeError(C.shard_checkpoint_open(in.text("path", path), &object))); err != nil {
		return nil, err
	}
	return &Checkpoint{newHandle("checkpoint", nil, unsafe.Pointer(object), func() {
		C.shard_checkpoint_free(object)
	})}, nil
}

func (c *Checkpoint) do(call func(checkpoint *C.shard_checkpoint) *C.shard_error) error {
	return c.h.shared(func(object unsafe.Pointer) error {
		return takeError(call((*C.shard_checkpoint)(object)))
	})
}

// text calls a function that gives text of the checkpoint's own. Names of files
// may be no UTF-8: the string has their bytes.
func (c *Checkpoint) text(call func(checkpoint *C.shard_checkpoint, text **C.char) *C.shard_error) (string, error) {
	var copied string
	err := c.h.shared(func(object unsafe.Pointer) error {
		var text *C.char
		err := takeError(call((*C.shard_checkpoint)(object), &text))
		copied = C.GoString(text)
		return err
	})
	return copied, err
}

// CheckpointInfo is the format, the step and the counts of a checkpoint.
type CheckpointInfo struct {
	Format      Format
	Version     int   // The format's; 0: it has none.
	Step        int64 // -1: it has none.
	WorldSize   int   // The ranks that saved it; 0: unknown.
	NumFiles    int
	NumTensors  int64
	NumGroups   int
	NumScalars  int
	NumBlobs    int
	TensorBytes uint64 // All tensors, aliases not counted.
	FileBytes   uint64
	IDLow       uint64 // The identity of its contents; 0: it has none.
	IDHigh      uint64
}

// Info gets the format, the step and the counts.
func (c *Checkpoint) Info() (CheckpointInfo, error) {
	info := C.shard_checkpoint_info{struct_size: C.sizeof_shard_checkpoint_info}
	err := c.do(func(checkpoint *C.shard_checkpoint) *C.shard_error {
		return C.shard_checkpoint_get_info(checkpoint, &info)
	})
	if err != nil {
		return CheckpointInfo{}, err
	}
	return CheckpointInfo{
		Format:      Format(info.format),
		Version:     int(info.version),
		Step:        int64(info.step),
		WorldSize:   int(info.world_size),
		NumFiles:    int(info.num_files),
		NumTensors:  int64(info.num_tensors),
		NumGroups:   int(info.num_groups),
		NumScalars:  int(info.num_scalars),
		NumBlobs:    int(info.num_blobs),
		TensorBytes: uint64(info.tensor_bytes),
		FileBytes:   uint64(info.file_bytes),
		IDLow:       uint64(info.id_low),
		IDHigh:      uint64(info.id_high),
	}, nil
}

// Path gets the folder or file that was opened.
func (c *Checkpoint) Path() (string, error) {
	return c.text(func(checkpoint *C.shard_checkpoint, text **C.char) *C.shard_error {
		return C.shard_checkpoint_path(checkpoint, text)
	})
}

// TensorInfo is a tensor's type and shape.
type TensorInfo struct {
	DType     DType
	Role      Role
	AliasOf   int64 // The tensor that this one names again; -1: none.
	Numel     int64
	Bytes     uint64
	Shape     []int64
	Trainable bool    // Parameters only.
	Group     GroupID // Its param group; -1: none.
	NumSlices int
	Step      int64 // Steps that the parameter has done; -1: unknown.
}

func tensorInfo(info *C.shard_tensor_info) TensorInfo {
	return TensorInfo{
		DType:     DType(info.dtype),
		Role:      Role(info.role),
		AliasOf:   int64(info.alias_of),
		Numel:     int64(info.numel),
		Bytes:     uint64(info.bytes),
		Shape:     shapeOf(&info.shape, info.ndim),
		Trainable: info.trainable != 0,
		Group:     GroupID(info.group),
		NumSlices: int(info.num_slices),
		Step:      int64(info.step),
	}
}

// Tensor gets a tensor's type and shape.
func (c *Checkpoint) Tensor(tensor int64) (TensorInfo, error) {
	info := C.shard_tensor_info{struct_size: C.sizeof_shard_tensor_info}
	err := c.do(func(checkpoint *C.shard_checkpoint) *C.shard_error {
		return C.shard_checkpoint_tensor(checkpoint, C.int64_t(tensor), &info)
	})
	if err != nil {
		return TensorInfo{}, err
	}
	return tensorInfo(&info), nil
}

// TensorKey gets a tensor's key.
func (c *Checkpoint) TensorKey(tensor int64) (string, error) {
	return c.text(func(checkpoint *C.shard_checkpoint, text **C.char) *C.shard_error {
		return C.shard_checkpoint_tensor_key(checkpoint, C.int64_t(tensor), text)
	})
}

// TensorType gets the name of a tensor's element type, which for Opaque is the
// name in the file.
func (c *Checkpoint) TensorType(tensor int64) (string, error) {
	return c.text(func(checkpoint *C.shard_checkpoint, text **C.char) *C.shard_error {
		return C.shard_checkpoint_tensor_type(checkpoint, C.int64_t(tensor), text)
	})
}

// Find finds the tensor of a key.
func (c *Checkpoint) Find(key string) (int64, error) {
	var in arguments
	defer in.free()
	var tensor C.int64_t
	text := in.text("key", key)
	err := in.result(c.do(func(checkpoint *C.shard_checkpoint) *C.shard_error {
		return C.shard_checkpoint_find(checkpoint, text, &tensor)
	}))
	return int64(tensor), err
}

// TensorSlice is a part of a tensor's elements, at their place in a file.
type TensorSlice struct {
	Begin        int64 // First element.
	Numel        int64
	Offset       uint64 // In the file.
	Bytes        uint64
	File         int
	HasChecksum  bool
	ChecksumLow  uint64 // XXH3-128.
	ChecksumHigh uint64
}

// Slice gets a slice of a tensor; slices are ordered by their first element.
func (c *Checkpoint) Slice(tensor int64, index int) (TensorSlice, error) {
	var in arguments
	slice := C.shard_tensor_slice{struct_size: C.sizeof_shard_tensor_slice}
	at := in.int32("index", index)
	err := in.result(c.do(func(checkpoint *C.shard_checkpoint) *C.shard_error {
		return C.shard_checkpoint_slice(checkpoint, C.int64_t(tensor), at, &slice)
	}))
	if err != nil {
		return TensorSlice{}, err
	}
	return TensorSlice{
		Begin:        int64(slice.begin),
		Numel:        int64(slice.numel),
		Offset:       uint64(slice.offset),
		Bytes:        uint64(slice.bytes),
		File:         int(slice.file),
		HasChecksum:  slice.has_checksum != 0,
		ChecksumLow:  uint64(slice.checksum_low),
		ChecksumHigh: uint64(slice.checksum_high),
	}, nil
}

// File gets a data file's name and size.
func (c *Checkpoint) File(file int) (name string, bytes uint64, err error) {
	var in arguments
	var size C.uint64_t
	number := in.int32("file", file)
	name, err = c.text(func(checkpoint *C.shard_checkpoint, text **C.char) *C.shard_error {
		return C.shard_checkpoint_file(checkpoint, number, text, &size)
	})
	return name, uint64(size), in.result(err)
}

// Group gets the optimizer of a param group with all values.
func (c *Checkpoint) Group(group GroupID) (string, error) {
	return c.text(func(checkpoint *C.shard_checkpoint, text **C.char) *C.shard_error {
		return C.shard_checkpoint_group(checkpoint, C.int32_t(group), text)
	})
}

// Scalar gets a number and its name, such as "loss_scale.scale".
func (c *Checkpoint) Scalar(scalar int) (name string, value float64, err error) {
	var in arguments
	var got C.double
	number := in.int32("scalar", scalar)
	name, err = c.text(func(checkpoint *C.shard_checkpoint, text **C.char) *C.shard_error {
		return C.shard_checkpoint_scalar(checkpoint, number, text, &got)
	})
	return name, float64(got), in.result(err)
}

// BlobInfo is a blob's name, its rule and the rank that saved it.
type BlobInfo struct {
	Name string
	Rule BlobRule
	Rank int
}

// BlobInfo gets a blob's name, its rule and the rank that saved it.
func (c *Checkpoint) BlobInfo(blob int) (BlobInfo, error) {
	var in arguments
	var rule C.shard_blob_rule
	var rank C.int32_t
	number := in.int32("blob", blob)
	name, err := c.text(func(checkpoint *C.shard_checkpoint, text **C.char) *C.shard_error {
		return C.shard_checkpoint_blob_info(checkpoint, number, text, &rule, &rank)
	})
	if err = in.result(err); err != nil {
		return BlobInfo{}, err
	}
	return BlobInfo{name, BlobRule(rule), int(rank)}, nil
}

// Blob reads a blob.
func (c *Checkpoint) Blob(blob int) (data []byte, err error) {
	var in arguments
	number := in.int32("blob", blob)
	err = c.h.shared(func(object unsafe.Pointer) error {
		data, err = readBytes(func(buffer unsafe.Pointer, capacity C.size_t, length *C.size_t) error {
			return takeError(C.shard_checkpoint_blob((*C.shard_checkpoint)(object), number, buffer, capacity, length))
		})
		return err
	})
	return data, in.result(err)
}

// Read reads elements of a tensor, in the type that they are stored in, into
// buffer, which has their size: Bytes(values). It compares checksums where there
// are some. Of Opaque, begin and numel count bytes.
func (c *Checkpoint) Read(tensor, begin, numel int64, buffer []byte) error {
	return c.do(func(checkpoint *C.shard_checkpoint) *C.shard_error {
		first := nonEmpty(buffer)
		return C.shard_checkpoint_read(checkpoint, C.int64_t(tensor), C.int64_t(begin), C.int64_t(numel),
			unsafe.Pointer(&first[0]), C.size_t(len(buffer)))
	})
}

// Close closes the files, at once or when the last call on the checkpoint
// returns.
func (c *Checkpoint) Close() error { return c.h.close() }
