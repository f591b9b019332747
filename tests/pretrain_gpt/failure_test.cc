// How a run ends: exit codes, records, who is blamed, lines between ranks, the roll call.
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "examples/pretrain_gpt/checkpoint/checkpoint_error.h"
#include "examples/pretrain_gpt/failures/action_ring.h"
#include "examples/pretrain_gpt/failures/blame.h"
#include "examples/pretrain_gpt/failures/exit_code.h"
#include "examples/pretrain_gpt/failures/failure.h"
#include "examples/pretrain_gpt/failures/failure_watch.h"
#include "examples/pretrain_gpt/failures/lifeline.h"
#include "examples/pretrain_gpt/failures/old_logs.h"
#include "examples/pretrain_gpt/failures/progress.h"
#include "examples/pretrain_gpt/failures/roll_call.h"
#include "examples/pretrain_gpt/failures/within.h"
#include "tests/support/temporary_folder.h"

namespace pretrain_gpt {
namespace {

using namespace std::chrono_literals;

// --- exit codes and records

TEST(ExitCode, StandsForWhatWasThrown) {
  EXPECT_EQ(exit_code_of(UserError("lr", "must be small")), ExitCode::kConfiguration);
  EXPECT_EQ(exit_code_of(CheckpointError("a", "must be whole")), ExitCode::kCheckpoint);
  EXPECT_EQ(exit_code_of(PeerLost("gone", 2)), ExitCode::kPeerLost);
  EXPECT_EQ(exit_code_of(ActionError("2B3", "no such expert")), ExitCode::kException);
  EXPECT_EQ(exit_code_of(std::bad_alloc()), ExitCode::kException);
  EXPECT_EQ(exit_code_of(std::invalid_argument("stoi")), ExitCode::kException);
  EXPECT_EQ(exit_code_of(RunError(ExitCode::kNotFinite, "NaN")), ExitCode::kNotFinite);
}

// Scripts go by them.
TEST(ExitCode, NumbersAreFixed) {
  EXPECT_EQ(static_cast<int>(ExitCode::kConfiguration), 10);
  EXPECT_EQ(static_cast<int>(ExitCode::kStart), 11);
  EXPECT_EQ(static_cast<int>(ExitCode::kPeerLost), 12);
  EXPECT_EQ(static_cast<int>(ExitCode::kException), 13);
  EXPECT_EQ(static_cast<int>(ExitCode::kTimeout), 14);
  EXPECT_EQ(static_cast<int>(ExitCode::kNotFinite), 15);
  EXPECT_EQ(static_cast<int>(ExitCode::kCheckpoint), 16);
  EXPECT_EQ(static_cast<int>(ExitCode::kPreempted), 17);
}

TEST(Failure, RoundTripsThroughText) {
  const Failure failure{2, ExitCode::kTimeout, "step 3, 2B0", "a \"quoted\"\nline \xff", {this_process()}};
  const Failure again = failure_from_text(to_text(failure));
  EXPECT_EQ(again.rank, 2);
  EXPECT_EQ(again.code, ExitCode::kTimeout);
  EXPECT_EQ(again.place, failure.place);
  EXPECT_EQ(again.message.substr(0, 14), "a \"quoted\"\nlin");
  EXPECT_EQ(again.stopped, failure.stopped);
  EXPECT_EQ(failure_from_text(to_text(Failure{{}, ExitCode::kPeerLost, "", "gone"})).rank, std::nullopt);
}

TEST(Failure, NamesTheRankThatFailedFirstEverywhere) {
  const Failure failure{2, ExitCode::kException, "step 12, 2B3 (stage 2, micro-batch 3)", "no such expert"};
  const std::string message = "rank 2 failed in step 12, 2B3 (stage 2, micro-batch 3): no such expert";
  EXPECT_EQ(describe(failure, 2, "no such expert"), message);
  EXPECT_EQ(describe(failure, 0), message);
  EXPECT_EQ(describe(failure, 1, "the link is broken"), message + " (here: the link is broken)");
  EXPECT_EQ(describe({0, ExitCode::kConfiguration, "", "[lr] must be small"}, 0), "[lr] must be small");
  EXPECT_EQ(describe({0, ExitCode::kConfiguration, "", "[lr] must be small"}, 1), "rank 0 failed: [lr] must be small");
}

TEST(Failure, OthersDoNotLeaveByTheExceptionOfOne) {
  const Failure failure{2, ExitCode::kException, "", "no such expert"};
  EXPECT_EQ(exit_code_for(failure, 2), ExitCode::kException);
  EXPECT_EQ(exit_code_for(failure, 1), ExitCode::kPeerLost);
  EXPECT_EQ(exit_code_for({2, ExitCode::kNotFinite, "", ""}, 1), ExitCode::kNotFinite);
}

TEST(Failure, ExplainsActions) {
  EXPECT_EQ(explain_action("2B3"), "2B3 (stage 2, micro-batch 3)");
  EXPECT_EQ(explain_action("10RECV_F21"), "10RECV_F21 (stage 10, micro-batch 21)");
  EXPECT_EQ(explain_action("(0F7;3B2)OVERLAP_F_B"),
            "(0F7;3B2)OVERLAP_F_B (stage 0, micro-batch 7; stage 3, micro-batch 2)");
  EXPECT_EQ(explain_action("the sum of gradients"), "the sum of gradients");
  EXPECT_EQ(explain_action("12"), "12");
  EXPECT_EQ(explain_action(""), "");
}

// --- who holds the others up

Beat beat(std::uint64_t number, Standing standing, std::chrono::milliseconds still = 5s) {
  return {number, std::move(standing), still, {"machine", 100, "1", "node0"}};
}

Standing waits_for(int peer) { return {"step 3, 1RECV_F0", true, peer, 1}; }
Standing works() { return {"step 3, 2F0", false, {}, 1}; }
Standing sums() { return {"step 3, the sum of gradients", true, {}, 1}; }

Beats later(Beats beats) {
  for (auto& one : beats) {
    one->number += 5;
  }
  return beats;
}

TEST(Blame, RoundTripsBeats) {
  Beat given = beat(7, waits_for(3), 1234ms);
  given.computed = 5678ms;
  const Beat again = beat_from_text(to_text(given));
  EXPECT_EQ(again.number, 7U);
  EXPECT_EQ(again.standing, given.standing);
  EXPECT_EQ(again.still, 1234ms);
  EXPECT_EQ(again.process, given.process);
  EXPECT_EQ(again.computed, 5678ms);
  EXPECT_EQ(beat_from_text(to_text(beat(0, works()))).standing.peer, std::nullopt);
}

TEST(Blame, TheRankWhoseWatchIsSilent) {
  const Beats before{beat(1, waits_for(1)), beat(1, waits_for(2)), beat(1, works())};
  Beats after = later(before);
  after[2] = before[2];
  const Failure failure = blame(before, after, 0, 3s);
  EXPECT_EQ(failure.rank, 2);
  EXPECT_EQ(failure.code, ExitCode::kTimeout);
  EXPECT_EQ(describe(failure, 0),
            "rank 2 failed in step 3, 2F0: its process does not answer: it is stopped, or its machine is lost; the "
            "others got no further for 3 s");
  EXPECT_EQ(failure.stopped, std::vector<ProcessIdentity>{before[2]->process});
}

TEST(Blame, AllRanksOfALostMachine) {
  const Beats before{beat(1, waits_for(1)), beat(1, works()), std::nullopt};
  Beats after = before;
  after[0]->number = 9;
  EXPECT_NE(blame(before, after, 0, 3s).message.find("(so do ranks 2)"), std::string::npos);
}

TEST(Blame, TheRankThatComputesForEver) {
  const Beats before{beat(1, waits_for(1)), beat(1, waits_for(2)), beat(1, works())};
  const Failure failure = blame(before, later(before), 0, 3s);
  EXPECT_EQ(describe(failure, 1),
            "rank 2 failed in step 3, 2F0: it got no further for 5 s, and the others wait for it");
}

TEST(Blame, OfThoseThatComputeTheOneThatStandsStillLongest) {
  const Beats before{beat(1, works(), 1s), beat(1, sums()), beat(1, works(), 9s)};
  EXPECT_EQ(blame(before, later(before), 1, 3s).rank, 2);
}

// Tensor ranks: one of them hangs, and its peer waits for it inside of the same action.
TEST(Blame, TheOneThatComputesOfThoseInTheSameAction) {
  const Beats before{beat(1, works(), 5s), beat(1, works(), 4s), beat(1, sums(), 9s)};
  Beats after = later(before);
  after[1]->computed += 800ms;
  after[2]->computed += 800ms;
  EXPECT_EQ(blame(before, after, 2, 3s).rank, 1);
  after[0]->computed += 800ms;
  EXPECT_EQ(blame(before, after, 2, 3s).rank, 0);
}

TEST(Blame, TheEndOfTheChainWhereAllWait) {
  const Beats before{beat(1, waits_for(1)), beat(1, waits_for(2)), beat(1, sums())};
  EXPECT_EQ(
      describe(blame(before, later(before), 0, 3s), 0),
      "rank 2 failed in step 3, the sum of gradients: all ranks wait for each other since 3 s; this one waits for "
      "all ranks of a group");
}

TEST(Blame, ARankOfACircle) {
  const Beats before{beat(1, waits_for(1)), beat(1, waits_for(0))};
  EXPECT_EQ(blame(before, later(before), 0, 3s).rank, 0);
}

// --- progress

class FakeLog : public ActivityLog {
 public:
  Activity now() const override { return activity; }
  void write(const std::filesystem::path& /*folder*/, const std::string& failure) const noexcept override {
    written = failure;
  }
  Activity activity;
  mutable std::string written;
};

TEST(Progress, TellsPartAndAction) {
  Progress progress;
  EXPECT_EQ(progress.now().place, "the start");
  progress.enter("step 3", 5s, /*waits=*/true);
  EXPECT_EQ(progress.now(), (Standing{"step 3", true, {}, 1}));
  FakeLog log;
  log.activity = {"2RECV_F1", true, 1, 40};
  progress.follow(&log);
  EXPECT_EQ(progress.now(), (Standing{"step 3, 2RECV_F1 (stage 2, micro-batch 1)", true, 1, 41}));
  EXPECT_EQ(progress.patience(), 5s);
  progress.set_waits(true);  // As before.
  EXPECT_EQ(progress.now().changes, 41U);
  progress.set_waits(false);
  EXPECT_EQ(progress.now().changes, 42U);
  progress.write_log("folder", "why");
  EXPECT_EQ(log.written, "why");
}

TEST(ActionRing, IsAtTheInnermostActionThatIsNotDone) {
  ActionRing ring(1, 2, 3);
  EXPECT_EQ(ring.now().action, "");
  const auto compute = ring.begin(ActionKind::kCompute, "1F0");
  const auto message = ring.post(ActionKind::kReceive, "1RECV_F1", 0, 64);
  EXPECT_EQ(ring.now().action, "1F0");
  EXPECT_FALSE(ring.now().waits);
  ring.start(message);
  EXPECT_EQ(ring.now().action, "1RECV_F1");
  EXPECT_TRUE(ring.now().waits);
  EXPECT_EQ(ring.now().peer, 0);
  ring.done(message);
  ring.done(compute);
  const std::uint64_t changes = ring.now().changes;
  for (int i = 0; i < 9; ++i) {
    ring.done(ring.begin(ActionKind::kCompute, "1F2"));  // The first ones are forgotten.
  }
  ring.done(compute);
  EXPECT_EQ(ring.now().action, "");
  EXPECT_GT(ring.now().changes, changes);
}

// --- lines between ranks

LifelineNews wait_for_news(Lifeline& line) {
  const auto end = std::chrono::steady_clock::now() + 10s;
  while (std::chrono::steady_clock::now() < end) {
    const LifelineNews news = line.news();
    if (news.words || !news.lost.empty()) {
      return news;
    }
    std::this_thread::sleep_for(1ms);
  }
  ADD_FAILURE() << "no news";
  return {};
}

void wait_until_all(LifelineHub& hub) {
  const auto end = std::chrono::steady_clock::now() + 10s;
  while (!hub.reaches_all() && std::chrono::steady_clock::now() < end) {
    hub.news();
    std::this_thread::sleep_for(1ms);
  }
  ASSERT_TRUE(hub.reaches_all());
}

class Lines : public testing::Test {
 protected:
  std::unique_ptr<Lifeline> connect(int rank, const std::string& greeting = "run-1") {
    return connect_lifeline({"127.0.0.1"}, hub_.port(), rank, greeting, 5s);
  }
  LifelineHub hub_{3, /*loopback_only=*/true, "run-1"};
};

TEST_F(Lines, TellOfAnEnd) {
  auto one = connect(1), two = connect(2);
  wait_until_all(hub_);
  two.reset();
  EXPECT_EQ(wait_for_news(hub_).lost, std::vector<int>{2});
  EXPECT_TRUE(hub_.reaches_all());
  EXPECT_TRUE(hub_.news().lost.empty());
}

TEST_F(Lines, AFarewellIsNoDeath) {
  auto one = connect(1), two = connect(2);
  wait_until_all(hub_);
  two->say_farewell();
  two.reset();
  one.reset();
  EXPECT_EQ(wait_for_news(hub_).lost, std::vector<int>{1});
}

TEST_F(Lines, CarryTheFarewellOfRank0) {
  auto one = connect(1), two = connect(2);
  wait_until_all(hub_);
  hub_.say_farewell();
  const auto end = std::chrono::steady_clock::now() + 10s;
  LifelineNews news;
  while (!news.farewell && std::chrono::steady_clock::now() < end) {
    news = one->news();
  }
  EXPECT_TRUE(news.farewell);
  EXPECT_FALSE(news.words);
}

TEST_F(Lines, CarryLastWords) {
  auto one = connect(1), two = connect(2);
  wait_until_all(hub_);
  hub_.tell_all("{\"rank\":2}");
  EXPECT_EQ(wait_for_news(*one).words, "{\"rank\":2}");
  EXPECT_EQ(wait_for_news(*two).words, "{\"rank\":2}");
}

TEST(LifelineHub, IsMissedByTheOthers) {
  auto hub = std::make_unique<LifelineHub>(2, true, "run-1");
  const auto one = connect_lifeline({"127.0.0.1"}, hub->port(), 1, "run-1", 5s);
  wait_until_all(*hub);
  hub.reset();
  EXPECT_EQ(wait_for_news(*one).lost, std::vector<int>{0});
}

TEST_F(Lines, StrangersAreLeftOutOfAccount) {
  auto stranger = connect(1, "run-2");
  auto twin = connect(7);
  auto one = connect(1), two = connect(2);
  wait_until_all(hub_);
  stranger.reset();
  twin.reset();
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(hub_.news().lost.empty());
  }
}

TEST(Lifeline, SaysWhereNobodyListens) {
  EXPECT_FALSE(accepts_connections("127.0.0.1", 1));
  EXPECT_THROW(connect_lifeline({"127.0.0.1"}, 1, 1, "run-1", 500ms), std::system_error);
}

// --- processes

TEST(ProcessIdentity, IsThisOne) {
  const ProcessIdentity mine = this_process();
  EXPECT_EQ(mine.pid, static_cast<int>(::getpid()));
  EXPECT_FALSE(mine.machine.empty());
  EXPECT_FALSE(mine.started.empty());
  EXPECT_EQ(identity_from_text(to_text(mine)), mine);
  end_if_here(mine);  // Never this process.
  ProcessIdentity other = mine;
  other.pid = static_cast<int>(::getppid());
  end_if_here(other);  // Nor one that started at another time.
  EXPECT_EQ(::kill(::getppid(), 0), 0);
}

// --- the roll call

class FakeBoard : public Board {
 public:
  void set(const std::string& key, const std::string& value) override { values[key] = value; }
  std::string set_first(const std::string& key, const std::string& value) override {
    return values.emplace(key, value).first->second;
  }
  std::optional<std::string> get(const std::string& key) override {
    const auto found = values.find(key);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  }
  std::int64_t add(const std::string& key, std::int64_t value) override { return numbers[key] += value; }

