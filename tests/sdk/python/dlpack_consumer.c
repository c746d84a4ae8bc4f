/* SPDX-License-Identifier: Apache-2.0
 *
 * A consumer of DLPack in C that deletes a tensor while an exception of Python
 * is set, as a tensor of torch that is freed while an exception leaves the
 * function which has it. */

typedef struct PyObject PyObject;

/* Of the interpreter, which loads this library. */
extern PyObject* PyExc_ValueError;
void PyErr_SetString(PyObject* type, const char* text);

/* DLManagedTensor of dlpack.h, with the tensor as six words. */
struct managed_tensor {
  void* tensor[6];
  void* manager_ctx;
  void (*deleter)(struct managed_tensor*);
};

__attribute__((visibility("default"))) PyObject* refuse(
    struct managed_tensor* tensor);

PyObject* refuse(struct managed_tensor* tensor) {
  PyErr_SetString(PyExc_ValueError, "refused");
  tensor->deleter(tensor);
  return (PyObject*)0;
}
