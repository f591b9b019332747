// adapters/python/binding/plan.h
//
// schedule_names(), plan(), stages_of() and read_schedule() for Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace dualpipe::python {

void bind_plan(py::module_& module);

}  // namespace dualpipe::python
