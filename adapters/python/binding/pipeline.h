// adapters/python/binding/pipeline.h
//
// Pipeline for Python: the engine of plugin/runtime/dualpipe.h around stages of Python. Everything runs without the
// GIL but what is Python's own.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "adapters/python/binding/failures.h"
#include "adapters/python/binding/python_stage.h"
#include "plugin/runtime/dualpipe.h"

namespace dualpipe::python {

struct PythonPipelineOptions {
  PipelineOptions engine;
  std::vector<int> rank_mapping;               // By rank of the group; empty: the group's own.
  bool notify_failures = true;                 // Ranks tell each other of failures, over `store`.
  c10::intrusive_ptr<c10d::Store> store = {};  // A client of its own, whose loss is a failure too; null: the group's.
  std::optional<at::Device> device = {};       // Of the messages, where the group has several backends.
};

class PythonPipeline {
 public:
  // With the GIL.
  PythonPipeline(const std::string& schedule, c10::intrusive_ptr<c10d::ProcessGroup> group,
                 const std::vector<StageDescription>& stages, PythonPipelineOptions options);
  ~PythonPipeline();
  PythonPipeline(const PythonPipeline&) = delete;
  PythonPipeline& operator=(const PythonPipeline&) = delete;

  // With the GIL. `weight` as in make_python_criterion(). What does not fit is told to the other ranks, as any failure.
  StepResult step(const py::object& inputs, const py::object& labels, const py::object& criterion,
                  const py::object& weight, bool return_outputs);
  StepResult evaluate(const py::object& inputs, const py::object& labels, const py::object& criterion,
                      const py::object& weight, bool return_outputs);

  // Without the GIL.
  void finish_gradients();
  double compute_norm();
  // As Pipeline::guarded, of a Python function.
  void guarded(const std::string& action, const SharedObject& body);

  Pipeline& engine() { return *engine_; }

 private:
  void take(const std::function<void()>& body);
  StepResult run(const std::function<StepResult()>& body);

  std::shared_ptr<Running> running_ = std::make_shared<Running>();
  Border border_;
  std::unique_ptr<Pipeline> engine_;
  std::unique_ptr<GradientNorm> norm_;  // Made at its first use, a collective.
};

void bind_pipeline(py::module_& module);
void bind_results(py::module_& module);

}  // namespace dualpipe::python
