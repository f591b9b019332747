// examples/pretrain_gpt/failures/board.h
//
// The key-value store that all ranks share, as far as watching over them needs it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace pretrain_gpt {

// One client; used by one thread. Calls throw where the store is gone, and block where its host does not answer.
class Board {
 public:
  virtual ~Board() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Sets the value unless the key has one; returns the one that stands.
  virtual std::string set_first(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0;  // Does not wait for the key.
  virtual std::int64_t add(const std::string& key, std::int64_t value) = 0;
};

// Another client. Throws where nobody answers in time.
using OpenBoard = std::function<std::unique_ptr<Board>(std::chrono::milliseconds timeout)>;

}  // namespace pretrain_gpt
