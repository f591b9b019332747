// adapters/python/binding/python_stage.h
//
// A stage, its loss and its overlapped pairs in Python, as the engine wants them. The GIL is taken around Python code
// alone. Parameters are those of Python: the same tensors, under the names that Python gives them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "adapters/python/binding/python_object.h"
#include "adapters/python/binding/running.h"
#include "plugin/runtime/stage_module.h"

namespace dualpipe::python {

// What dualpipe.core makes of a Stage.
struct StageDescription {
  py::object owner;                                         // What a hook gets as module0 or module1.
  py::object forward;                                       // (tuple) -> tensor or sequence.
  py::object begin_micro_batch;                             // (int) -> None, or None.
  py::object overlap;                                       // The eight arguments, or None: no hook.
  int hook_kind = 0;                                        // Equal where hooks may run a pair of two stages.
  int stage = 0;                                            // Its number in the pipeline.
  std::vector<std::pair<std::string, at::Tensor>> weights;  // By logical name.
};

// With the GIL. `running` is told what runs.
std::shared_ptr<StageModule> make_python_stage(const StageDescription& description, std::shared_ptr<Running> running);

// With the GIL. `weight` None: by rows, and `loss` returns a mean; else it returns a sum. `loss` None: no criterion.
std::optional<Criterion> make_python_criterion(const py::object& loss, const py::object& weight,
                                               std::shared_ptr<Running> running);

void bind_stage(py::module_& module);

}  // namespace dualpipe::python
