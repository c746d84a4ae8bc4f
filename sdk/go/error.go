// SPDX-License-Identifier: Apache-2.0

package shard

// #include "shard/shard.h"
import "C"

import (
	"errors"
	"fmt"
)

// Code is the kind of an error. A Code is an error itself, so that
// errors.Is(err, shard.NotFound) asks for a kind.
type Code int32

// The codes of errors. 0 to 16 are those of gRPC.
const (
	OK                 Code = C.SHARD_OK
	Cancelled          Code = C.SHARD_CANCELLED
	Unknown            Code = C.SHARD_UNKNOWN
	InvalidArgument    Code = C.SHARD_INVALID_ARGUMENT
	DeadlineExceeded   Code = C.SHARD_DEADLINE_EXCEEDED
	NotFound           Code = C.SHARD_NOT_FOUND
	AlreadyExists      Code = C.SHARD_ALREADY_EXISTS
	PermissionDenied   Code = C.SHARD_PERMISSION_DENIED
	ResourceExhausted  Code = C.SHARD_RESOURCE_EXHAUSTED
	FailedPrecondition Code = C.SHARD_FAILED_PRECONDITION
	Aborted            Code = C.SHARD_ABORTED
	OutOfRange         Code = C.SHARD_OUT_OF_RANGE
	Unimplemented      Code = C.SHARD_UNIMPLEMENTED
	Internal           Code = C.SHARD_INTERNAL
	Unavailable        Code = C.SHARD_UNAVAILABLE
	DataLoss           Code = C.SHARD_DATA_LOSS
	Unauthenticated    Code = C.SHARD_UNAUTHENTICATED
	Desync             Code = C.SHARD_DESYNC              // Ranks differ.
	RankLost           Code = C.SHARD_RANK_LOST           // A rank died: Error.Rank.
	Corrupt            Code = C.SHARD_CORRUPT             // Stored bytes are not what was written.
	Poisoned           Code = C.SHARD_POISONED            // Unusable after an earlier error.
	BackendUnavailable Code = C.SHARD_BACKEND_UNAVAILABLE // Not on this machine or in this build.
)

// String returns the name of the code, such as "RANK_LOST".
func (c Code) String() string { return C.GoString(C.shard_code_name(C.shard_code(c))) }

// Error returns the name of the code.
func (c Code) Error() string { return c.String() }

// Error is an error of the library, or one that this package found before it
// called the library.
type Error struct {
	Code    Code
	Message string // The problem, the value that has it, and the remedy.
	Rank    int    // The rank that the error is about, or -1.
	Detail  string // A JSON document with lists such as missing keys, or "".

	// The error of a context or of a callback that made the call fail.
	cause error
}

// Error returns the name of the code and the message.
func (e *Error) Error() string { return e.Code.String() + ": " + e.Message }

// Is returns whether target is the code of the error.
func (e *Error) Is(target error) bool {
	code, ok := target.(Code)
	return ok && code == e.Code
}

// Unwrap returns the error of a context or of a callback that made the call
// fail, or nil.
func (e *Error) Unwrap() error { return e.cause }

// CodeOf returns the code of the *Error in err's chain: OK for nil, and Unknown
// for another error.
func CodeOf(err error) Code {
	if err == nil {
		return OK
	}
	var found *Error
	if errors.As(err, &found) {
		return found.Code
	}
	return Unknown
}

// PanicError is a panic of a callback, which the error of the call that ran the
// callback wraps.
type PanicError struct {
	Callback string // Which callback: "log", "progress".
	Value    any    // The argument of panic.
	Stack    []byte // As runtime/debug.Stack prints it.
}

// Error returns the callback's name and the value of the panic.
func (p *PanicError) Error() string {
	return fmt.Sprintf("the %s callback panicked: %v", p.Callback, p.Value)
}

// Unwrap returns the value of the panic where it is an error.
func (p *PanicError) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

func newError(code Code, format string, arguments ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, arguments...), Rank: -1}
}

// takeError frees an error of the library and returns it as a Go error; nil for
// NULL.
func takeError(err *C.shard_error) error {
	if err == nil {
		return nil
	}
	defer C.shard_error_free(err)
	return &Error{
		Code:    Code(C.shard_error_code(err)),
		Message: C.GoString(C.shard_error_message(err)),
		Rank:    int(C.shard_error_rank(err)),
		Detail:  C.GoString(C.shard_error_detail(err)),
	}
}

// withCause adds the error of a context or callback to the error of the call
// that it made fail. Where the call succeeded all the same, the cause is the
// error.
func withCause(err, cause error) error {
	if cause == nil {
		return err
	}
	var found *Error
	if !errors.As(err, &found) {
		return &Error{
			Code:    Unknown,
			Message: cause.Error() + "; the call that ran it did its work",
			Rank:    -1,
			cause:   cause,
		}
	}
	with := *found
	with.Message += ": " + cause.Error()
	with.cause = cause
	return &with
}
