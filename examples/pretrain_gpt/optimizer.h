// examples/pretrain_gpt/optimizer.h
//
// The optimizer over a rank's chunks (AdamW), and its learning rate: linear warm-up, then cosine decay.
#pragma once

#include <torch/optim/adamw.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/model/gpt_chunk.h"
#include "examples/pretrain_gpt/parallel/groups.h"
#include "examples/pretrain_gpt/rank_parameters.h"

namespace pretrain_gpt {

// Matrices decay, norm weights do not. A weight that two chunks share is taken once. With use_distributed_optimizer,
// and for bfloat16 parameters, it is a DistributedOptimizer (examples/pretrain_gpt/distributed_optimizer.h); `groups`
// null: over this rank alone. `main_gradients` are the schedule's, by logical name.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Config& config, const std::vector<GptChunk*>& chunks,
                                                        const NamedTensors& main_gradients = {},
                                                        const ProcessGroups* groups = nullptr);

// Of this rank: moments, and master weights where there are any.
std::int64_t state_bytes(const torch::optim::Optimizer& optimizer);

// Of step `iteration`, counted from 1: lr * iteration / lr_warmup_iters during warm-up, then along half a cosine from
// lr to min_lr at lr_decay_iters, min_lr after it.
double learning_rate(const Config& config, std::int64_t iteration);

void set_learning_rate(torch::optim::Optimizer& optimizer, double lr);

}  // namespace pretrain_gpt
