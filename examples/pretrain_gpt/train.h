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

// Returns once all ranks are done. A failure of this rank or of another ends the process with a code of its own
// (exit_code.h), after a message on stderr that names the rank it comes from.
void run_train(const TrainOptions& options, const ScheduleRegistry& registry);

}  // namespace pretrain_gpt
