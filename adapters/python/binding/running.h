// adapters/python/binding/running.h
//
// What a rank is doing right now, as far as Python has to know: what runs there, for the notes of exceptions, and
// the weight-gradient store of the engine, for layers that put closures into it.
//
// The store of a running step is in LibTorch's thread-local Python objects, which the autograd engine carries to its
// own threads: a layer's backward finds the engine that runs it there, wherever it runs.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>

#include "plugin/runtime/weight_grad_store.h"

namespace dualpipe::python {

enum class PythonPart {
  kForward,  // Or its loss.
  kHook,     // An overlapped_forward_backward.
  kOther,    // A backward, or nothing.
};

struct Running {
  int stage = 0;
  int micro_batch = 0;
  PythonPart part = PythonPart::kOther;
  WeightGradStore* store = nullptr;  // The engine's, from the first forward on; it lives as long as the pipeline.
};

// Makes `running` what current_running() gives while it lives, here and in the autograd threads that work for this one.
// Both are called without the GIL.
class RunningScope {
 public:
  explicit RunningScope(const std::shared_ptr<Running>& running);
  ~RunningScope();
  RunningScope(const RunningScope&) = delete;
  RunningScope& operator=(const RunningScope&) = delete;

 private:
  std::shared_ptr<c10::SafePyObject> previous_;
};

// is_splitting() and put_weight_gradient() for dualpipe.utils.
void bind_running(py::module_& module);

}  // namespace dualpipe::python
