// SPDX-License-Identifier: Apache-2.0

package shard

// #include "shard/shard.h"
import "C"

import (
	"fmt"
	"sync"
)

// abiVersion is the number in the SONAME that this package is written for.
const abiVersion = 0

// version is MAJOR.MINOR.PATCH.
type version [3]int

func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }

func (v version) less(other version) bool {
	for i := range v {
		if v[i] != other[i] {
			return v[i] < other[i]
		}
	}
	return false
}

// headerVersion is the version of the header that this package was compiled
// with.
var headerVersion = version{C.SHARD_VERSION_MAJOR, C.SHARD_VERSION_MINOR, C.SHARD_VERSION_PATCH}

// Version returns the version of the library that is loaded, such as "0.2.0".
func Version() string { return C.GoString(C.shard_version()) }

// ABIVersion returns the number in the SONAME of the library that is loaded.
func ABIVersion() int { return int(C.shard_abi_version()) }

var library struct {
	once sync.Once
	err  error
}

// checkLibrary returns an error when the loaded library is none that this
// package can call: an older one lacks functions and fields of options, one of
// another ABI has others. Everything that makes an object asks first.
func checkLibrary() error {
	library.once.Do(func() { library.err = compareLibrary(Version(), ABIVersion()) })
	return library.err
}

func compareLibrary(loaded string, abi int) error {
	if abi != abiVersion {
		return newError(FailedPrecondition, "the loaded libshard %s has ABI %d, and this program was "+
			"built with the header of libshard %s, which has ABI %d: install libshard %s, or build the "+
			"program again", loaded, abi, headerVersion, abiVersion, headerVersion)
	}
	var have version
	if _, err := fmt.Sscanf(loaded, "%d.%d.%d", &have[0], &have[1], &have[2]); err != nil {
		return newError(FailedPrecondition, "the loaded libshard calls itself '%s', which is no "+
			"version; this program was built with the header of libshard %s", loaded, headerVersion)
	}
	if have.less(headerVersion) {
		return newError(FailedPrecondition, "the loaded libshard %s is older than the header of "+
			"libshard %s that this program was built with: install libshard %s or newer, or build the "+
			"program with the header of %s", have, headerVersion, headerVersion, have)
	}
	return nil
}
