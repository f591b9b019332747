// What a step gives back to Python.
#include "adapters/python/binding/pipeline.h"
#include "plugin/schedule/text.h"

namespace dualpipe::python {
namespace {

using CellSpan = std::tuple<std::string, double, double, double>;

std::vector<CellSpan> spans_of(const StepStatistics& statistics) {
  std::vector<CellSpan> spans;
  for (const Span& span : statistics.spans) {
    spans.emplace_back(to_string(span.action), span.start, span.end, span.waited);
  }
  return spans;
}

std::vector<std::pair<double, std::int64_t>> memory_of(const StepStatistics& statistics) {
  std::vector<std::pair<double, std::int64_t>> points;
  for (const MemoryPoint& point : statistics.memory) points.emplace_back(point.seconds, point.bytes);
  return points;
}

std::vector<std::pair<std::int64_t, std::size_t>> reductions_of(const StepStatistics& statistics) {
  std::vector<std::pair<std::int64_t, std::size_t>> all;
  for (const ReductionStart& start : statistics.reductions) all.emplace_back(start.elements, start.after_spans);
  return all;
}

py::list outputs_of(const StepResult& result) {
  py::list outputs;
  for (const TensorList& tensors : result.outputs) outputs.append(to_tuple(tensors));
  return outputs;
}

}  // namespace

void bind_results(py::module_& module) {
  py::class_<StepStatistics>(module, "StepStatistics")
      .def_readonly("began", &StepStatistics::began)
      .def_property_readonly("spans", &spans_of)
      .def_property_readonly("memory", &memory_of)
      .def_property_readonly("reductions", &reductions_of)
      .def_readonly("peak_activations", &StepStatistics::peak_activations)
      .def_readonly("peak_pending_weight_bytes", &StepStatistics::peak_pending_weight_bytes)
      .def_readonly("messages_sent", &StepStatistics::messages_sent)
      .def_readonly("bytes_sent", &StepStatistics::bytes_sent)
      .def_readonly("overlapped_pairs", &StepStatistics::overlapped_pairs)
      .def_readonly("sequential_pairs", &StepStatistics::sequential_pairs)
      .def_property_readonly("overlap_summary", &StepStatistics::overlap_summary);
  py::class_<StepResult>(module, "StepResult")
      .def_readonly("losses", &StepResult::losses)
      .def_readonly("mean_loss", &StepResult::mean_loss)
      .def_property_readonly("outputs", &outputs_of)
      .def_readonly("statistics", &StepResult::statistics);
}

}  // namespace dualpipe::python
