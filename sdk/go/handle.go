// SPDX-License-Identifier: Apache-2.0

package shard

import (
	"runtime"
	"sync"
	"unsafe"
)

// guard keeps calls apart that must not overlap. A communicator and its engines
// share one; a model and a state dict have their own.
type guard struct {
	mu sync.Mutex
	// The log callback, whose panics are errors of the calls that ran it; nil
	// without one.
	log *callback
}

// enter waits for the calls of other goroutines. From a callback of such a call
// it would wait for itself, and is an error.
func (g *guard) enter() error {
	if isInCallback(g) {
		return newError(FailedPrecondition, "a callback must not call back into the object whose call "+
			"runs it; return first")
	}
	g.mu.Lock()
	return nil
}

func (g *guard) leave() { g.mu.Unlock() }

// result adds a panic of the log callback to the result of a call.
func (g *guard) result(err error) error {
	if g.log == nil {
		return err
	}
	return withCause(err, g.log.takeFailure())
}

// handle owns an object of the library. Objects whose calls must not overlap
// have a guard; the others are immutable, and are freed when the last call on
// them returns.
//
// The finalizer is the handle's and not that of the type around it. It frees
// nothing during a call: close waits for the guard, and release is a use of the
// handle that keeps it alive as runtime.KeepAlive would. Nothing that free refers
// to may refer to the handle, or the finalizer would never run.
type handle struct {
	name  string // "engine", for messages.
	guard *guard // May be nil.
	free  func() // Frees the object, and what must live as long as it.

	// Guards the fields below. close changes them with the guard too, so that
	// calls which have the guard read them without the mutex.
	mu     sync.Mutex
	object unsafe.Pointer
	users  int            // Calls in progress; the engines of a communicator.
	briefs sync.WaitGroup // Brief calls in progress.
	closed bool
}

func newHandle(name string, g *guard, object unsafe.Pointer, free func()) *handle {
	h := &handle{name: name, guard: g, object: object, free: free}
	// The finalizers of a program share a goroutine, which must not wait for a
	// call in progress.
	runtime.SetFinalizer(h, func(h *handle) { go h.close() })
	return h
}

// exclusive makes a call that must not overlap others.
func (h *handle) exclusive(call func(object unsafe.Pointer) error) error {
	if err := h.guard.enter(); err != nil {
		return err
	}
	defer h.guard.leave()
	// close has the guard too.
	if h.closed {
		return h.closedError()
	}
	return h.guard.result(call(h.object))
}

// shared makes a call that may overlap others.
func (h *handle) shared(call func(object unsafe.Pointer) error) error {
	object, err := h.retain()
	if err != nil {
		return err
	}
	defer h.release()
	return call(object)
}

// brief makes a call that may overlap others and does not wait. Unlike shared it
// also works on an object that is closed and still in use.
func (h *handle) brief(call func(object unsafe.Pointer) error) error {
	h.mu.Lock()
	object := h.object
	if object != nil {
		h.briefs.Add(1)
	}
	h.mu.Unlock()
	if object == nil {
		return h.closedError()
	}
	defer h.briefs.Done()
	return call(object)
}

func (h *handle) closedError() error {
	return newError(FailedPrecondition, "the %s is closed", h.name)
}

// open returns the object, unless it is closed.
func (h *handle) open() (unsafe.Pointer, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, h.closedError()
	}
	return h.object, nil
}

// retain returns the object, which lives until release.
func (h *handle) retain() (unsafe.Pointer, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, h.closedError()
	}
	h.users++
	return h.object, nil
}

func (h *handle) release() {
	h.mu.Lock()
	h.users--
	free := h.takeUnused()
	h.mu.Unlock()
	free()
}

// takeUnused returns the function that frees the object where it is closed and
// used no more, else one that does nothing. The function is called without the
// mutex, for a log callback that it runs may ask for the handle, and waits for
// the brief calls: one of a log callback must not free the object, which waits
// for the callback. REQUIRES: h.mu is locked.
func (h *handle) takeUnused() (free func()) {
	if !h.closed || h.users > 0 || h.object == nil {
		return func() {}
	}
	h.object = nil // No brief call begins from here on.
	return func() {
		h.briefs.Wait()
		h.free()
	}
}

func (h *handle) close() error {
	if h.guard != nil {
		if err := h.guard.enter(); err != nil {
			return err
		}
		defer h.guard.leave()
	}
	runtime.SetFinalizer(h, nil)
	h.mu.Lock()
	h.closed = true
	free := h.takeUnused()
	h.mu.Unlock()
	free()
	return nil
}
