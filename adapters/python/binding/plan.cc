// The pure rooms for Python: schedules as rows of cells in the text form.
#include "plugin/schedule/schedule.h"

#include <torch/csrc/utils/pybind.h>

#include "adapters/python/binding/plan.h"
#include "plugin/schedule/lower.h"
#include "plugin/schedule/registry.h"
#include "plugin/schedule/text.h"

namespace dualpipe::python {
namespace {

using Cells = std::vector<std::vector<std::string>>;

Cells cells_of(const std::vector<Row>& rows) {
  Cells cells;
  for (const Row& row : rows) {
    auto& line = cells.emplace_back();
    for (const Action& action : row) line.push_back(to_string(action));
  }
  return cells;
}

Cells plan(const std::string& schedule, int ranks, int micro_batches, int chunks, bool lowered) {
  const Schedule made = builtin_registry().make(schedule, {ranks, micro_batches, chunks});
  return cells_of(lowered ? lower(made).rows : made.rows);
}

std::vector<int> stages_of(const std::string& schedule, int ranks, int micro_batches, int chunks, int rank) {
  return builtin_registry().make(schedule, {ranks, micro_batches, chunks}).placement.stages_of(rank);
}

}  // namespace

void bind_plan(py::module_& module) {
  module.def("schedule_names", [] { return builtin_registry().names(); });
  module.def("plan", &plan, py::arg("schedule"), py::arg("pipeline_model_parallel_size"), py::arg("num_microbatches"),
             py::arg("virtual_pipeline_model_parallel_size"), py::arg("lowered"));
  module.def("stages_of", &stages_of, py::arg("schedule"), py::arg("pipeline_model_parallel_size"),
             py::arg("num_microbatches"), py::arg("virtual_pipeline_model_parallel_size"), py::arg("rank"));
  module.def("read_schedule", [](const std::string& path) { return cells_of(read_schedule(path).rows); });
}

}  // namespace dualpipe::python
