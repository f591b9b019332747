// examples/pretrain_gpt/checkpoint/rank_exchange.h
//
// Texts between the first rank and all others, over a store. Every key is gone once it was read, so that a long run
// does not fill the store.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace pretrain_gpt {

class RankExchange {
 public:
  // Each rank makes the same calls in the same order. `store` is under a prefix that nothing else uses; a call waits at
  // most `timeout` for another rank. `set_waits` is told when such a wait begins and ends.
  RankExchange(
      c10::intrusive_ptr<c10d::Store> store, int rank, int world_size, std::chrono::milliseconds timeout,
      std::function<void(bool waits)> set_waits = [](bool) {});

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  bool is_first() const { return rank_ == 0; }

  // By rank, on the first rank; nothing elsewhere.
  std::vector<std::string> gather(const std::string& text);

  // texts.at(rank) of the first rank's.
  std::string scatter(const std::vector<std::string>& texts);

  // The first rank's, on all ranks.
  std::string broadcast(const std::string& text);

 private:
  std::string take(const std::string& key);

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_, world_size_;
  std::chrono::milliseconds timeout_;
  std::function<void(bool waits)> set_waits_;
  std::int64_t calls_ = 0;
};

}  // namespace pretrain_gpt
