// examples/pretrain_gpt/failures/action_ring.h
//
// The last actions and messages of a rank under the trainer's own schedule: what was begun, and how far it came.
// Thread-safe. What is older than `capacity` entries is forgotten.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/failures/activity.h"

namespace pretrain_gpt {

enum class ActionKind : std::uint8_t { kCompute, kSend, kReceive, kCollective };

class ActionRing : public ActivityLog {
 public:
  using Id = std::uint64_t;

  ActionRing(int rank, int world_size, std::size_t capacity = 1024);

  // Handed to the transport. `peer` is a rank of the run.
  Id post(ActionKind kind, std::string action, std::optional<int> peer = {}, std::int64_t bytes = 0);
  // Compute begins; somebody begins to wait for a message.
  void start(Id id);
  void done(Id id);
  Id begin(ActionKind kind, std::string action);  // post() and start().

  Activity now() const override;
  void write(const std::filesystem::path& folder, const std::string& failure) const noexcept override;

 private:
  struct Entry {
    ActionKind kind;
    std::string action;
    std::optional<int> peer;
    std::int64_t bytes;
    double posted;  // Unix times in seconds.
    std::optional<double> started, done;
  };
  Entry* find(Id id);
  std::string text(const std::string& failure) const;
  static std::string line_of(const Entry& entry);

  const int rank_, world_size_;
  const std::size_t capacity_;
  mutable std::mutex mutex_;  // Guards what follows.
  std::deque<Entry> entries_;
  Id first_ = 0;          // Of entries_.front().
  std::vector<Id> open_;  // Started and not done.
  std::uint64_t changes_ = 0;
};

// A collective under way, until the end of the scope; one that is left by an exception stays the action at hand.
class CollectiveScope {
 public:
  CollectiveScope(ActionRing& ring, std::string what);
  ~CollectiveScope();
  CollectiveScope(const CollectiveScope&) = delete;
  CollectiveScope& operator=(const CollectiveScope&) = delete;

 private:
  ActionRing& ring_;
  ActionRing::Id id_;
  int exceptions_;
};

}  // namespace pretrain_gpt
