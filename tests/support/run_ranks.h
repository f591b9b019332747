// tests/support/run_ranks.h
//
// Ranks as threads of the test:
//
//   run_ranks(4, [](Rank& rank) { ... });        // Over loopback.
//   run_gloo_ranks(4, [](Rank& rank) { ... });   // Over a Gloo group that each thread makes on 127.0.0.1.
//
// The first exception is rethrown as a RankError, nested in it the original; a rank that throws, or that an ASSERT_
// ends, aborts the others' transports so that nobody hangs. Ranks that are not back within the bound make the call fail
// with their numbers; those that abort() does not wake either end the process, since a thread cannot be ended from
// outside.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "plugin/runtime/loopback_transport.h"
#include "tests/support/rank.h"

namespace dualpipe {

using RankBody = std::function<void(Rank&)>;

struct RunOptions {
  std::chrono::milliseconds bound{60000};    // Of the whole call.
  std::chrono::milliseconds timeout{50000};  // Of one wait.
  std::chrono::microseconds delay{0};        // Loopback alone: LoopbackOptions::delay.
  std::chrono::milliseconds grace{5000};     // After the bound, to come back from an abort.
};

class RankError : public std::runtime_error {
 public:
  RankError(int rank, const std::string& message);  // what() is "rank 2: <message>".
  int rank() const { return rank_; }

 private:
  int rank_;
};

void run_ranks(int ranks, const RankBody& body, const RunOptions& options = {});
void run_gloo_ranks(int ranks, const RankBody& body, const RunOptions& options = {});

// For tests of failure: nobody is aborted by the harness, every rank has to come back by itself. The message that each
// rank threw; nothing where it returned.
std::vector<std::optional<std::string>> errors_of_ranks(int ranks, const RankBody& body,
                                                        const RunOptions& options = {});
std::vector<std::optional<std::string>> errors_of_gloo_ranks(int ranks, const RankBody& body,
                                                             const RunOptions& options = {});

// The same over transports that the caller made.
void run_on(std::vector<Rank> ranks, const RankBody& body, const RunOptions& options = {});
std::vector<std::optional<std::string>> errors_on(std::vector<Rank> ranks, const RankBody& body,
                                                  const RunOptions& options = {});

}  // namespace dualpipe
