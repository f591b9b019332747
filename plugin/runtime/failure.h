// plugin/runtime/failure.h
//
// One failure path: record (rank, action, cause), notify the others, throw. The first record wins: every rank reports
// the rank that failed first, and none blames itself for another's death.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

namespace dualpipe {

struct FailureRecord {
  int rank = 0;        // Of the rank that failed first, in its pipeline group; in ParallelGroups::world, if there is.
  std::string action;  // "3B2", "send 0F7 to rank 1", "construction", ...
  std::string cause;   // The original message.

  std::string to_string() const;  // "rank 2 failed in 3B2: <cause>"
  friend bool operator==(const FailureRecord&, const FailureRecord&) = default;
};

// Thrown on every rank of a pipeline that failed. On the rank that failed first it is nested in the original
// exception's handling: std::throw_with_nested, so that std::rethrow_if_nested gives the original back.
class PipelineError : public std::runtime_error {
 public:
  PipelineError(int rank, FailureRecord record);
  const FailureRecord& record() const { return record_; }

 private:
  FailureRecord record_;
};

// Where ranks tell each other. Thread-safe.
class FailureChannel {
 public:
  virtual ~FailureChannel() = default;
  // The first record ever given stays; returns that one.
  virtual FailureRecord record(const FailureRecord& failure) = 0;
  // The first record, if there is one. Never blocks for long (one round trip to a store).
  virtual std::optional<FailureRecord> first() = 0;
  // The first record as soon as there is one; nothing once `patience` is over. Polls, unless a channel knows better.
  virtual std::optional<FailureRecord> wait_for_first(std::chrono::milliseconds patience);
};

}  // namespace dualpipe
