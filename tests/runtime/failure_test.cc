#include "plugin/runtime/failure.h"

#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <atomic>
#include <future>
#include <thread>

#include "plugin/runtime/loopback_transport.h"
#include "plugin/runtime/store_failure_channel.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

using std::chrono::milliseconds;
using ::testing::Optional;

const FailureRecord kFirst{2, "3B2", "no such expert"};
const FailureRecord kSecond{0, "0F7", "an echo"};

TEST(Failure, NamesTheRankThatFailedFirst) {
  EXPECT_EQ(kFirst.to_string(), "rank 2 failed in 3B2: no such expert");
  EXPECT_STREQ(PipelineError(2, kFirst).what(), "rank 2 failed in 3B2: no such expert");
  EXPECT_STREQ(PipelineError(0, kFirst).what(), "rank 0 stops: rank 2 failed in 3B2: no such expert");
  EXPECT_EQ(PipelineError(0, kFirst).record(), kFirst);
}

TEST(Failure, GivesTheOriginalBack) {
  try {
    try {
      throw std::out_of_range("no such expert");
    } catch (...) {
      std::throw_with_nested(PipelineError(2, kFirst));
    }
  } catch (const PipelineError& error) {
    EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
  }
}

// Both sides of a channel, each as a rank of its own sees it.
struct Channels {
  const char* name;
  std::function<std::vector<std::shared_ptr<FailureChannel>>()> make;
};

std::vector<std::shared_ptr<FailureChannel>> loopback_channels() {
  const auto channel = make_loopback_failure_channel();
  return {channel, channel};
}

std::vector<std::shared_ptr<FailureChannel>> hash_store_channels() {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  return {make_store_failure_channel(store), make_store_failure_channel(store)};
}

c10::intrusive_ptr<c10d::TCPStore> tcp_store(int port, bool server) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = server;
  options.waitWorkers = false;
  options.timeout = std::chrono::seconds(10);
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

std::vector<std::shared_ptr<FailureChannel>> tcp_store_channels() {
  const auto server = tcp_store(0, true);
  const auto client = tcp_store(server->getPort(), false);
  return {make_store_failure_channel(c10::make_intrusive<c10d::PrefixStore>("job", server)),
          make_store_failure_channel(c10::make_intrusive<c10d::PrefixStore>("job", client))};
}

class EveryChannel : public ::testing::TestWithParam<Channels> {};

INSTANTIATE_TEST_SUITE_P(Failure, EveryChannel,
                         ::testing::Values(Channels{"Loopback", loopback_channels},
                                           Channels{"HashStore", hash_store_channels},
                                           Channels{"TcpStore", tcp_store_channels}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(EveryChannel, KeepsTheFirstRecordForAll) {
  const auto channels = GetParam().make();
  EXPECT_EQ(channels[0]->first(), std::nullopt);
  EXPECT_EQ(channels[1]->first(), std::nullopt);
  EXPECT_EQ(channels[0]->record(kFirst), kFirst);
  EXPECT_EQ(channels[1]->record(kSecond), kFirst);
  EXPECT_EQ(channels[0]->record(kSecond), kFirst);
  EXPECT_THAT(channels[0]->first(), Optional(kFirst));
  EXPECT_THAT(channels[1]->first(), Optional(kFirst));
}

TEST_P(EveryChannel, WaitsForTheFirstRecordAndNoLongerThanAsked) {
  const auto channels = GetParam().make();
  EXPECT_EQ(channels[0]->wait_for_first(milliseconds(1)), std::nullopt);
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(30));
    channels[1]->record(kFirst);
  });
  EXPECT_THAT(channels[0]->wait_for_first(std::chrono::seconds(60)), Optional(kFirst));
  late.join();
}

TEST_P(EveryChannel, CarriesAnyText) {
  const FailureRecord awkward{1, "(0F7;3B2)OVERLAP_F_B\\n",
                              "first line\nsecond \\ line\n\n\ttab, \"quotes\", \\n, \xc3\xa9"};
  const auto channels = GetParam().make();
  channels[0]->record(awkward);
  EXPECT_THAT(channels[1]->first(), Optional(awkward));
}

TEST_P(EveryChannel, CarriesEmptyFields) {
  const auto channels = GetParam().make();
  channels[1]->record({0, "", ""});
  EXPECT_THAT(channels[0]->first(), Optional(FailureRecord{0, "", ""}));
}

