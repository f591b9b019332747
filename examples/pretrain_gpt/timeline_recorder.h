// examples/pretrain_gpt/timeline_recorder.h
//
// The last steps of a run (record_timeline of them) in this rank's timeline file. Steps are kept and written at the
// end, so that no step waits for a disk.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "examples/pretrain_gpt/forward_backward.h"
#include "examples/pretrain_gpt/line_file.h"
#include "examples/pretrain_gpt/memory_report.h"
#include "examples/pretrain_gpt/timeline_file.h"

namespace pretrain_gpt {

class TimelineRecorder {
 public:
  // Starts the file anew where there is something to record. All outlive the recorder.
  TimelineRecorder(const TrainContext& context, ForwardBackward& schedule, const MemoryReport& memory);

  // When a step has ended, its optimizer step too.
  void end_step(std::int64_t iteration);

  // At the end of the run. Throws UserError where the file cannot take it.
  void write(const torch::optim::Optimizer& optimizer);

 private:
  TimelineHeader header(const torch::optim::Optimizer& optimizer) const;

  const TrainContext& context_;
  ForwardBackward& schedule_;
  const MemoryReport& memory_;
  std::optional<LineFile> file_;
  std::vector<TimelineStep> steps_;
};

}  // namespace pretrain_gpt
