// examples/pretrain_gpt/failures/progress.h
//
// How far this rank has come, told by the thread that trains and read by those that watch.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>

#include "examples/pretrain_gpt/failures/activity.h"

namespace pretrain_gpt {

struct Standing {
  std::string place;          // "step 12, 2B3 (stage 2, micro-batch 3)"
  bool waits = false;         // For another rank: for `peer`, or, without one, for any of a group.
  std::optional<int> peer;    // A rank of the run.
  std::uint64_t changes = 0;  // Grows with every step forward.

  friend bool operator==(const Standing&, const Standing&) = default;
};

// Thread-safe.
class Progress {
 public:
  // "step 12". A rank that gets no further for `patience` is held up. `waits`: for the others, where the schedule's log
  // tells of no action.
  void enter(std::string part, std::chrono::milliseconds patience, bool waits = false);
  // The same part, in which this rank begins or ends to wait for the others; each is a step forward.
  void set_waits(bool waits);
  // What the schedule does inside of that; null: nothing is known. `log` outlives its use here.
  void follow(const ActivityLog* log);

  Standing now() const;
  std::chrono::milliseconds patience() const;
  // The log of the schedule, where there is one.
  void write_log(const std::filesystem::path& folder, const std::string& failure) const noexcept;

 private:
  mutable std::mutex mutex_;  // Guards what follows.
  std::string part_ = "the start";
  std::chrono::milliseconds patience_ = std::chrono::hours(24);
  bool waits_ = false;
  const ActivityLog* log_ = nullptr;
  std::uint64_t entered_ = 0;
};

}  // namespace pretrain_gpt
