// examples/pretrain_gpt/memory_formula.h
//
// How many bytes a rank should hold, from the configuration alone.
//
// Elements, with h hidden_size, f and e the widths of MLP and expert, s that of the shared expert, E experts, V the
// vocabulary, T, EP and ET the tensor, expert and expert-tensor sizes:
//   attention  4 h^2 / T        norms of a layer  2 h
//   MLP        3 h f / T        router  E h       experts  (E / EP) 3 h e / ET       shared expert  3 h s / T
//   embedding  V h / T          final norm  h     head of its own  V h / T
// Bytes, with b of a parameter, m of a master weight (8 for float64, else 4), n ranks with equal copies (data-parallel
// ranks, with mirrors; of experts the expert-data-parallel ones):
//   parameters  b each          gradients  b each, 4 where they add up in float32
//   optimizer   2 m each; 3 m where there are masters: for bfloat16, and divided, / n, with use_distributed_optimizer
#pragma once

#include <cstdint>
#include <vector>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/layer_division.h"

namespace pretrain_gpt {

struct ElementCount {
  std::int64_t dense = 0;
  std::int64_t expert = 0;
};

// Of the parameters of a rank with these chunks. `config` is resolved.
ElementCount count_elements(const Config& config, const std::vector<Chunk>& chunks);

struct StateBytes {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer_state = 0;
};

// `copies`: ranks with equal dense, and with equal expert parameters.
StateBytes formula_bytes(const Config& config, const ElementCount& elements, const ElementCount& copies);

}  // namespace pretrain_gpt
