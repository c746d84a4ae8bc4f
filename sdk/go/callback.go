// SPDX-License-Identifier: Apache-2.0

package shard

// #include <stdlib.h>
// #include "callbacks.h"
import "C"

import (
	"runtime"
	"runtime/cgo"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// callback is a function of the program that the library calls. The library
// holds its cell, a word of C memory with a cgo.Handle, until delete.
type callback struct {
	name  string // "progress", for messages.
	guard *guard // The guard of the object whose calls run it; nil for an immutable one.
	cell  *cgo.Handle

	log      func(level LogLevel, message string)
	progress func(done, total uint64) error
	wrap     func(module ModuleID, nonwrappedNumel int64) bool
	take     func(key string, info TensorInfo, data View) error

	mu      sync.Mutex
	failure error // The first error or panic since takeFailure.
}

// register gives the callback a cell, after its fields are set.
func (c *callback) register() *callback {
	c.cell = (*cgo.Handle)(C.malloc(C.size_t(unsafe.Sizeof(cgo.Handle(0)))))
	*c.cell = cgo.NewHandle(c)
	return c
}

func (c *callback) userData() unsafe.Pointer { return unsafe.Pointer(c.cell) }

// delete ends the registration. REQUIRES: the library calls it no more. A nil
// callback is none.
func (c *callback) delete() {
	if c == nil {
		return
	}
	c.cell.Delete()
	C.free(unsafe.Pointer(c.cell))
	c.cell = nil
}

func callbackAt(userData unsafe.Pointer) *callback {
	return (*cgo.Handle)(userData).Value().(*callback)
}

// newProgress registers the progress function of an option, which may be nil.
func newProgress(g *guard, progress func(done, total uint64) error) *callback {
	if progress == nil {
		return nil
	}
	return (&callback{name: "progress", guard: g, progress: progress}).register()
}

// result adds the callback's failure to the result of the call that ran it.
func (c *callback) result(err error) error {
	if c == nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return withCause(err, c.failure)
}

// takeFailure returns the first error or panic of the callback, once.
func (c *callback) takeFailure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	failure := c.failure
	c.failure = nil
	return failure
}

func (c *callback) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure == nil {
		c.failure = err
	}
}

// run calls the function and returns whether it neither failed nor panicked: no
// panic may unwind the library's frames.
func (c *callback) run(function func() error) (ok bool) {
	thread := enterCallback(c.guard)
	defer leaveCallback(thread)
	// On a thread of the library, what the function did happens before the call
	// returns; for the race detector, which sees Go's locks only, before result.
	defer c.mu.Unlock()
	defer c.mu.Lock()
	returned := false
	defer func() {
		// nil does not mean that there was no panic: panic(nil) is one.
		if value := recover(); !returned {
			c.fail(&PanicError{Callback: c.name, Value: value, Stack: debug.Stack()})
			ok = false
		}
	}()
	err := function()
	returned = true
	if err != nil {
		c.fail(err)
	}
	return err == nil
}

//export shardGoLog
func shardGoLog(level C.shard_log_level, message *C.char, userData unsafe.Pointer) {
	c := callbackAt(userData)
	c.run(func() error {
		c.log(LogLevel(level), C.GoString(message))
		return nil
	})
}

//export shardGoProgress
func shardGoProgress(done, total C.uint64_t, userData unsafe.Pointer) C.int32_t {
	c := callbackAt(userData)
	return flag(!c.run(func() error { return c.progress(uint64(done), uint64(total)) }))
}

//export shardGoWrap
func shardGoWrap(module C.int32_t, nonwrappedNumel C.int64_t, userData unsafe.Pointer) C.int32_t {
	c := callbackAt(userData)
	var wrap bool
	c.run(func() error {
		wrap = c.wrap(ModuleID(module), int64(nonwrappedNumel))
		return nil
	})
	return flag(wrap)
}

//export shardGoTake
func shardGoTake(key *C.char, info *C.shard_tensor_info, data unsafe.Pointer, userData unsafe.Pointer) C.int32_t {
	c := callbackAt(userData)
	return flag(!c.run(func() error {
		tensor := tensorInfo(info)
		life := newLifetime(nil)
		defer life.end("the callback that it was given to has returned")
		if data == nil {
			return c.take(C.GoString(key), tensor, View{})
		}
		return c.take(C.GoString(key), tensor, View{life: life, data: data, numel: tensor.Numel, dtype: tensor.DType})
	}))
}

// running has the guards whose callbacks run on each thread now. A callback's
// goroutine stays on its thread, which is that of the library.
var running struct {
	count  atomic.Int64 // Callbacks; 0 spares every call the look-up.
	mu     sync.Mutex
	guards map[int][]*guard // By thread id, the innermost last.
}

func enterCallback(g *guard) (thread int) {
	thread = syscall.Gettid()
	running.count.Add(1)
	running.mu.Lock()
	defer running.mu.Unlock()
	if running.guards == nil {
		running.guards = map[int][]*guard{}
	}
	running.guards[thread] = append(running.guards[thread], g)
	return thread
}

func leaveCallback(thread int) {
	running.count.Add(-1)
	running.mu.Lock()
	defer running.mu.Unlock()
	guards := running.guards[thread]
	if len(guards) == 1 {
		delete(running.guards, thread)
		return
	}
	running.guards[thread] = guards[:len(guards)-1]
}

// isInCallback returns whether the caller is a callback of g.
func isInCallback(g *guard) bool {
	if running.count.Load() == 0 {
		return false
	}
	// Keeps a goroutine that is no callback from finding one on a thread that it
	// has just left.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	running.mu.Lock()
	defer running.mu.Unlock()
	for _, other := range running.guards[syscall.Gettid()] {
		if other == g {
			return true
		}
	}
	return false
}
