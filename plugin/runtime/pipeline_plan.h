// plugin/runtime/pipeline_plan.h
//
// What a rank of a pipeline runs, worked out from the schedule's name and the options alone, before any message: and
// what it tells the other ranks to find out whether they agree.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugin/runtime/agree.h"
#include "plugin/runtime/dualpipe.h"
#include "plugin/runtime/overlap_plan.h"
#include "plugin/schedule/lower.h"
#include "plugin/schedule/schedule.h"

namespace dualpipe {

struct PipelinePlan {
  Schedule schedule;
  Program training;
  Program evaluation;
  std::vector<int> reduction_order;  // Of this rank's stages.
  std::vector<int> input_ids;        // Micro-batches that enter at this rank, ascending.
  std::vector<int> loss_ids;         // Micro-batches whose loss is computed here, ascending.

  int first_loss_rank() const { return schedule.placement.loss_rank(0); }
};

// Nothing of a schedule that cannot be made.
PipelinePlan empty_plan(const std::string& name);

// Throws ScheduleError for options or a schedule that cannot be run.
PipelinePlan make_plan(const std::string& name, int rank, int ranks, const PipelineOptions& options);

// Throws ScheduleError where there is not one module per stage of the rank.
Stages pair_with_stages(const Schedule& schedule, int rank, std::vector<std::shared_ptr<StageModule>> modules);

Digest digest_of(const std::string& name, const PipelinePlan& plan, const PipelineOptions& options, int ranks);

// Over the group, with the edges that the schedule's messages use.
std::shared_ptr<Transport> transport_for(const std::string& schedule, c10::intrusive_ptr<c10d::ProcessGroup> group,
                                         const PipelineOptions& options);

}  // namespace dualpipe
