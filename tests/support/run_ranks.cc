#include "tests/support/run_ranks.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace dualpipe {
namespace {

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    return caught.what();
  } catch (...) {
    return "not a std::exception";
  }
}

std::vector<Rank> loopback_ranks(int count, const RunOptions& options) {
  auto transports = make_loopback(count, {options.timeout, options.delay});
  auto failures = make_loopback_failure_channel();
  std::vector<Rank> ranks(count);
  for (int i = 0; i < count; ++i) {
    ranks[i] = Rank{i, count, transports[i], failures, {}, {}};
  }
  return ranks;
}

// The threads of one call, and what became of them.
class Crew {
 public:
  Crew(std::vector<Rank> ranks, RankBody body, bool abort_others)
      : ranks_(std::move(ranks)),
        body_(std::move(body)),
        abort_others_(abort_others),
        errors_(ranks_.size()),
        back_(ranks_.size()) {}

  void run(std::chrono::milliseconds bound, std::chrono::milliseconds grace) {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      threads.emplace_back([this, i] { run_one(i); });
    }
    wait_for_all(bound, grace);
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  const std::vector<std::exception_ptr>& errors() const { return errors_; }

  void rethrow_first() const {
    if (!late_.empty()) {
      throw std::runtime_error(late_);
    }
    if (!first_) {
      return;
    }
    try {
      std::rethrow_exception(errors_[*first_]);
    } catch (...) {
      std::throw_with_nested(RankError(static_cast<int>(*first_), message_of(errors_[*first_])));
    }
  }

 private:
  void run_one(std::size_t index) {
    at::set_num_threads(1);
    std::exception_ptr error;
    try {
      body_(ranks_[index]);
      if (abort_others_ && ::testing::Test::HasFatalFailure()) {
        throw std::runtime_error("an assertion failed, see above");
      }
    } catch (...) {
      error = std::current_exception();
    }
    come_back(index, error);
  }

  void come_back(std::size_t index, const std::exception_ptr& error) {
    std::lock_guard lock(mutex_);
    back_[index] = true;
    errors_[index] = error;
    if (error && !first_) {
      first_ = index;
      if (abort_others_) {
        abort_all("rank " + std::to_string(index) + " of the test threw: " + message_of(error));
      }
    }
    changed_.notify_all();
  }

  void wait_for_all(std::chrono::milliseconds bound, std::chrono::milliseconds grace) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, bound, [this] { return missing().empty(); })) {
      return;
    }
    late_ = "of " + std::to_string(ranks_.size()) + " ranks these did not come back within " +
            std::to_string(bound.count()) + " ms: " + missing();
    abort_all(late_);
    if (!changed_.wait_for(lock, grace, [this] { return missing().empty(); })) {
      std::fprintf(stderr, "run_ranks: %s; after an abort still: %s\n", late_.c_str(), missing().c_str());
      std::abort();
    }
  }

  std::string missing() const {
    std::string list;
    for (std::size_t i = 0; i < back_.size(); ++i) {
      if (!back_[i]) {
        list += (list.empty() ? "" : ", ") + std::to_string(i);
      }
    }
    return list;
  }

  void abort_all(const std::string& why) {
    for (Rank& rank : ranks_) {
      rank.transport->abort(why);
    }
  }

  std::vector<Rank> ranks_;
  const RankBody body_;
  const bool abort_others_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::exception_ptr> errors_;
  std::vector<bool> back_;
  std::optional<std::size_t> first_;
  std::string late_;
};

}  // namespace

RankError::RankError(int rank, const std::string& message)
    : std::runtime_error("rank " + std::to_string(rank) + ": " + message), rank_(rank) {}

void run_on(std::vector<Rank> ranks, const RankBody& body, const RunOptions& options) {
  Crew crew(std::move(ranks), body, true);
  crew.run(options.bound, options.grace);
  crew.rethrow_first();
}

std::vector<std::optional<std::string>> errors_on(std::vector<Rank> ranks, const RankBody& body,
                                                  const RunOptions& options) {
  Crew crew(std::move(ranks), body, false);
  crew.run(options.bound, options.grace);
  std::vector<std::optional<std::string>> messages;
  for (const std::exception_ptr& error : crew.errors()) {
    messages.push_back(error ? std::optional(message_of(error)) : std::nullopt);
  }
  return messages;
}

void run_ranks(int ranks, const RankBody& body, const RunOptions& options) {
  run_on(loopback_ranks(ranks, options), body, options);
}

std::vector<std::optional<std::string>> errors_of_ranks(int ranks, const RankBody& body, const RunOptions& options) {
  return errors_on(loopback_ranks(ranks, options), body, options);
}

}  // namespace dualpipe
