// examples/pretrain_gpt/expert_balance.h
//
// What the routers of a rank do between steps.
#pragma once

#include <vector>

#include "examples/pretrain_gpt/model/gpt_chunk.h"
#include "examples/pretrain_gpt/parallel/groups.h"

namespace pretrain_gpt {

// Collective, after every step: with moe_router_enable_expert_bias moves the biases by the step's loads, which are
// summed over all ranks with other data and over mirrors; where the step was skipped it only forgets the loads.
void balance_experts(const Config& config, const std::vector<GptChunk*>& chunks, const ProcessGroups& groups,
                     bool skipped);

}  // namespace pretrain_gpt
