// adapters/libtorch_host/auto_schedule.h
//
// `pipeline_schedule: auto`: the schedule that plugin/search chooses for the configuration, under the costs of
// `cost_file` and within `memory_limit_gb`.
#pragma once

#include <string>

#include "examples/pretrain_gpt/schedule_registry.h"
#include "plugin/schedule/registry.h"
#include "plugin/search/choose_schedule.h"

namespace dualpipe::libtorch_host {

inline constexpr const char* kAuto = "auto";

// What a configuration asks of the search: placements whose stages its layers can be divided into; without a cost file
// one cost for every stage (for every layer, where pipeline_layer_counts are given), F = I = W, nothing gained by
// pairs, no latency. Throws UserError where a key that is needed is missing and with balance: measured, ScheduleError
// for a cost file that is wrong.
AutoRequest auto_request(const pretrain_gpt::Config& config, int pipeline_size);

pretrain_gpt::ScheduleChoice choose(const pretrain_gpt::Config& config, int pipeline_size);

// The plugin's schedules and, under the name `auto`, the one with these rows.
Registry registry_with(const std::string& rows);

}  // namespace dualpipe::libtorch_host
