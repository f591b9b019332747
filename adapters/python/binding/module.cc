// The extension module dualpipe._core. dualpipe/__init__.py imports torch first and checks its version.
#include <torch/csrc/utils/pybind.h>

#include "adapters/python/binding/failures.h"
#include "adapters/python/binding/pipeline.h"
#include "adapters/python/binding/plan.h"
#include "adapters/python/binding/python_stage.h"
#include "adapters/python/binding/running.h"

PYBIND11_MODULE(_core, module) {
  using namespace dualpipe::python;
  module.attr("__version__") = DUALPIPE_VERSION;
  bind_failures(module);
  bind_running(module);
  bind_stage(module);
  bind_results(module);
  bind_pipeline(module);
  bind_plan(module);
}
