// examples/pretrain_gpt/checkpoint/match.h
//
// Whether a checkpoint is one of this model and this data. No LibTorch.
#pragma once

#include <string>
#include <vector>

#include "examples/pretrain_gpt/checkpoint/manifest.h"
#include "examples/pretrain_gpt/checkpoint/save_plan.h"
#include "examples/pretrain_gpt/config.h"

namespace pretrain_gpt {

// What a checkpoint of this configuration says of itself. `num_tokens`: of the data set.
Settings model_settings(const Config& config);
Settings data_settings(const Config& config, std::int64_t num_tokens);
Settings layout_settings(const Config& resolved);

// Each throws CheckpointError(origin, ...), naming the first key or tensor that differs, with wanted and given.
void match_model(const Manifest& manifest, const Settings& model, const std::string& origin);
void match_data(const Manifest& manifest, const Settings& data, std::int64_t seed, const std::string& origin);

// `held` are the pieces that a rank is going to fill.
void match_tensors(const Manifest& manifest, const std::vector<HeldBox>& held, const std::string& origin);

// `names` are those of all ranks together.
void match_names(const Manifest& manifest, const std::vector<std::string>& names, const std::string& origin);

}  // namespace pretrain_gpt