TEST_P(EveryChannel, AgreesOnOneFirstUnderARace) {
  const auto channels = GetParam().make();
  std::vector<FailureRecord> seen(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] { seen[rank] = channels[rank]->record({rank, "0F0", "mine"}); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(seen[0], seen[1]);
}

TEST(StoreFailureChannel, CountsALostStoreAsAFailure) {
  auto server = tcp_store(0, true);
  const auto channel = make_store_failure_channel(tcp_store(server->getPort(), false));
  EXPECT_EQ(channel->first(), std::nullopt);
  server.reset();
  const FailureRecord lost{0, "the store", "the store is lost (it lives in rank 0)"};
  EXPECT_THAT(channel->first(), Optional(lost));
  EXPECT_EQ(lost.to_string(), "rank 0 failed in the store: the store is lost (it lives in rank 0)");
}

TEST(StoreFailureChannel, StillReportsItsOwnFailureWithoutAStore) {
  auto server = tcp_store(0, true);
  const auto channel = make_store_failure_channel(tcp_store(server->getPort(), false));
  server.reset();
  EXPECT_EQ(channel->record(kFirst), kFirst);
  EXPECT_THAT(channel->first(), Optional(kFirst));
}

// A store whose host is stopped: whoever asks it is kept until it goes on.
class StoppedStore : public c10d::HashStore {
 public:
  bool check(const std::vector<std::string>& keys) override {
    gate_.wait();
    return HashStore::check(keys);
  }
  std::vector<std::uint8_t> compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override {
    gate_.wait();
    return HashStore::compareSet(key, expected, desired);
  }
  void go_on() { open_.set_value(); }

 private:
  std::promise<void> open_;
  std::shared_future<void> gate_ = open_.get_future().share();
};

constexpr std::chrono::seconds kHang{60};

TEST(StoreFailureChannel, AStoreThatKeepsSilentHoldsNobodyUp) {
  const auto store = c10::make_intrusive<StoppedStore>();
  auto caller = std::async(std::launch::async, [&] {
    const auto channel = make_store_failure_channel(store);
    const Watchdog watchdog(
        channel, [](const FailureRecord&) {}, milliseconds(1));
    EXPECT_EQ(channel->first(), std::nullopt);
    EXPECT_EQ(channel->wait_for_first(milliseconds(10)), std::nullopt);
    EXPECT_EQ(channel->record(kFirst), kFirst);
    EXPECT_THAT(channel->first(), Optional(kFirst));
  });
  const bool came_back = caller.wait_for(kHang) == std::future_status::ready;
  store->go_on();
  EXPECT_TRUE(came_back);
}

TEST(StoreFailureChannel, TellsTheOthersOnceTheStoreGoesOn) {
  const auto store = c10::make_intrusive<StoppedStore>();
  const auto channel = make_store_failure_channel(store), other = make_store_failure_channel(store);
  EXPECT_EQ(channel->record(kFirst), kFirst);
  store->go_on();
  EXPECT_THAT(other->wait_for_first(kHang), Optional(kFirst));
}

TEST(StoreFailureChannel, SaysWhatItCannotRead) {
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  store->set("dualpipe/failure", "no record");
  const auto first = make_store_failure_channel(store)->first();
  ASSERT_TRUE(first);
  EXPECT_EQ(
      first->to_string(),
      "rank 0 failed in the store: a failure was recorded that cannot be read: broken invariant: a failure record "
      "has three fields");
}

TEST(Watchdog, CallsOnceWithTheFirstRecord) {
  const auto channel = make_loopback_failure_channel();
  std::atomic<int> calls = 0;
  std::promise<FailureRecord> told;
  const Watchdog watchdog(
      channel,
      [&](const FailureRecord& record) {
        if (++calls == 1) {
          told.set_value(record);
        }
      },
      milliseconds(5));
  channel->record(kFirst);
  channel->record(kSecond);
  EXPECT_EQ(told.get_future().get(), kFirst);
  std::this_thread::sleep_for(milliseconds(30));
  EXPECT_EQ(calls, 1);
}

TEST(Watchdog, LeavesAHealthyChannelAlone) {
  const auto channel = make_loopback_failure_channel();
  std::atomic<int> calls = 0;
  const auto start = std::chrono::steady_clock::now();
  {
    const Watchdog watchdog(
        channel, [&](const FailureRecord&) { ++calls; }, std::chrono::hours(1));
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_EQ(calls, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

// --- the harness of the other tests

TEST(RunRanks, RethrowsTheFirstExceptionWithItsRank) {
  try {
    run_ranks(3, [](Rank& rank) {
      if (rank.index == 1) {
        throw std::out_of_range("no such expert");
      }
      rank.transport->receive(1, 0, {at::Tensor(at::zeros({1}))})->wait();
    });
    FAIL() << "nothing was thrown";
  } catch (const RankError& error) {
    EXPECT_STREQ(error.what(), "rank 1: no such expert");
    EXPECT_EQ(error.rank(), 1);
    EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
  }
}

TEST(RunRanks, SaysWhoDidNotComeBack) {
  try {
    run_ranks(3,
              [](Rank& rank) {
                if (rank.index != 1) {
                  rank.transport->receive(1, 0, {at::Tensor(at::zeros({1}))})->wait();
                }
              },
              {.bound = milliseconds(200)});
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "of 3 ranks these did not come back within 200 ms: 0, 2");
  }
}

TEST(RunRanksDeathTest, EndsTheProcessWhereAnAbortDoesNotWakeARank) {
  const auto stuck = [] {
    run_ranks(2, [](Rank& rank) { std::this_thread::sleep_for(std::chrono::seconds(rank.index * 100)); },
              {.bound = milliseconds(100), .grace = milliseconds(100)});
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(stuck(), "of 2 ranks these did not come back within 100 ms: 1; after an abort still: 1");
}

TEST(RunRanks, GathersTheErrorsOfAllRanks) {
  const auto errors = errors_of_ranks(3, [](Rank& rank) {
    if (rank.index != 1) {
      throw std::runtime_error("mine is " + std::to_string(rank.index));
    }
  });
  EXPECT_THAT(errors, ::testing::ElementsAre(Optional(std::string("mine is 0")), std::nullopt,
                                             Optional(std::string("mine is 2"))));
}

}  // namespace
}  // namespace dualpipe
