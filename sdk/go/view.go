// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"sync/atomic"
	"unsafe"
)

// lifetime is a generation of memory: it ends once, with the reason, and all that
// is within it ends too.
type lifetime struct {
	within *lifetime // May be nil.
	reason atomic.Pointer[string]
}

func newLifetime(within *lifetime) *lifetime { return &lifetime{within: within} }

func (l *lifetime) end(reason string) { l.reason.CompareAndSwap(nil, &reason) }

// over returns why the lifetime has ended, or "".
func (l *lifetime) over() string {
	for ; l != nil; l = l.within {
		if reason := l.reason.Load(); reason != nil {
			return *reason
		}
	}
	return ""
}

// View is a tensor in the library's memory: a parameter, a gradient, a buffer, or
// a part of one. It knows what ends the validity of the memory, such as the
// release of a unit, a change of the plan, or Close, and its methods return an
// error from then on. A slice that was taken from it before is not checked: to
// use it then reads or writes memory that may be another tensor's, or no memory.
//
// A View keeps its object from being closed by the garbage collector. Its slices
// do not: close the object after the last use of them.
//
// The program cannot use the memory of a GPU: a View of it has an address,
// Pointer, and no slices.
type View struct {
	owner any // The object that has the memory.
	life  *lifetime
	data  unsafe.Pointer
	numel int64
	dtype DType
	place place
}

// place is the device that has tensors. The zero place is the host's memory.
type place struct {
	kind    DeviceKind
	ordinal int
}

// Element is a Go type of elements.
type Element interface {
	float32 | float64 | int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64
}

// holds returns whether elements of dtype can be looked at as T: as numbers of
// that type, or as the bits of one that Go does not have.
func holds[T Element](dtype DType) bool {
	var zero T
	switch any(zero).(type) {
	case float32:
		return dtype == F32
	case float64:
		return dtype == F64
	case int8:
		return dtype == I8
	case int16:
		return dtype == I16
	case int32:
		return dtype == I32
	case int64:
		return dtype == I64
	case uint8:
		return dtype.Size() == 1 && dtype != I8
	case uint16:
		return dtype == BF16 || dtype == F16 || dtype == U16
	case uint32:
		return dtype == U32
	case uint64:
		return dtype == U64
	}
	return false
}

// Elements returns the elements of a view as a slice of the library's memory.
// bf16 and f16 are looked at as uint16, the types of one byte as uint8. Another
// type than the view's is an error, and so is a view that is no longer valid, or
// of a GPU's memory.
func Elements[T Element](v View) ([]T, error) {
	if err := v.readable(); err != nil {
		return nil, err
	}
	if !holds[T](v.dtype) {
		var zero T
		return nil, newError(InvalidArgument, "a view of %s cannot be looked at as %T; allowed: the type of Go "+
			"that has its bits, or Bytes", v.dtype, zero)
	}
	return unsafe.Slice((*T)(v.data), int(v.numel)), nil
}

// Float32s is Elements[float32].
func (v View) Float32s() ([]float32, error) { return Elements[float32](v) }

// Bytes returns the bytes of the elements, of any type.
func (v View) Bytes() ([]byte, error) {
	if err := v.readable(); err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(v.data), int(v.numel)*v.dtype.Size()), nil
}

// Err returns an error when the view is no longer valid, or is none.
func (v View) Err() error {
	if v.life == nil {
		return newError(FailedPrecondition, "there is no tensor in this view; a frozen parameter has "+
			"no gradient, and an alias no elements")
	}
	if reason := v.life.over(); reason != "" {
		return newError(FailedPrecondition, "this view is no longer valid: %s; get another one", reason)
	}
	return nil
}

// readable returns an error unless the program can use the elements.
func (v View) readable() error {
	if err := v.Err(); err != nil {
		return err
	}
	if kind, ordinal := v.Device(); kind != DeviceCPU {
		return newError(FailedPrecondition, "the elements of this view are in the memory of GPU %d, which the "+
			"program cannot use; take their address by Pointer, or their values by Summon or StateDictGet "+
			"with Copy", ordinal)
	}
	return nil
}

// Pointer returns the address of the first element, in the memory of the View's
// device: for kernels and copies of the program. It is as valid as a slice. An
// error is that of Err.
func (v View) Pointer() (unsafe.Pointer, error) {
	if err := v.Err(); err != nil {
		return nil, err
	}
	return v.data, nil
}

// Device returns where the elements are, as Engine.Device does.
func (v View) Device() (DeviceKind, int) {
	if v.place.kind == 0 {
		return DeviceCPU, 0
	}
	return v.place.kind, v.place.ordinal
}

// Numel returns the number of elements.
func (v View) Numel() int64 { return v.numel }

// DType returns the type of the elements.
func (v View) DType() DType { return v.dtype }

// Bytes returns the memory of a slice as bytes, for functions that take tensors
// of any type.
func Bytes[T Element](values []T) []byte {
	if len(values) == 0 {
		return nil
	}
	var zero T
	return unsafe.Slice((*byte)(unsafe.Pointer(&values[0])), len(values)*int(unsafe.Sizeof(zero)))
}
