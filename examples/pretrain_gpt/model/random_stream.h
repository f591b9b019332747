// examples/pretrain_gpt/model/random_stream.h
//
// Random numbers that depend on the run's seed and the name of what they are for, and on nothing else: not on what was
// drawn before.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <string>

namespace pretrain_gpt {

// A new generator at the start of the stream `name`.
at::Generator random_stream(std::int64_t seed, const std::string& name, at::Device device = at::kCPU);

}  // namespace pretrain_gpt
