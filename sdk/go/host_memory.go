// SPDX-License-Identifier: Apache-2.0

package shard

// #include <stdlib.h>
// #include <string.h>
// #include "shard/shard.h"
import "C"

import "unsafe"

// HostMemory is memory of the program that an engine may keep using after a call,
// as Go's own memory must not be. Engine.BindParam binds it.
type HostMemory struct {
	h     *handle
	bytes int
	life  *lifetime
}

// HostMemoryCreate allocates zeroed memory outside of Go's heap, aligned to 64
// bytes. It is freed by Close, once no engine is bound to it.
func HostMemoryCreate(bytes int) (*HostMemory, error) {
	if bytes < 0 {
		return nil, newError(InvalidArgument, "%d bytes cannot be allocated; allowed: 0 and more", bytes)
	}
	var block unsafe.Pointer
	// A pointer that can be freed, for no bytes too.
	if C.posix_memalign(&block, 64, C.size_t(bytes)+1) != 0 {
		return nil, newError(ResourceExhausted, "there is no memory for %d bytes", bytes)
	}
	C.memset(block, 0, C.size_t(bytes))
	return newHostMemory(block, bytes, func() { C.free(block) }), nil
}

// HostMemoryAt describes memory that the program has elsewhere outside of Go's
// heap, such as syscall.Mmap's or another library's. The program keeps it valid
// until Close, and until no engine is bound to it.
//
// Data may be an address in the memory of a GPU, which an engine on that GPU can
// bind. libshard cannot tell: View describes it as the host's memory, whose
// elements the program must not use then.
func HostMemoryAt(data unsafe.Pointer, bytes int) (*HostMemory, error) {
	if data == nil || bytes < 0 {
		return nil, newError(InvalidArgument, "%d bytes at %p are no memory", bytes, data)
	}
	return newHostMemory(data, bytes, func() {}), nil
}

func newHostMemory(block unsafe.Pointer, bytes int, free func()) *HostMemory {
	life := newLifetime(nil)
	h := newHandle("host memory", nil, block, func() {
		life.end("the host memory is closed")
		free()
	})
	return &HostMemory{h, bytes, life}
}

// View gets a view of the memory as elements of a type.
func (m *HostMemory) View(dtype DType) (View, error) {
	data, err := m.h.open()
	if err != nil {
		return View{}, err
	}
	size := dtype.Size()
	if size == 0 || m.bytes%size != 0 {
		return View{}, newError(InvalidArgument, "%d bytes are no whole elements of %s", m.bytes, dtype)
	}
	return View{owner: m, life: m.life, data: data, numel: int64(m.bytes / size), dtype: dtype}, nil
}

// Close frees the memory, at once or when no engine is bound to it any more.
func (m *HostMemory) Close() error { return m.h.close() }

// boundMemory is what is bound to a parameter.
type boundMemory struct{ values, grad *HostMemory }

func (b boundMemory) release() {
	for _, memory := range []*HostMemory{b.values, b.grad} {
		if memory != nil {
			memory.h.release()
		}
	}
}

// retain returns the address and the size of memory that may be nil.
func (m *HostMemory) retain() (unsafe.Pointer, C.size_t, error) {
	if m == nil {
		return nil, 0, nil
	}
	data, err := m.h.retain()
	return data, C.size_t(m.bytes), err
}

// BindParam binds memory of the program to a parameter and to its gradient, for
// programs whose kernels cannot use the engine's memory; nil binds nothing. The
// memory is in use until it is bound no more, or the engine is closed.
// shard/tensors.h says when it is read and written. Stages 0 to 2. Views of the
// gradient end.
func (e *Engine) BindParam(param ParamID, values, grad *HostMemory) error {
	valuesAt, valuesBytes, err := values.retain()
	if err != nil {
		return err
	}
	gradAt, gradBytes, err := grad.retain()
	if err != nil {
		boundMemory{values: values}.release()
		return err
	}
	binding := boundMemory{values, grad}
	called := false
	err = e.do(func(engine *C.shard_engine) *C.shard_error {
		called = true
		err := C.shard_engine_bind_param(engine, C.int32_t(param), valuesAt, valuesBytes, gradAt, gradBytes)
		e.state.bind(param, binding, Code(C.shard_error_code(err)))
		return err
	})
	if !called {
		binding.release()
	}
	return err
}

// bind follows the result of a binding.
func (s *engineState) bind(param ParamID, binding boundMemory, result Code) {
	switch result {
	case OK:
		s.bound[param].release()
		s.bound[param] = binding
		s.grads.end("BindParam has replaced gradients")
		s.grads = newLifetime(s.plan)
	case InvalidArgument, FailedPrecondition:
		binding.release() // Everything is as before.
	default:
		s.unbound = append(s.unbound, binding)
	}
}
