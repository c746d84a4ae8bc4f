// SPDX-License-Identifier: Apache-2.0

package shard

// #include <stdlib.h>
// #include "shard/shard.h"
import "C"

import (
	"math"
	"strings"
	"time"
	"unsafe"
)

// arguments holds the C copies of the strings and arrays of one call, because C
// must not find Go pointers inside of structs, and the first argument that C
// cannot be given.
//
// A wrong argument is passed on all the same, in a form that the library refuses:
// in a collective call the library then tells the other ranks, which would wait
// for a rank that returned early.
type arguments struct {
	blocks []unsafe.Pointer
	wrong  error
}

func (a *arguments) free() {
	for _, block := range a.blocks {
		C.free(block)
	}
}

func (a *arguments) refuse(format string, values ...any) {
	if a.wrong == nil {
		a.wrong = newError(InvalidArgument, format, values...)
	}
}

// result returns the error of the call: the wrong argument, where there is one.
func (a *arguments) result(err error) error {
	if a.wrong != nil {
		return a.wrong
	}
	return err
}

// required returns an error for an object that is nil.
func required[T any](name string, object *T) error {
	if object == nil {
		return newError(InvalidArgument, "the %s is nil", name)
	}
	return nil
}

func (a *arguments) alloc(bytes int) unsafe.Pointer {
	block := C.malloc(C.size_t(bytes))
	a.blocks = append(a.blocks, block)
	return block
}

// text copies a string that the call requires. One with a NUL becomes NULL.
func (a *arguments) text(name, value string) *C.char {
	if at := strings.IndexByte(value, 0); at >= 0 {
		a.refuse("%s %q has a NUL at byte %d, where C would end it", name, value, at)
		return nil
	}
	copied := C.CString(value)
	a.blocks = append(a.blocks, unsafe.Pointer(copied))
	return copied
}

// option copies a string whose default is NULL. One with a NUL gets a character
// in its place that no option has.
func (a *arguments) option(name, value string) *C.char {
	if value == "" {
		return nil
	}
	if at := strings.IndexByte(value, 0); at >= 0 {
		a.refuse("%s %q has a NUL at byte %d, where C would end it", name, value, at)
		value = strings.ReplaceAll(value, "\x00", "\x01")
	}
	return a.text(name, value)
}

// int32s copies an array into C memory, for a field of a struct.
func (a *arguments) int32s(values []int32) *C.int32_t {
	if len(values) == 0 {
		return nil
	}
	copied := a.alloc(4 * len(values))
	copy(unsafe.Slice((*int32)(copied), len(values)), values)
	return (*C.int32_t)(copied)
}

// int32 returns the value, or the nearest that C has.
func (a *arguments) int32(name string, value int) C.int32_t {
	switch {
	case value > math.MaxInt32:
		a.refuse("%s %d is above %d", name, value, math.MaxInt32)
		return math.MaxInt32
	case value < math.MinInt32:
		a.refuse("%s %d is below %d", name, value, math.MinInt32)
		return math.MinInt32
	}
	return C.int32_t(value)
}

// flag returns 0 or 1.
func flag(value bool) C.int32_t {
	if value {
		return 1
	}
	return 0
}

// seconds returns a duration as the library takes it.
func seconds(d time.Duration) C.double { return C.double(d.Seconds()) }

// dims returns the first of a shape's dimensions, for an argument of a call.
func dims(shape []int64) *C.int64_t {
	if len(shape) == 0 {
		return nil
	}
	return (*C.int64_t)(unsafe.Pointer(&shape[0]))
}

// ids returns the first of the ids, for an argument of a call.
func ids[T ~int32](values []T) *C.int32_t {
	if len(values) == 0 {
		return nil
	}
	return (*C.int32_t)(unsafe.Pointer(&values[0]))
}

// nonEmpty returns data, or a slice that has a first byte. The calls take the
// address of this byte where they are made: cgo then looks for Go pointers in the
// slice only, and not in the object around it.
func nonEmpty(data []byte) []byte {
	if len(data) == 0 {
		return make([]byte, 1)
	}
	return data
}

// readBytes calls a function that copies bytes to a buffer of the host's, for
// their number and for the bytes.
func readBytes(read func(buffer unsafe.Pointer, capacity C.size_t, length *C.size_t) error) ([]byte, error) {
	return readWith(0, read)
}

// readText is readBytes for text, which ends in a NUL that does not count.
func readText(read func(buffer *C.char, capacity C.size_t, length *C.size_t) error) (string, error) {
	text, err := readWith(1, func(buffer unsafe.Pointer, capacity C.size_t, length *C.size_t) error {
		return read((*C.char)(buffer), capacity, length)
	})
	return string(text), err
}

// readWith reads bytes that `closing` others follow. Between the two calls they
// may have become more, as the counters of a rank that is in another call do.
func readWith(closing C.size_t, read func(buffer unsafe.Pointer, capacity C.size_t, length *C.size_t) error) ([]byte, error) {
	var length C.size_t
	if err := read(nil, 0, &length); err != nil {
		return nil, err
	}
	for length > 0 {
		buffer := make([]byte, length+closing)
		if err := read(unsafe.Pointer(&buffer[0]), C.size_t(len(buffer)), &length); err != nil {
			return nil, err
		}
		if int(length+closing) <= len(buffer) {
			return buffer[:length], nil
		}
	}
	return nil, nil
}

// shapeOf copies the dimensions of a struct of the library.
func shapeOf(shape *[MaxDims]C.int64_t, ndim C.int32_t) []int64 {
	copied := make([]int64, ndim)
	for i := range copied {
		copied[i] = int64(shape[i])
	}
	return copied
}
