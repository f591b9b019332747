// adapters/libtorch_host/parallel.h
//
// The trainer's process groups as the plugin takes them: over which ranks each parameter's gradient is summed, where
// losses are counted, and over which ranks the norm is taken.
#pragma once

#include <memory>
#include <vector>

#include "adapters/libtorch_host/gpt_stage.h"
#include "examples/pretrain_gpt/parallel/groups.h"
#include "plugin/runtime/parallel_groups.h"

namespace dualpipe::libtorch_host {

// Empty for a pipeline that has all the ranks of the run to itself. `stages` are this rank's; `is_tied`: the head uses
// the embedding's weight.
ParallelGroups parallel_groups(const pretrain_gpt::ProcessGroups& groups,
                               const std::vector<std::shared_ptr<GptStage>>& stages, bool is_tied);

}  // namespace dualpipe::libtorch_host
