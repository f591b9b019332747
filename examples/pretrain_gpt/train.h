// examples/pretrain_gpt/train.h
//
// `pretrain_gpt train`: from a configuration to a trained model, in one process or as one of several.
#pragma once

#include <filesystem>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/schedule_registry.h"

namespace pretrain_gpt {

struct TrainOptions {
  std::filesystem::path config;
  Overrides overrides;
};

// Ends the process, with the code of what ended the run (exit_code.h): once all ranks are done, or after a message on
// stderr that names the rank that a failure comes from. Runs no destructors, in which messages could wait for ranks
// that have left.
void run_train(const TrainOptions& options, const ScheduleRegistry& registry);

}  // namespace pretrain_gpt
