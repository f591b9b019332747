#include "examples/pretrain_gpt/data/gpt_samples.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

namespace pretrain_gpt {
namespace {

// Fisher-Yates with an explicit generator: std::shuffle's order differs between standard libraries.
std::vector<std::int64_t> shuffled_order(std::int64_t count, std::uint64_t seed, std::int64_t pass) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(pass));
  for (std::size_t left = order.size(); left > 1; --left) {
    std::swap(order[left - 1], order[random() % left]);
  }
  return order;
}

}  // namespace

GptSamples::GptSamples(std::shared_ptr<const IndexedDataset> dataset, std::int64_t seq_length, std::int64_t first,
                       std::int64_t count, std::uint64_t seed)
    : dataset_(std::move(dataset)), seq_length_(seq_length), first_(first), count_(count), seed_(seed) {}

void GptSamples::read(std::int64_t n, std::span<std::int64_t> into) {
  dataset_->read((first_ + shuffled(n)) * seq_length_, into);
}

std::int64_t GptSamples::samples_of(const IndexedDataset& dataset, std::int64_t seq_length) {
  return std::max<std::int64_t>(0, dataset.num_tokens() - 1) / seq_length;
}

std::int64_t GptSamples::shuffled(std::int64_t n) {
  if (n / count_ != pass_) {
    pass_ = n / count_;
    order_ = shuffled_order(count_, seed_, pass_);
  }
  return order_[static_cast<std::size_t>(n % count_)];
}

}  // namespace pretrain_gpt
