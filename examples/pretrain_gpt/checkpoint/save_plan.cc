#include "examples/pretrain_gpt/checkpoint/save_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "examples/pretrain_gpt/checkpoint/checkpoint_error.h"
#include "examples/pretrain_gpt/checkpoint/safetensors_header.h"

namespace pretrain_gpt {
namespace {

using nlohmann::json;

// Pieces of one copy: (rank, index).
struct Copy {
  std::vector<std::pair<std::size_t, std::size_t>> pieces;
};

struct Part {
  std::int64_t bytes = 0;
  std::map<int, Copy> copies;  // By set.
};

using Key = std::pair<std::string, std::string>;  // Name, part.

std::int64_t bytes_of(const HeldBox& held) {
  return count_elements(held.box.size).value() * dtype_bytes(held.dtype).value();
}

std::map<Key, Part> parts_of(const std::vector<std::vector<HeldBox>>& by_rank) {
  std::map<Key, Part> parts;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (std::size_t index = 0; index < by_rank[rank].size(); ++index) {
      const HeldBox& held = by_rank[rank][index];
      Part& part = parts[{held.name, held.part}];
      part.bytes += bytes_of(held);
      part.copies[held.set].pieces.emplace_back(rank, index);
    }
  }
  return parts;
}

std::vector<const Part*> largest_first(const std::map<Key, Part>& parts) {
  std::vector<std::tuple<std::int64_t, Key, const Part*>> order;
  for (const auto& [key, part] : parts) {
    order.emplace_back(-part.bytes / static_cast<std::int64_t>(part.copies.size()), key, &part);
  }
  std::sort(order.begin(), order.end());
  std::vector<const Part*> sorted;
  for (const auto& [bytes, key, part] : order) {
    sorted.push_back(part);
  }
  return sorted;
}

// The most that a rank of the copy would have to write then.
std::int64_t load_with(const Copy& copy, const std::vector<std::vector<HeldBox>>& by_rank,
                       const std::vector<std::int64_t>& loads) {
  std::map<std::size_t, std::int64_t> added;
  std::int64_t most = 0;
  for (const auto& [rank, index] : copy.pieces) {
    added[rank] += bytes_of(by_rank[rank][index]);
    most = std::max(most, loads[rank] + added[rank]);
  }
  return most;
}

const Copy& least_loaded(const Part& part, const std::vector<std::vector<HeldBox>>& by_rank,
                         const std::vector<std::int64_t>& loads) {
  return std::min_element(part.copies.begin(), part.copies.end(),
                          [&](const auto& a, const auto& b) {
                            return load_with(a.second, by_rank, loads) < load_with(b.second, by_rank, loads);
                          })
      ->second;
}

void check_complete(const std::map<std::string, ManifestTensor>& tensors) {
  for (const auto& [name, tensor] : tensors) {
    std::vector<Box> boxes;
    for (const ManifestPiece& piece : tensor.pieces) {
      boxes.push_back(piece.box);
    }
    if (!tile(tensor.shape, std::move(boxes))) {
      throw CheckpointError("checkpoint", fmt::format("the ranks must hold every element of {}, got {} pieces that do "
                                                      "not make it up",
                                                      name, tensor.pieces.size()));
    }
  }
}

}  // namespace

std::string print_held(const std::vector<HeldBox>& held) {
  json list = json::array();
  for (const HeldBox& one : held) {
    list.push_back({one.name, one.dtype, one.shape, one.box.start, one.box.size, one.part, one.set});
  }
  return list.dump();
}

std::vector<HeldBox> parse_held(const std::string& text) {
  std::vector<HeldBox> held;
  for (const json& one : json::parse(text)) {
    held.push_back({one.at(0), one.at(1), one.at(2), {one.at(3), one.at(4)}, one.at(5), one.at(6)});
  }
  return held;
}

std::vector<std::vector<std::size_t>> divide_writing(const std::vector<std::vector<HeldBox>>& by_rank) {
  std::vector<std::vector<std::size_t>> plan(by_rank.size());
  std::vector<std::int64_t> loads(by_rank.size(), 0);
  const std::map<Key, Part> parts = parts_of(by_rank);
  for (const Part* part : largest_first(parts)) {
    for (const auto& [rank, index] : least_loaded(*part, by_rank, loads).pieces) {
      plan[rank].push_back(index);
      loads[rank] += bytes_of(by_rank[rank][index]);
    }
  }
  for (std::vector<std::size_t>& indices : plan) {
    std::sort(indices.begin(), indices.end());
  }
  check_complete(planned_tensors(by_rank, plan));
  return plan;
}

std::string print_indices(const std::vector<std::size_t>& indices) { return json(indices).dump(); }

std::vector<std::size_t> parse_indices(const std::string& text) { return json::parse(text); }

std::string rank_file_name(int rank) { return fmt::format("rank_{:05}.safetensors", rank); }

std::map<std::string, ManifestTensor> planned_tensors(const std::vector<std::vector<HeldBox>>& by_rank,
                                                      const std::vector<std::vector<std::size_t>>& plan) {
  std::map<std::string, ManifestTensor> tensors;
  std::size_t file = 0;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    for (const std::size_t index : plan[rank]) {
      const HeldBox& held = by_rank[rank][index];
      ManifestTensor& tensor = tensors[held.name];
      tensor.dtype = held.dtype;
      tensor.shape = held.shape;
      tensor.pieces.push_back({file, held.box});
    }
    file += plan[rank].empty() ? 0 : 1;
  }
  return tensors;
}

}  // namespace pretrain_gpt
