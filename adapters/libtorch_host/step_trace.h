// adapters/libtorch_host/step_trace.h
//
// What the plugin recorded of a step, as the trainer's trace.
#pragma once

#include "examples/pretrain_gpt/step_trace.h"
#include "plugin/runtime/statistics.h"

namespace dualpipe::libtorch_host {

// Memory counts from what there was when the step began.
pretrain_gpt::StepTrace trace_of(const StepStatistics& statistics);

}  // namespace dualpipe::libtorch_host
