// examples/pretrain_gpt/train_plan.h
//
// What a run is going to do, made before anything is allocated: configuration, schedule, layout and data.
#pragma once

#include <optional>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/data/data_position.h"
#include "examples/pretrain_gpt/environment.h"
#include "examples/pretrain_gpt/parallel/rank_layout.h"
#include "examples/pretrain_gpt/schedule_choice.h"
#include "examples/pretrain_gpt/schedule_registry.h"
#include "examples/pretrain_gpt/train.h"

namespace pretrain_gpt {

// What a rank has found to be in order on its own, before it talks to another.
struct TrainPlan {
  Config config;
  ScheduleEntry schedule;
  RankLayout layout;
  TrainingData data;
  std::optional<ScheduleChoice> choice;  // Of a schedule that was left open.
};

// Without a word to another rank. Makes the folder for results; UserError where something is not in order.
TrainPlan make_plan(const TrainOptions& options, const ScheduleRegistry& registry, const Environment& environment);

// Collective over the store: UserError on every rank, with both values, where ranks differ in what they were told or in
// what they see of it. CheckpointError on this rank where it cannot read what there is to load.
void compare_with_other_ranks(const TrainPlan& plan, const Environment& environment, c10d::Store& store);

// Where the schedule was left open. Collective.
void settle_schedule(TrainPlan& plan, const Environment& environment, c10d::Store& store);

}  // namespace pretrain_gpt
