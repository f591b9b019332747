// examples/pretrain_gpt/layer_division.h
//
// Which layers a stage of the pipeline holds.
//
// By cost: every stage gets at least one layer, and each further layer goes to the stage that costs least so far, the
// later one where two cost the same, since earlier stages hold more activations. A stage costs the multiplications that
// a token needs in it:
//   a layer        4 h^2 (attention's matrices) + 3 h f (SwiGLU) + s h (causal scores and their use)
//   the embedding  h (a copy)
//   the head       V h
// with h hidden_size, f ffn size, s seq_length, V vocab_size. With `balance: measured` the costs are those of
// cost_file, layer by layer, and balance() (layer_balance.h) divides. `pipeline_layer_counts` replaces all this.
#pragma once

#include <cstdint>
#include <vector>

#include "examples/pretrain_gpt/config.h"

namespace pretrain_gpt {

// Layers first_layer .. first_layer + num_layers - 1 of the model, before them the embedding, after them the final norm
// and the head.
struct Chunk {
  int stage = 0;
  int num_stages = 1;
  std::int64_t first_layer = 0;
  std::int64_t num_layers = 0;
  bool has_embedding = false;
  bool has_head = false;

  bool operator==(const Chunk&) const = default;
};

// One chunk per stage, in stage order; every layer is in exactly one. `places` says which stages share a rank. Throws
// UserError, listing counts, where that cannot be done.
std::vector<Chunk> divide_layers(const Config& config, int num_stages, StagePlaces places = StagePlaces::kApart);

// The whole model.
Chunk whole_model(const Config& config);

}  // namespace pretrain_gpt
