// SPDX-License-Identifier: Apache-2.0

// Package shard is the Go interface of libshard: sharded data-parallel training
// (ZeRO) for training engines written in Go.
//
// A program declares its parameters (Model), decides how they are sharded
// (Plan, a pure computation), meets the other ranks (Comm) and trains (Engine).
// Every function of the C interface has a function or method here, whose name is
// derived from its own: shard_engine_completed_steps is Engine.CompletedSteps.
// The headers in shard/ are the reference manual; comments here say what Go adds
// to them.
//
// Errors. Every error of the library is a *Error, with the code, the rank and
// the detail of the C interface. A Code is an error too: errors.Is(err,
// shard.NotFound).
//
// Ownership. Each object that has a Close method is freed by it. Objects may be
// closed in any order, and twice. A use after Close is an error. The garbage
// collector frees what was not closed, at a time that nobody knows: a safety
// net, not a way to work.
//
// Goroutines. All methods may be called from any goroutine. Calls on one object
// wait for each other; a Comm and the engines on it count as one object. A
// collective call must be made by every rank in the same order, so one goroutine
// of each rank makes them. Comm.Abort, and everything on a Plan, a Checkpoint or
// a Save, waits for no other call.
//
// Callbacks. A panic in a callback is recovered, and returned as the error of
// the call that ran the callback, which wraps a *PanicError. A callback that
// calls back into the object whose call runs it gets an error. A callback must
// not call runtime.Goexit, as testing.T.FailNow does, nor wait for a goroutine
// that calls into the object.
//
// Contexts. A context that is done before a call begins makes the call return at
// once, with nothing done. One that is cancelled while ranks wait for each other
// ends the group of ranks, as Comm.Abort does: there is no way back from half a
// collective. A deadline is the call's timeout; without one, the timeout is the
// engine's or the communicator's.
//
// Memory. Tensors are in the library's memory. A View knows how long its memory
// is valid, and gives an error afterwards; a slice that it gave is not checked.
// A View of a GPU's memory gives an address, View.Pointer, and no slice.
package shard

// #cgo LDFLAGS: -lshard
// #include "shard/shard.h"
import "C"
