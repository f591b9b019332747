// examples/pretrain_gpt/layer_balance.h
//
// balance(): which layers a stage holds so that no rank takes longer than it must, by what layers were measured to
// take.
#pragma once

#include <cstdint>
#include <vector>

namespace pretrain_gpt {

// Forward and backward of a micro-batch, in any one unit, none of them negative.
struct LayerTimes {
  double embedding = 0;
  std::vector<double> layers;
  double head = 0;

  bool operator==(const LayerTimes&) const = default;
};

// Where stages run: each on a rank of its own (or several that do not belong together), or s and S-1-s on one rank, as
// under dualpipe and dualpipev.
enum class StagePlaces { kApart, kFolded };

// Layers per stage, at least one each, in stage order. Of all divisions into contiguous slices, embedding and head
// included, the one with the least time on the rank that takes longest; of these the one with the shortest longest
// stage; of these the least sum of the stages' squares; of these the one with fewer layers in earlier stages, which
// hold more activations. There are at least as many layers as stages; kFolded has an even number of stages.
//
// Exact, by dynamic programming over the layers that outer stages have taken.
std::vector<std::int64_t> balance(const LayerTimes& times, int num_stages, StagePlaces places);

}  // namespace pretrain_gpt
