// examples/pretrain_gpt/failures/failure_watch.h
//
// One failure path for all ranks: the first that fails leaves a record in the shared store, and all leave with that
// record's message and an exit code of their own (exit_code.h), wherever they are waiting:
//
//   a death or an exception   within 2 s. The line that rank 0 holds to every rank (lifeline.h) breaks with a process.
//   a hang                    within step_timeout + 2 s. A rank that got no further for so long looks at what the
//                             watches of all ranks write and says who holds the others up (blame.h).
//   SIGTERM, SIGUSR1          stop_requested(), from which the ranks agree at the end of a step. Where that does not
//                             come, or at a second signal, the rank leaves at once.
//
// Two threads watch: one with a store client of its own writes what this rank is doing and looks for a record; the
// other, which never waits for anybody, hears signals and broken lines and keeps the bounds where the store is silent.
// Leaving runs no destructors: work that is under way is not unwound.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "examples/pretrain_gpt/failures/board.h"
#include "examples/pretrain_gpt/failures/failure.h"
#include "examples/pretrain_gpt/failures/lifeline.h"
#include "examples/pretrain_gpt/failures/progress.h"

namespace pretrain_gpt {

// How a rank reaches the others.
struct WatchLinks {
  OpenBoard open_board;
  bool is_host = false;                      // This rank hosts the store: the others need it as long as they use that.
  bool rank_0_is_host = false;               // Else a launcher does.
  std::unique_ptr<Lifeline> lifeline;        // May be null.
  std::optional<ProcessIdentity> host = {};  // Of the store, where that is a rank.
};

class FailureWatch {
 public:
  // Signals are heard from now on, and end the process until begin_training(). To be made before any other thread, by
  // the thread that trains: SIGTERM and SIGUSR1 stay blocked in it and in all that it starts.
  FailureWatch(int rank, int world_size);
  ~FailureWatch();

  // Where logs are written on failure; a folder that is there. Those of an earlier attempt are removed.
  void set_folder(std::filesystem::path folder);
  // From now on failures of others are heard of.
  void join(WatchLinks links);
  // A line that was found later; nothing where it is null.
  void attach(std::unique_ptr<Lifeline> lifeline);
  void set_host(const ProcessIdentity& process);  // Of the store, where that is a rank.
  // From now on a signal asks for a stop instead of ending the process.
  void begin_training() { training_ = true; }

  Progress& progress() { return progress_; }
  bool stop_requested() const { return stop_requested_; }

  // Records the failure unless another rank has (whose message is then shown too) and ends the process. An error that
  // may be the echo of another rank's failure waits a moment for the record that explains it.
  [[noreturn]] void fail(const std::exception& error);
  [[noreturn]] void fail(Failure failure, const std::string& own = "");

  // The regular end, collective: ends the process once every rank is here, the host of the store last. `patience`: for
  // the others to come. With kOk as exit_done(), else as exit_with_error() (last_words.h). From the moment at which all
  // are here nothing is a failure any more, and the rest takes seconds, whatever the store and the others do.
  [[noreturn]] void finish(std::chrono::milliseconds patience, ExitCode code = ExitCode::kOk,
                           const std::string& message = "");

 private:
  using Clock = std::chrono::steady_clock;

  void beat();   // The thread with the store client.
  void guard();  // The other.
  void guard_once();
  void beat_once(Board& board, std::uint64_t number, const ProcessIdentity& process);
  void look_for_record(Board& board);
  void note_progress();
  std::chrono::milliseconds still() const;
  int scale() const { return std::max(1, world_size_ / 64); }  // Of intervals, for the store's sake.
  [[noreturn]] void judge(Board& board, std::uint64_t number, const ProcessIdentity& process);

  void hear_signals();
  void on_signal();
  void hear_lifeline();
  void keep_bounds();
  [[noreturn]] void leave_preempted(const std::string& why);
  [[noreturn]] void lost(int rank);

  Failure recorded(const Failure& failure, bool looks_up_place) const;
  void claim_exit();  // One thread ends the process; another that wants to waits for that.
  [[noreturn]] void leave(const Failure& failure, const std::string& own);
  void tell_others(const Failure& failure);

  void wait_until_all_are_here();
  void part();

  const int rank_, world_size_;
  Progress progress_;
  WatchLinks links_;
  mutable std::mutex mutex_;  // Guards links_.lifeline, what that does, links_.host and folder_.
  std::filesystem::path folder_;
  std::atomic<bool> joined_{false}, training_{false}, stop_requested_{false};
  std::atomic<bool> finished_{false};  // Every rank has come to the end.
  std::atomic<bool> hurried_{false};   // By a signal behind that.
  std::atomic<bool> beat_ends_{false}, guard_ends_{false};
  std::atomic<std::thread::id> exits_{};              // The thread that ends the process.
  std::atomic<Clock::rep> changed_at_, answered_at_;  // Of clock readings: this rank's standing; the store.
  const clockid_t work_;                              // Processor time of the thread that trains, which made this.
  std::uint64_t changes_ = 0;                         // The guard's: when it last looked.
  std::optional<Clock::time_point> first_signal_;     // The guard's.
  Descriptor signals_;
  std::thread guard_, beat_;
};

// Has `failure` recorded where this process cannot take part; gives up after a moment. `counts`: it is one of those
// that the host of the store waits for, and is not going to read the record.
void report_from_outside(const OpenBoard& open_board, const Failure& failure, bool counts = false);

}  // namespace pretrain_gpt
