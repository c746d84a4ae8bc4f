// SPDX-License-Identifier: Apache-2.0

// Package gpu is what a program does on a GPU itself, by NVIDIA's driver: it copies
// on a stream, and makes graphs. Tests have it from here, for they cannot use cgo.
package gpu

// #cgo LDFLAGS: -ldl
// #include <dlfcn.h>
// #include <stddef.h>
// #include <stdio.h>
// #include <stdlib.h>
//
// static void* find(const char* symbol) {
//   void* found = dlsym(dlopen("libcuda.so.1", RTLD_NOW), symbol);
//   if (found == NULL) {
//     fprintf(stderr, "no driver has %s\n", symbol);
//     exit(1);
//   }
//   return found;
// }
//
// // Calls a function of the driver, where no call before has failed.
// #define CALL(symbol, types, ...) \
//   if (result == 0) result = ((int(*) types)find(symbol))(__VA_ARGS__)
//
// static int open_gpu(void** stream, void** pinned, size_t bytes) {
//   void* context = NULL;
//   int result = 0;
//   CALL("cuInit", (unsigned), 0);
//   CALL("cuDevicePrimaryCtxRetain", (void**, int), &context, 0);
//   CALL("cuCtxPushCurrent_v2", (void*), context);
//   CALL("cuStreamCreate", (void**, unsigned), stream, 1);  // Non-blocking.
//   CALL("cuMemHostAlloc", (void**, size_t, unsigned), pinned, bytes, 0);
//   return result;
// }
//
// static int close_gpu(void* stream, void* pinned) {
//   void* context = NULL;
//   int result = 0;
//   CALL("cuMemFreeHost", (void*), pinned);
//   CALL("cuStreamDestroy_v2", (void*), stream);
//   CALL("cuCtxPopCurrent_v2", (void**), &context);
//   CALL("cuDevicePrimaryCtxRelease_v2", (int), 0);
//   return result;
// }
//
// static int copy(void* to, void* from, size_t bytes, void* stream) {
//   int result = 0;
//   CALL("cuMemcpyAsync", (void*, void*, size_t, void*), to, from, bytes, stream);
//   return result;
// }
//
// static int begin_capture(void* stream) {
//   int result = 0;
//   CALL("cuStreamBeginCapture_v2", (void*, int), stream, 1);  // Thread-local.
//   return result;
// }
//
// static int end_capture(void* stream, void** graph) {
//   void* captured = NULL;
//   int result = 0;
//   CALL("cuStreamEndCapture", (void*, void**), stream, &captured);
//   CALL("cuGraphInstantiateWithFlags", (void**, void*, unsigned long long),
//        graph, captured, 0);
//   CALL("cuGraphDestroy", (void*), captured);
//   return result;
// }
//
// static int launch(void* graph, void* stream) {
//   int result = 0;
//   CALL("cuGraphLaunch", (void*, void*), graph, stream);
//   return result;
// }
//
// static int destroy(void* graph) {
//   int result = 0;
//   CALL("cuGraphExecDestroy", (void*), graph);
//   return result;
// }
import "C"

import (
	"fmt"
	"unsafe"
)

// GPU is a stream of GPU 0, and memory of the host that it copies from. Its methods
// are for the thread that has opened it.
type GPU struct {
	stream, pinned unsafe.Pointer
	numel          int
}

// Graph is work of the stream, to be launched.
type Graph struct{ graph unsafe.Pointer }

func check(what string, result C.int) error {
	if result != 0 {
		return fmt.Errorf("%s: the driver's error %d", what, result)
	}
	return nil
}

// Open makes a stream, and memory for so many float32s.
func Open(numel int) (*GPU, error) {
	g := &GPU{numel: numel}
	return g, check("open", C.open_gpu(&g.stream, &g.pinned, C.size_t(4*numel)))
}

// Close frees both.
func (g *GPU) Close() error { return check("close", C.close_gpu(g.stream, g.pinned)) }

// Stream returns the stream in the driver's own form.
func (g *GPU) Stream() unsafe.Pointer { return g.stream }

// Pinned returns the memory that CopyTo copies from.
func (g *GPU) Pinned() []float32 { return unsafe.Slice((*float32)(g.pinned), g.numel) }

// CopyTo enqueues a copy of Pinned to the GPU's memory. It reads Pinned when it runs.
func (g *GPU) CopyTo(memory unsafe.Pointer) error {
	return check("copy", C.copy(memory, g.pinned, C.size_t(4*g.numel), g.stream))
}

// Capture makes a graph of what a function enqueues.
func (g *GPU) Capture(enqueue func() error) (Graph, error) {
	if err := check("begin a capture", C.begin_capture(g.stream)); err != nil {
		return Graph{}, err
	}
	err := enqueue()
	var graph unsafe.Pointer
	ended := check("end a capture", C.end_capture(g.stream, &graph))
	if err == nil {
		err = ended
	}
	return Graph{graph}, err
}

// Launch enqueues the graph on the stream.
func (g *GPU) Launch(graph Graph) error { return check("launch", C.launch(graph.graph, g.stream)) }

// Close frees the graph.
func (g Graph) Close() error { return check("destroy a graph", C.destroy(g.graph)) }
