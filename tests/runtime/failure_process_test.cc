#include <gmock/gmock.h>
#include <torch/types.h>

#include <csignal>
#include <thread>

#include "plugin/runtime/c10d_transport.h"
#include "plugin/runtime/store_failure_channel.h"
#include "tests/support/gloo_group.h"
#include "tests/support/run_processes.h"

namespace dualpipe {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kPipeline = 0;
constexpr milliseconds kTimeout{60000};  // Far beyond the bound: nobody may sit it out.
constexpr double kBound = 10;            // Seconds from the end of the one that failed.

// What one rank of a pipeline does when something goes wrong: records it, and says what was recorded first.
void guarded(const Process& process, FailureChannel& failures, const std::function<void()>& body) {
  FailureRecord mine{process.rank, "3B2", ""};
  try {
    return body();
  } catch (const PeerError& error) {
    mine = {error.peer(), "its process", error.what()};
  } catch (const std::exception& error) {
    mine.cause = error.what();
  }
  throw PipelineError(process.rank, failures.record(mine));
}

// Every rank waits for its right neighbour, the last one does `last`. Rank 0 never hears of it by a broken link.
void wait_in_a_chain(const Process& process, const std::function<void(Transport&)>& last) {
  const auto failures = make_store_failure_channel(process.connect());
  const auto group = make_gloo_group(process.connect(), process.rank, process.size, kTimeout);
  const auto transport = make_c10d_transport(group, {.timeout = kTimeout, .failures = failures});
  const Watchdog watchdog(make_store_failure_channel(process.connect()),
                          [&](const FailureRecord& record) { transport->abort(record.to_string()); });
  guarded(process, *failures, [&] {
    transport->all_gather("everybody is here");
    if (process.rank == process.size - 1) {
      return last(*transport);
    }
    const at::Tensor into = torch::zeros({64 << 20});  // 256 MiB.
    transport->receive(process.rank + 1, kPipeline, {into})->wait();
  });
}

DUALPIPE_PROCESS_BODY(throws_in_a_chain) {
  wait_in_a_chain(process, [](Transport&) { throw std::runtime_error("no such expert"); });
}

DUALPIPE_PROCESS_BODY(is_killed_in_a_chain) {
  wait_in_a_chain(process, [](Transport&) { std::raise(SIGKILL); });
}

DUALPIPE_PROCESS_BODY(is_killed_in_the_middle_of_a_message) {
  wait_in_a_chain(process, [&](Transport& transport) {
    std::thread killer([] {
      std::this_thread::sleep_for(milliseconds(60));
      std::raise(SIGKILL);
    });
    transport.send(process.rank - 1, kPipeline, {torch::zeros({64 << 20})})->wait();
    killer.join();
  });
}

TEST(FailureProcesses, EveryRankLeavesWithTheMessageOfTheOneThatThrew) {
  const auto outcomes = run_processes(4, "throws_in_a_chain");
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(outcomes[rank].exit_code, 1) << outcomes[rank].to_string();
    EXPECT_LT(outcomes[rank].seconds - outcomes[3].seconds, kBound) << outcomes[rank].to_string();
    const std::string prefix = rank == 3 ? "error: " : "error: rank " + std::to_string(rank) + " stops: ";
    EXPECT_EQ(outcomes[rank].err, prefix + "rank 3 failed in 3B2: no such expert\n");
  }
}

void expect_death_of_rank_3_is_noticed(const std::vector<Outcome>& outcomes) {
  EXPECT_EQ(outcomes[3].signal, SIGKILL) << outcomes[3].to_string();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(outcomes[rank].exit_code, 1) << outcomes[rank].to_string();
    EXPECT_LT(outcomes[rank].seconds - outcomes[3].seconds, kBound) << outcomes[rank].to_string();
    EXPECT_THAT(
        outcomes[rank].err,
        StartsWith("error: rank " + std::to_string(rank) +
                   " stops: rank 3 failed in its process: rank 2, receive 0 from rank 3 (channel 0): the link is "
                   "broken: "));
  }
}

TEST(FailureProcesses, NobodyBlamesAnyoneButTheRankThatWasKilled) {
  expect_death_of_rank_3_is_noticed(run_processes(4, "is_killed_in_a_chain"));
}

TEST(FailureProcesses, ADeathInTheMiddleOfAMessageIsNoticed) {
  expect_death_of_rank_3_is_noticed(run_processes(4, "is_killed_in_the_middle_of_a_message"));
}

// --- the harness

DUALPIPE_PROCESS_BODY(says_who_it_is) {
  std::printf("%d of %d: %s\n", process.rank, process.size, process.args.at(0).c_str());
}

DUALPIPE_PROCESS_BODY(never_ends) { std::this_thread::sleep_for(std::chrono::hours(process.size)); }

TEST(RunProcesses, RunsABodyPerRankAndCollectsWhatItPrints) {
  const auto outcomes = run_processes(2, "says_who_it_is", {"an argument with spaces"});
  EXPECT_EQ(outcomes[0].out, "0 of 2: an argument with spaces\n");
  EXPECT_EQ(outcomes[1].out, "1 of 2: an argument with spaces\n");
  EXPECT_EQ(outcomes[1].exit_code, 0) << outcomes[1].to_string();
}

TEST(RunProcesses, KillsAtTheBound) {
  const auto outcomes = run_processes(1, "never_ends", {}, {.bound = milliseconds(300)});
  EXPECT_TRUE(outcomes[0].late);
  EXPECT_EQ(outcomes[0].signal, SIGKILL);
  EXPECT_THAT(outcomes[0].to_string(), HasSubstr("signal 9 (killed at the bound)"));
}

}  // namespace
}  // namespace dualpipe
