// examples/pretrain_gpt/failures/activity.h
//
// What a rank is doing, for those who watch it: the action at hand, whom it waits for, and the log of its last actions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace pretrain_gpt {

struct Activity {
  std::string action;         // "2B3", "2RECV_F3", "a sum over ranks"; empty between actions.
  bool waits = false;         // For another rank: for `peer`, or, without one, for any of a group.
  std::optional<int> peer;    // A rank of the run.
  std::uint64_t changes = 0;  // Grows whenever an action begins or ends.
};

// Of one rank. Thread-safe.
class ActivityLog {
 public:
  virtual ~ActivityLog() = default;
  virtual Activity now() const = 0;
  // Writes the last actions to <folder>/ring_rank<R>.jsonl (docs/run_files.md), with the failure that ended them: "" or
  // a JSON object with what is known of "rank", "place" and "message". Never throws: it is called while a process ends.
  virtual void write(const std::filesystem::path& folder, const std::string& failure) const noexcept = 0;
};

}  // namespace pretrain_gpt
