#include "examples/pretrain_gpt/failures/failure_watch.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <future>
#include <utility>

#include <nlohmann/json.hpp>

#include "examples/pretrain_gpt/failures/blame.h"
#include "examples/pretrain_gpt/failures/last_words.h"
#include "examples/pretrain_gpt/failures/old_logs.h"
#include "examples/pretrain_gpt/failures/within.h"

namespace pretrain_gpt {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

constexpr const char* kRecord = "failure";
constexpr const char* kReaders = "failure/readers";
constexpr const char* kFinished = "finished";
constexpr const char* kLeft = "left";

constexpr milliseconds kGuardInterval = 50ms;
constexpr milliseconds kBeatInterval = 200ms;    // At 64 ranks; longer beyond, for the store's sake.
constexpr milliseconds kEchoPatience = 800ms;    // How long a lost connection waits for its explanation.
constexpr milliseconds kRecordPatience = 500ms;  // For the store to take a record.
constexpr milliseconds kReaderPatience = 500ms;  // For others to read it, where only this rank hosts it.
constexpr milliseconds kStartPatience = 4000ms;  // The same while others may still be on their way.
constexpr milliseconds kJudgePause = 900ms;      // All watches beat in it.
constexpr milliseconds kKillDelay = 300ms;       // Of a stopped rank, so that the others find out by themselves.
constexpr milliseconds kSilentStore = 1200ms;    // Beyond the patience, where no record comes.
constexpr milliseconds kOneSignal = 50ms;        // A launcher and a terminal may both send the same.
constexpr milliseconds kStopPatience = 27s;      // From a signal to leaving without an end of the step.
constexpr milliseconds kPartingPatience = 2s;    // For a store that is no longer needed.
constexpr milliseconds kHostPatience = 10s;      // For ranks that have yet to hear that all are there, by a line.
constexpr milliseconds kLongWait = 24h;

std::string key_of_beat(int rank) { return fmt::format("beat/{}", rank); }

void wait_for_count(Board& board, const char* key, int count, milliseconds bound) {
  const auto end = std::chrono::steady_clock::now() + bound;
  while (board.add(key, 0) < count && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(20ms);
  }
}

clockid_t clock_of_this_thread() {
  clockid_t clock{};
  return ::pthread_getcpuclockid(::pthread_self(), &clock) == 0 ? clock : CLOCK_PROCESS_CPUTIME_ID;
}

milliseconds read_clock(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return std::chrono::duration_cast<milliseconds>(std::chrono::seconds(time.tv_sec) +
                                                  std::chrono::nanoseconds(time.tv_nsec));
}

// Nothing of what cannot be read.
std::optional<Beat> read_beat(Board& board, int rank) {
  const auto text = board.get(key_of_beat(rank));
  try {
    return text ? std::optional(beat_from_text(*text)) : std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

Beats read_beats(Board& board, int world_size) {
  Beats beats;
  for (int rank = 0; rank < world_size; ++rank) {
    beats.push_back(read_beat(board, rank));
  }
  return beats;
}

// What others have written: anybody who reaches the port can.
Failure read_failure(const std::string& text) {
  try {
    return failure_from_text(text);
  } catch (const std::exception&) {
    return {{}, ExitCode::kPeerLost, "", fmt::format("a failure was recorded that cannot be read: {:.200}", text)};
  }
}

Descriptor block_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return Descriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

std::string own_place(const Standing& standing) { return standing.place == "the start" ? "" : standing.place; }

}  // namespace

void report_from_outside(const OpenBoard& open_board, const Failure& failure, bool counts) {
  within(2s, [=] {
    const std::unique_ptr<Board> board = open_board(2s);
    const std::string record = board->set_first(kRecord, to_text(failure));
    if (counts) {
      board->add(kReaders, 1);
    }
    return record;
  });
}

FailureWatch::FailureWatch(int rank, int world_size)
    : rank_(rank),
      world_size_(world_size),
      changed_at_(Clock::now().time_since_epoch().count()),
      answered_at_(changed_at_.load()),
      work_(clock_of_this_thread()),
      signals_(block_signals()) {
  guard_ = std::thread([this] { guard(); });
}

// The guard keeps the bounds as long as the other thread may be waiting for a store.
FailureWatch::~FailureWatch() {
  beat_ends_ = true;
  if (beat_.joinable()) {
    beat_.join();
  }
  guard_ends_ = true;
  guard_.join();
}

void FailureWatch::set_folder(std::filesystem::path folder) {
  remove_old_logs(folder, rank_, world_size_);
  const std::lock_guard lock(mutex_);
  folder_ = std::move(folder);
}

void FailureWatch::join(WatchLinks links) {
  if (world_size_ == 1) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    links_ = std::move(links);
  }
  answered_at_ = Clock::now().time_since_epoch().count();
  joined_ = true;
  beat_ = std::thread([this] { beat(); });
}

void FailureWatch::attach(std::unique_ptr<Lifeline> lifeline) {
  if (lifeline) {
    const std::lock_guard lock(mutex_);
    links_.lifeline = std::move(lifeline);
  }
}

void FailureWatch::set_host(const ProcessIdentity& process) {
  const std::lock_guard lock(mutex_);
  links_.host = process;
}

// --- the thread with the store client

void FailureWatch::beat() {
  const milliseconds interval = kBeatInterval * scale();
  const ProcessIdentity process = this_process();
  try {
    const std::unique_ptr<Board> board = links_.open_board(kLongWait);
    for (std::uint64_t number = 0; !beat_ends_ && !finished_; ++number) {
      beat_once(*board, number, process);
      if (still() > progress_.patience()) {
        judge(*board, number, process);
      }
      std::this_thread::sleep_for(interval);
    }
  } catch (const std::exception&) {
    std::this_thread::sleep_for(kEchoPatience);  // A broken line says more, and rank 0's farewell all.
    if (beat_ends_ || finished_) {
      return;
    }
    const std::string host = links_.rank_0_is_host ? "rank 0" : "the launcher";
    const std::optional<int> rank = links_.rank_0_is_host ? std::optional(0) : std::nullopt;
    claim_exit();
    leave({rank, ExitCode::kPeerLost, "",
           fmt::format("the store that all ranks share is gone: {}, which hosts it, has ended", host)},
          "");
  }
}

void FailureWatch::beat_once(Board& board, std::uint64_t number, const ProcessIdentity& process) {
  board.set(key_of_beat(rank_), to_text(Beat{number, progress_.now(), still(), process, read_clock(work_)}));
  look_for_record(board);
  answered_at_ = Clock::now().time_since_epoch().count();
}

void FailureWatch::look_for_record(Board& board) {
  if (const auto record = board.get(kRecord)) {
    if (!links_.is_host) {
      board.add(kReaders, 1);
    }
    claim_exit();
    leave(read_failure(*record), "");
  }
}

// Beats on meanwhile: others judge too, and must not take this rank for a silent one.
void FailureWatch::judge(Board& board, std::uint64_t number, const ProcessIdentity& process) {
  const milliseconds patience = progress_.patience();
  const Beats before = read_beats(board, world_size_);
  const Clock::time_point end = Clock::now() + kJudgePause * scale();
  while (Clock::now() < end) {
    std::this_thread::sleep_for(kBeatInterval * scale());
    beat_once(board, ++number, process);
  }
  fail(blame(before, read_beats(board, world_size_), rank_, patience));
}

milliseconds FailureWatch::still() const {
  return std::chrono::duration_cast<milliseconds>(Clock::now().time_since_epoch() - Clock::duration(changed_at_));
}

// --- the thread that waits for nobody

void FailureWatch::guard() {
  try {
    while (!guard_ends_) {
      guard_once();
    }
  } catch (const std::exception& error) {
    exit_with_error(rank_, fmt::format("the watch of this rank has failed: {}", error.what()), ExitCode::kException);
  }
}

void FailureWatch::guard_once() {
  std::vector<int> descriptors{signals_.get()};
  {
    const std::lock_guard lock(mutex_);
    if (links_.lifeline) {
      links_.lifeline->add_to(descriptors);
    }
  }
  std::vector<pollfd> waiting;
  for (const int descriptor : descriptors) {
    waiting.push_back({descriptor, POLLIN, 0});
  }
  ::poll(waiting.data(), waiting.size(), static_cast<int>(kGuardInterval.count()));
  note_progress();
  hear_signals();
  hear_lifeline();
  if (!finished_) {
    keep_bounds();
  }
}

void FailureWatch::note_progress() {
  const std::uint64_t changes = progress_.now().changes;
  if (changes != changes_) {
    changes_ = changes;
    changed_at_ = Clock::now().time_since_epoch().count();
  }
}

void FailureWatch::hear_signals() {
  signalfd_siginfo signal{};
  while (::read(signals_.get(), &signal, sizeof signal) == static_cast<ssize_t>(sizeof signal)) {
    on_signal();
  }
}

void FailureWatch::on_signal() {
  if (finished_) {
    hurried_ = true;
    return;
  }
  const Clock::time_point now = Clock::now();
  if (first_signal_ && now - *first_signal_ > kOneSignal) {
    leave_preempted("left at a second signal; nothing was saved since the last checkpoint");
  }
  first_signal_ = first_signal_.value_or(now);
  stop_requested_ = true;
  if (!training_) {
    leave_preempted("a signal asked to stop before the first step");
  }
}

void FailureWatch::hear_lifeline() {
  LifelineNews news;
  {
    const std::lock_guard lock(mutex_);
    if (links_.lifeline) {
      news = links_.lifeline->news();
    }
  }
  finished_ = finished_ || news.farewell;
  if (finished_) {
    return;
  }
  if (news.words) {
    claim_exit();
    leave(read_failure(*news.words), "");
  }
  if (!news.lost.empty()) {
    lost(news.lost.front());
  }
}

// A rank that held the others up has been ended by one of them.
void FailureWatch::lost(int rank) {
  const bool has_store = rank == 0 && links_.rank_0_is_host;
  const bool held_up = still() > progress_.patience();
  Failure failure{rank, held_up ? ExitCode::kTimeout : ExitCode::kPeerLost, "",
                  held_up ? "it held the others up, and has been ended" : "its process has ended without a word"};
  failure.message += has_store ? ", and with it the store that all ranks share" : "";
  claim_exit();
  leave(has_store ? failure : recorded(failure, /*looks_up_place=*/true), "");
}

void FailureWatch::keep_bounds() {
  if (first_signal_ && Clock::now() - *first_signal_ > kStopPatience) {
    leave_preempted("a signal asked to stop, and the step did not end in time; nothing was saved");
  }
  const auto silence = Clock::now().time_since_epoch() - Clock::duration(answered_at_);
  const milliseconds bound = kSilentStore * scale();
  if (joined_ && still() > progress_.patience() + bound && silence > bound) {
    const std::optional<int> host = links_.rank_0_is_host ? std::optional(0) : std::nullopt;
    claim_exit();
    Failure failure{host, ExitCode::kTimeout, "",
                    "the store that all ranks share does not answer: its host is stopped or lost"};
    if (const std::lock_guard lock(mutex_); links_.host) {
      failure.stopped.push_back(*links_.host);
    }
    leave(failure, fmt::format("no progress in {}", progress_.now().place));
  }
  if (joined_ || still() <= progress_.patience()) {
    return;
  }
  if (world_size_ > 1) {
    fail({rank_, ExitCode::kStart, "", "the ranks did not meet in time: the store that they share does not answer"});
  }
  fail({rank_, ExitCode::kTimeout, progress_.now().place, "it got no further within step_timeout"});
}

void FailureWatch::leave_preempted(const std::string& why) {
  fail({rank_, ExitCode::kPreempted, own_place(progress_.now()), why});
}

// --- leaving

void FailureWatch::claim_exit() {
  const std::thread::id self = std::this_thread::get_id();
  std::thread::id other;
  if (!exits_.compare_exchange_strong(other, self) && other != self) {
    std::this_thread::sleep_for(1h);
  }
}

// The record that stands after `failure` was offered; `failure` where the store is silent.
Failure FailureWatch::recorded(const Failure& failure, bool looks_up_place) const {
  if (!joined_) {
    return failure;
  }
  const auto offer = [open = links_.open_board, failure, looks_up_place] {
    // A client of its own: another thread's may be in the middle of a call that has failed.
    const std::unique_ptr<Board> board = open(kRecordPatience);
    Failure offered = failure;
    if (looks_up_place && failure.rank) {
      const auto beat = read_beat(*board, *failure.rank);
      offered.place = beat ? own_place(beat->standing) : "";
    }
    return board->set_first(kRecord, to_text(offered));
  };
  const std::optional<std::string> record = within(kRecordPatience, offer);
  return record ? read_failure(*record) : failure;
}

void FailureWatch::fail(const std::exception& error) {
  const auto* echo = dynamic_cast<const PeerLost*>(&error);
  const auto* action = dynamic_cast<const ActionError*>(&error);
  Standing standing = progress_.now();
  if (echo != nullptr) {
    std::this_thread::sleep_for(kEchoPatience);  // The watch leaves meanwhile, if there is a record.
    const std::string why =
        echo->peer() ? error.what() : fmt::format("rank {} lost the others: {}", rank_, error.what());
    fail({echo->peer(), ExitCode::kPeerLost, "", why}, error.what());
  }
  if (action != nullptr && standing.place.find(action->action()) == std::string::npos) {
    standing.place += ", " + explain_action(action->action());
  }
  const ExitCode code = exit_code_of(error);
  const auto rank =
      code == ExitCode::kNotFinite ? std::nullopt : std::optional(rank_);  // All ranks find that together.
  fail({rank, code, own_place(standing), error.what()}, error.what());
}

void FailureWatch::fail(Failure failure, const std::string& own) {
  claim_exit();
  leave(recorded(failure, failure.place.empty() && failure.rank != rank_), own);
}

void FailureWatch::leave(const Failure& failure, const std::string& own) {
  tell_others(failure);
  if (!failure.stopped.empty()) {
    std::this_thread::sleep_for(kKillDelay);
  }
  for (const ProcessIdentity& process : failure.stopped) {
    end_if_here(process);
  }
  std::function<void()> write_log;
  if (const std::lock_guard lock(mutex_); !folder_.empty()) {
    write_log = [this, folder = folder_, text = to_text(failure)] { progress_.write_log(folder, text); };
  }
  exit_with_error(rank_, describe(failure, rank_, own), exit_code_for(failure, rank_), write_log);
}

void FailureWatch::tell_others(const Failure& failure) {
  if (!joined_) {
    return;
  }
  bool told = false;
  if (const std::lock_guard lock(mutex_); links_.lifeline) {
    links_.lifeline->tell_all(to_text(failure));
    told = links_.lifeline->reaches_all();
  }
  if (links_.is_host && !told) {
    const bool is_late = training_ || failure.code == ExitCode::kPreempted;
    const milliseconds patience = is_late ? kReaderPatience : kStartPatience;
    within(patience, [open = links_.open_board, count = world_size_, patience] {
      const std::unique_ptr<Board> board = open(kRecordPatience);
      board->add(kReaders, 1);
      wait_for_count(*board, kReaders, count, patience);
      return true;
    });
  }
}

// --- the regular end

void FailureWatch::finish(milliseconds patience, ExitCode code, const std::string& message) {
  if (world_size_ > 1) {
    progress_.enter("the end", patience, /*waits=*/true);
    wait_until_all_are_here();
    part();
  }
  claim_exit();
  if (code == ExitCode::kOk) {
    exit_done();
  }
  exit_with_error(rank_, message, code);
}

// Rank 0 says farewell once all are here, and takes the store with it: who hears that need not hear it from the store.
void FailureWatch::wait_until_all_are_here() {
  try {
    auto all_are_here = aside([open = links_.open_board, count = world_size_] {
      const std::unique_ptr<Board> board = open(kLongWait);
      board->add(kFinished, 1);
      wait_for_count(*board, kFinished, count, kLongWait);
      return true;
    });
    while (!finished_ && all_are_here.wait_for(20ms) != std::future_status::ready) {
    }
    finished_ = finished_ || all_are_here.get();
    return;
  } catch (const std::exception&) {
    std::this_thread::sleep_for(kEchoPatience);
  }
  if (!finished_) {
    fail(PeerLost("the store that all ranks share was lost at the end of the run"));
  }
}

// The host waits for all to know it; longer for those that hear of it from its store alone.
void FailureWatch::part() {
  milliseconds bound = kPartingPatience;
  {
    const std::lock_guard lock(mutex_);
    const bool has_lines = links_.lifeline && links_.lifeline->reaches_all();
    if (links_.lifeline) {
      links_.lifeline->say_farewell();
    }
    if (links_.is_host) {
      bound = has_lines ? kHostPatience : std::max(kHostPatience, progress_.patience());
    }
  }
  try {
    const auto parted = aside([open = links_.open_board, count = links_.is_host ? world_size_ : 0, bound] {
      const std::unique_ptr<Board> board = open(bound);
      board->add(kLeft, 1);
      wait_for_count(*board, kLeft, count, bound);
    });
    const Clock::time_point end = Clock::now() + bound;
    while (!hurried_ && Clock::now() < end && parted.wait_for(20ms) != std::future_status::ready) {
    }
  } catch (const std::system_error&) {
    return;  // No thread is to be had: the host waits for this rank in vain.
  }
}

}  // namespace pretrain_gpt
