// adapters/python/binding/python_object.h
//
// Python objects and tensor lists on the C++ side of the border. Everything here is called with the GIL but the
// destructor of what share() gives, which takes it.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>

#include "plugin/runtime/tensor_list.h"

namespace dualpipe::python {

// A reference that may be dropped by any thread, with or without the GIL.
using SharedObject = std::shared_ptr<py::object>;
SharedObject share(py::object object);

// A tuple of torch.Tensor and None (undefined).
py::tuple to_tuple(const TensorList& tensors);

// A tensor, or a sequence of tensors and None. `what` names it in the TypeError that anything else is:
// "[stage 3] forward must return ..., got dict".
TensorList to_tensors(const std::string& what, py::handle given);

// One entry per micro-batch. `what` names them: "[step] inputs must be a sequence ..., got NoneType".
MicroBatches to_micro_batches(const std::string& call, const std::string& what, py::handle given);

}  // namespace dualpipe::python
