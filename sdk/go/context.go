// SPDX-License-Identifier: Apache-2.0

package shard

// #include "shard/shard.h"
import "C"

import (
	"context"
	"errors"
	"time"
	"unsafe"
)

// abortGrace is how long after a deadline a call may still return by itself. The
// library's error of a timeout names the ranks that did not come.
const abortGrace = time.Second

// contextCode returns the code of a context's error.
func contextCode(cause error) Code {
	if errors.Is(cause, context.DeadlineExceeded) {
		return DeadlineExceeded
	}
	return Cancelled
}

// timeout returns the seconds until the context's deadline, or those of an
// option, whichever are fewer; 0, the library's default, without either.
func timeout(ctx context.Context, option time.Duration) C.double {
	deadline, ok := ctx.Deadline()
	if !ok {
		return seconds(option)
	}
	left := time.Until(deadline)
	if option > 0 && option < left {
		left = option
	}
	// 0 would be the default.
	if left < time.Millisecond {
		left = time.Millisecond
	}
	return seconds(left)
}

// collective makes a call in which ranks wait for each other. When the context
// is done before the call returns, it ends the group of ranks.
func (h *handle) collective(ctx context.Context, comm *handle, call func(object unsafe.Pointer) error) error {
	return h.exclusive(func(object unsafe.Pointer) error {
		// Asked after the wait for other calls.
		if err := ctx.Err(); err != nil {
			return withCause(newError(contextCode(err), "the call did not begin, and nothing was done"), err)
		}
		stop := abortWhenDone(ctx, comm)
		err := call(object)
		stop()
		switch CodeOf(err) {
		case DeadlineExceeded:
			// The library's timeout may pass just before the context's.
			if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < abortGrace/10 {
				<-ctx.Done()
			}
			return withCause(err, ctx.Err())
		case Poisoned, Aborted, Cancelled:
			return withCause(err, ctx.Err())
		}
		return err
	})
}

// abortWhenDone ends the group of ranks when the context is done, unless stop is
// called before.
func abortWhenDone(ctx context.Context, comm *handle) (stop func()) {
	if ctx.Done() == nil {
		return func() {}
	}
	returned := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-returned:
			return
		case <-ctx.Done():
		}
		grace := time.Duration(0)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			grace = abortGrace
		}
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-returned:
		case <-timer.C:
			_ = comm.brief(func(object unsafe.Pointer) error {
				return abort(object, "the context of a call on this rank ended: "+ctx.Err().Error())
			})
		}
	}()
	return func() {
		close(returned)
		<-ended
	}
}
