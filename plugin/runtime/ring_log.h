// plugin/runtime/ring_log.h
//
// The last actions and messages of a rank: what was begun, and how far it came. Written when a run fails, for
// `dualpipe postmortem`, and asked by a watchdog for the action at hand.
//
// Thread-safe; an entry costs a lock and two clock readings. What is older than `capacity` entries is forgotten.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace dualpipe {

enum class RingKind : std::uint8_t { kCompute, kSend, kReceive, kCollective };

// Unix times in seconds. A message is posted when it is handed to the transport or its buffers are, started when
// somebody begins to wait for it, done when that wait is over. Compute is posted and started at once.
struct RingEntry {
  RingKind kind = RingKind::kCompute;
  std::string action;       // "3B2", "3SEND_B2", "the sum of gradients".
  std::optional<int> peer;  // Of a message; a rank of the run.
  std::int64_t bytes = 0;
  double posted = 0;
  std::optional<double> started;
  std::optional<double> done;
};

// What a rank is at: the innermost entry that is started and not done.
struct RingStanding {
  std::string action;  // Empty between actions.
  bool waits = false;  // For another rank; for `peer`, or for any of a group.
  std::optional<int> peer;
  std::uint64_t changes = 0;  // Grows whenever an entry is posted, started or done.
};

class RingLog {
 public:
  using Id = std::uint64_t;

  // `rank` of `world_size` in the run; `numbers` are the run's numbers of the pipeline's ranks, by which peers are
  // given (empty: the same).
  RingLog(int rank, int world_size, std::vector<int> numbers = {}, std::size_t capacity = 1024);

  Id post(RingKind kind, std::string action, std::optional<int> peer = {}, std::int64_t bytes = 0);
  // All of them may name an entry that is forgotten.
  void set_bytes(Id id, std::int64_t bytes);
  void start(Id id);
  void done(Id id);
  Id begin(RingKind kind, std::string action);  // post() and start().

  std::vector<RingEntry> entries() const;  // Oldest first.
  RingStanding standing() const;
  int rank() const { return rank_; }

  // <folder>/ring_rank<R>.jsonl: a header, then a line per entry (docs/run_files.md). `failure` is "" or a JSON
  // object with what is known of "rank", "place" and "message".
  // Returns false where it cannot be written.
  bool write(const std::filesystem::path& folder, const std::string& failure) const noexcept;

 private:
  RingEntry* find(Id id);

  const int rank_, world_size_;
  const std::vector<int> numbers_;
  const std::size_t capacity_;
  mutable std::mutex mutex_;  // Guards what follows.
  std::deque<RingEntry> entries_;
  Id first_ = 0;  // Of entries_.front().
  std::vector<Id> open_;
  std::uint64_t changes_ = 0;
};

// A failure as write() takes it.
std::string failure_json(int rank, const std::string& action, const std::string& cause);

// begin() now, done() at the end of the scope, unless that is left by an exception: then the entry stays at hand.
class RingScope {
 public:
  RingScope(RingLog& log, RingKind kind, std::string action);
  ~RingScope();
  RingScope(const RingScope&) = delete;
  RingScope& operator=(const RingScope&) = delete;

 private:
  RingLog& log_;
  RingLog::Id id_;
  int exceptions_;
};

}  // namespace dualpipe
