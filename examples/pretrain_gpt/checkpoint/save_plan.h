// examples/pretrain_gpt/checkpoint/save_plan.h
//
// Who writes what: every element of the model and of the optimizer's state once, though several ranks hold it. No
// LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/checkpoint/box.h"
#include "examples/pretrain_gpt/checkpoint/manifest.h"

namespace pretrain_gpt {

// A piece of a tensor that a rank holds. Pieces of one name, part and set make up that part together; sets are copies
// of each other.
struct HeldBox {
  std::string name, dtype;
  Shape shape;  // Of the whole tensor.
  Box box;
  std::string part;  // Of a tensor that is divided, the same for all its copies: "", "tp1".
  int set = 0;       // The lowest rank of those that hold the copy together.
};

std::string print_held(const std::vector<HeldBox>& held);
std::vector<HeldBox> parse_held(const std::string& text);

// Indices into each rank's own list. Of the copies of a part the one whose ranks have least to write so far; the
// largest parts come first. Throws CheckpointError where what is held does not make up a tensor.
std::vector<std::vector<std::size_t>> divide_writing(const std::vector<std::vector<HeldBox>>& by_rank);

std::string print_indices(const std::vector<std::size_t>& indices);
std::vector<std::size_t> parse_indices(const std::string& text);

// rank_00003.safetensors
std::string rank_file_name(int rank);

// The manifest's tensors; its files are those of ranks that write anything, in the order of ranks.
std::map<std::string, ManifestTensor> planned_tensors(const std::vector<std::vector<HeldBox>>& by_rank,
                                                      const std::vector<std::vector<std::size_t>>& plan);

}  // namespace pretrain_gpt
