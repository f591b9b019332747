// examples/pretrain_gpt/model/moe/passing.h
//
// An exchange beside tensors that only pass by.
#pragma once

#include <memory>

#include "examples/pretrain_gpt/model/phase.h"

namespace pretrain_gpt {

// Those before, then the result of `pending`, then those after.
std::unique_ptr<PendingTensors> between(Tensors before, std::unique_ptr<PendingTensors> pending, Tensors after);

}  // namespace pretrain_gpt
