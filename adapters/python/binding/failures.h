// adapters/python/binding/failures.h
//
// Failures at the border to Python: the channel over which ranks tell each other, and what Python sees of a
// PipelineError. An exception of Python's comes out as it went in, with its traceback and a note that says rank, stage,
// micro-batch and cell; so does a ScheduleError, the caller's mistake. Every other one is a dualpipe.PipelineError,
// raised from what is nested in it.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <memory>
#include <optional>

#include "adapters/python/binding/running.h"
#include "plugin/runtime/failure.h"

namespace dualpipe::python {

// Over a store, or nothing but this rank's memory; keeps what this rank reported itself.
class OwnFailures : public FailureChannel {
 public:
  // `store` is a client of its own. `lost_store_fails`: a store that no longer answers counts as a failure of the rank
  // it lives in; else ranks go on without telling each other.
  OwnFailures(c10::intrusive_ptr<c10d::Store> store, bool lost_store_fails);

  FailureRecord record(const FailureRecord& failure) override;
  std::optional<FailureRecord> first() override;

  const std::optional<FailureRecord>& own() const { return own_; }

 private:
  bool is_told(const FailureRecord& failure) const;

  std::shared_ptr<FailureChannel> shared_;
  bool lost_store_fails_;
  std::optional<FailureRecord> own_;
};

// Where an exception of this rank belongs.
struct Border {
  int rank = 0;  // As failures give it.
  std::shared_ptr<const Running> running;
  std::shared_ptr<const OwnFailures> failures;  // May be null.
};

// Runs `body`, which is called without the GIL and gives a PipelineError where the pipeline fails.
void cross_border(const Border& border, const std::function<void()>& body);

// ScheduleError and PipelineError of C++ as those of dualpipe.errors.
void bind_failures(py::module_& module);

}  // namespace dualpipe::python