  std::map<std::string, std::string> values;
  std::map<std::string, std::int64_t> numbers;
};

ProcessIdentity process(int pid) { return {"machine", pid, "1", "node0"}; }

std::string start_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const RunError& error) {
    EXPECT_EQ(error.code(), ExitCode::kStart);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(RollCall, GivesTheProcessesOfAllRanks) {
  FakeBoard board;
  enrol(board, {0, 2, process(10)});
  int pauses = 0;
  const auto processes = wait_for_all(board, {0, 2, process(10)}, 10s, [&] {
    ++pauses;
    enrol(board, {1, 2, process(11)});
  });
  EXPECT_EQ(pauses, 1);
  EXPECT_EQ(processes, (std::vector<ProcessIdentity>{process(10), process(11)}));
}

TEST(RollCall, RefusesARankThatIsThereTwice) {
  FakeBoard board;
  enrol(board, {1, 2, process(10)});
  EXPECT_EQ(start_error([&] {
              enrol(board, {1, 2, process(11)});
            }),
            "[RANK] must be a process's own, got 1 for process 10 on node0 and for process 11 on node0; give each "
            "process another rank, and each run on a machine a MASTER_PORT of its own");
}

TEST(RollCall, RefusesAnotherNumberOfRanks) {
  FakeBoard board;
  enrol(board, {0, 2, process(10)});
  enrol(board, {3, 4, process(11)});
  EXPECT_EQ(start_error([&] {
              wait_for_all(board, {3, 4, process(11)}, 10s, [] {});
            }),
            "[WORLD_SIZE] must be the same on every rank, got 2 on rank 0 and 4 on rank 3; start all ranks by one "
            "command");
}

TEST(RollCall, NamesTheRanksThatAreAbsent) {
  FakeBoard board;
  enrol(board, {1, 4, process(10)});
  EXPECT_EQ(start_error([&] {
              wait_for_all(board, {1, 4, process(10)}, 5ms, [] { std::this_thread::sleep_for(6ms); });
            }),
            "[WORLD_SIZE] all 4 ranks must be there within timeout_s, got nothing of ranks 0, 2, 3 for 0.005 s");
}

// --- calls that must not hold anybody up

TEST(Within, GivesTheResultOrNothing) {
  EXPECT_EQ(within(1h, [] { return 3; }), 3);
  EXPECT_EQ(within(1h, []() -> int { throw std::runtime_error("gone"); }), std::nullopt);
  const auto release = std::make_shared<std::promise<void>>();
  EXPECT_EQ(within(1ms,
                   [release] {
                     release->get_future().wait();
                     return 3;
                   }),
            std::nullopt);
  release->set_value();
}

// --- logs of an earlier attempt

TEST(OldLogs, AreRemovedByTheRanksThatThereAre) {
  const dualpipe::TemporaryFolder folder;
  for (const char* name : {"ring_rank0.jsonl", "ring_rank1.jsonl", "ring_rank2.jsonl", "ring_rank17.jsonl",
                           "ring_rankx.jsonl", "ring_rank.jsonl", "timeline_rank0.jsonl"}) {
    folder.write(name, "old");
  }
  const auto is_there = [&](const std::string& name) { return std::filesystem::exists(folder.file(name)); };
  remove_old_logs(folder.path(), 1, 2);
  EXPECT_TRUE(is_there("ring_rank0.jsonl"));
  EXPECT_FALSE(is_there("ring_rank1.jsonl"));
  EXPECT_TRUE(is_there("ring_rank2.jsonl"));
  remove_old_logs(folder.path(), 0, 2);
  EXPECT_FALSE(is_there("ring_rank0.jsonl"));
  EXPECT_FALSE(is_there("ring_rank2.jsonl"));
  EXPECT_FALSE(is_there("ring_rank17.jsonl"));
  for (const char* name : {"ring_rankx.jsonl", "ring_rank.jsonl", "timeline_rank0.jsonl"}) {
    EXPECT_TRUE(is_there(name)) << name;
  }
  remove_old_logs(folder.file("none"), 0, 2);
}

// --- the watch: a process that ends, whatever the store does

// Of two ranks, the other of which is at the end already. `call` sees every call before it is answered.
class EndBoard : public Board {
 public:
  explicit EndBoard(std::function<void(const std::string& key)> call) : call_(std::move(call)) {}
  void set(const std::string& key, const std::string& /*value*/) override { call_(key); }
  std::string set_first(const std::string& key, const std::string& value) override {
    call_(key);
    return value;
  }
  std::optional<std::string> get(const std::string& key) override {
    call_(key);
    return std::nullopt;
  }
  std::int64_t add(const std::string& key, std::int64_t /*value*/) override {
    call_(key);
    return 2;
  }

 private:
  std::function<void(const std::string& key)> call_;
};

// As of a store whose host is stopped.
void stick(const std::string& /*key*/) { std::this_thread::sleep_for(1h); }

std::function<void(const std::string&)> at(const std::string& key, std::function<void(const std::string&)> call) {
  return [key, call = std::move(call)](const std::string& asked) {
    if (asked == key) {
      call(asked);
    }
  };
}

WatchLinks links(std::function<void(const std::string&)> call, bool is_host = false) {
  return {[call = std::move(call)](std::chrono::milliseconds) { return std::make_unique<EndBoard>(call); },
          is_host,
          false,
          nullptr,
          {}};
}

class FarewellLine : public Lifeline {
 public:
  void add_to(std::vector<int>& /*descriptors*/) const override {}
  LifelineNews news() override { return {{}, {}, true}; }
  void tell_all(const std::string& /*words*/) override {}
  void say_farewell() override {}
  bool reaches_all() const override { return false; }
};

using testing::ExitedWithCode;

// Rank 1 of 2, at the regular end of its run.
void finish_with(WatchLinks links, std::chrono::milliseconds patience = 60s) {
  FailureWatch watch(1, 2);
  watch.join(std::move(links));
  watch.finish(patience);
}

TEST(WatchDeathTest, AFinishedRunEndsWell) {
  EXPECT_EXIT(finish_with(links([](const std::string&) {}, /*is_host=*/true)), ExitedWithCode(0), "");
}

TEST(WatchDeathTest, AStopThatAllAgreedAboutKeepsItsCode) {
  EXPECT_EXIT(
      {
        FailureWatch watch(1, 2);
        watch.join(links([](const std::string&) {}));
        watch.finish(60s, ExitCode::kPreempted, "stopped behind step 3");
      },
      ExitedWithCode(17), "\\[rank 1\\] error: stopped behind step 3");
}

TEST(WatchDeathTest, AStoreThatIsSilentBehindTheEndIsLeft) {
  EXPECT_EXIT(finish_with(links(at("left", stick))), ExitedWithCode(0), "");
}

TEST(WatchDeathTest, AStoreThatIsGoneBehindTheEndIsNoFailure) {
  EXPECT_EXIT(finish_with(links(at("left", [](const std::string&) { throw std::runtime_error("gone"); }))),
              ExitedWithCode(0), "");
}

TEST(WatchDeathTest, RankZerosFarewellStandsForTheStore) {
  for (const std::function<void(const std::string&)>& call :
       {std::function<void(const std::string&)>(stick),
        std::function<void(const std::string&)>([](const std::string&) { throw std::runtime_error("gone"); })}) {
    EXPECT_EXIT(
        {
          FailureWatch watch(1, 2);
          WatchLinks with_line = links(at("finished", call));
          with_line.lifeline = std::make_unique<FarewellLine>();
          watch.join(std::move(with_line));
          watch.finish(60s);
        },
        ExitedWithCode(0), "");
  }
}

TEST(WatchDeathTest, AStoreThatIsSilentBeforeTheEndIsATimeout) {
  EXPECT_EXIT(finish_with(links(stick), 100ms), ExitedWithCode(14),
              "the store that all ranks share does not answer: its host is stopped or lost");
}

TEST(WatchDeathTest, AStoreThatIsGoneBeforeTheEndIsAFailure) {
  EXPECT_EXIT(finish_with(links(at("finished", [](const std::string&) { throw std::runtime_error("gone"); }))),
              ExitedWithCode(12),
              "rank 1 lost the others: the store that all ranks share was lost at the end of the run");
}

TEST(WatchDeathTest, RanksThatDoNotMeetLeaveByThemselves) {
  EXPECT_EXIT(
      {
        FailureWatch watch(1, 2);
        watch.progress().enter("the start", 100ms);
        stick("");
      },
      ExitedWithCode(11), "the ranks did not meet in time: the store that they share does not answer");
}

TEST(WatchDeathTest, ARecordThatCannotBeReadEndsTheRunWithAMessage) {
  class BadRecord : public EndBoard {
   public:
    BadRecord() : EndBoard([](const std::string&) {}) {}
    std::optional<std::string> get(const std::string& key) override {
      return key == "failure" ? std::optional<std::string>("{\"code\":") : std::nullopt;
    }
  };
  EXPECT_EXIT(
      {
        FailureWatch watch(1, 2);
        watch.join(
            {[](std::chrono::milliseconds) { return std::make_unique<BadRecord>(); }, false, false, nullptr, {}});
        stick("");
      },
      ExitedWithCode(12), "a failure was recorded that cannot be read: .\"code\":");
}

}  // namespace
}  // namespace pretrain_gpt
