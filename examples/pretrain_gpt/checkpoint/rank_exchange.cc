#include "examples/pretrain_gpt/checkpoint/rank_exchange.h"

#include <fmt/format.h>

#include <utility>

namespace pretrain_gpt {

RankExchange::RankExchange(c10::intrusive_ptr<c10d::Store> store, int rank, int world_size,
                           std::chrono::milliseconds timeout, std::function<void(bool waits)> set_waits)
    : store_(std::move(store)),
      rank_(rank),
      world_size_(world_size),
      timeout_(timeout),
      set_waits_(std::move(set_waits)) {}

std::vector<std::string> RankExchange::gather(const std::string& text) {
  const std::int64_t call = calls_++;
  if (!is_first()) {
    store_->set(fmt::format("{}/{}", call, rank_), text);
    return {};
  }
  std::vector<std::string> texts{text};
  for (int other = 1; other < world_size_; ++other) {
    texts.push_back(take(fmt::format("{}/{}", call, other)));
  }
  return texts;
}

std::string RankExchange::scatter(const std::vector<std::string>& texts) {
  const std::int64_t call = calls_++;
  if (!is_first()) {
    return take(fmt::format("{}/{}", call, rank_));
  }
  for (int other = 1; other < world_size_; ++other) {
    store_->set(fmt::format("{}/{}", call, other), texts.at(static_cast<std::size_t>(other)));
  }
  return texts.front();
}

std::string RankExchange::broadcast(const std::string& text) {
  return scatter(is_first() ? std::vector<std::string>(static_cast<std::size_t>(world_size_), text)
                            : std::vector<std::string>());
}

std::string RankExchange::take(const std::string& key) {
  set_waits_(true);
  store_->wait({key}, timeout_);
  set_waits_(false);
  std::string text = store_->get_to_str(key);
  store_->deleteKey(key);
  return text;
}

}  // namespace pretrain_gpt
