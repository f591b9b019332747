#include "plugin/runtime/loopback_transport.h"

#include <gmock/gmock.h>

#include "tests/runtime/transport_tools.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

TEST(LoopbackTransport, NamesBothSidesOfAMismatch) {
  struct Case {
    const char* name;
    TensorList sent;
    TensorList expected;
    const char* error;
  };
  const std::vector<Case> cases{
      {"count",
       {torch::zeros({2, 3}), torch::zeros({4}, at::kLong)},
       {torch::zeros({2, 3})},
       "message 0 from rank 0 to rank 1 (channel 0): the sender gave float32[2, 3], int64[4], the receiver expected "
       "float32[2, 3]"},
      {"shape",
       {torch::zeros({2, 3})},
       {torch::zeros({3, 2})},
       "message 0 from rank 0 to rank 1 (channel 0): the sender gave float32[2, 3], the receiver expected "
       "float32[3, 2]"},
      {"dtype",
       {torch::zeros({2}, at::kBFloat16)},
       {torch::zeros({2}, at::kHalf)},
       "message 0 from rank 0 to rank 1 (channel 0): the sender gave bfloat16[2], the receiver expected float16[2]"},
      {"nothing",
       {},
       {torch::zeros({2}, at::kBool)},
       "message 0 from rank 0 to rank 1 (channel 0): the sender gave nothing, the receiver expected bool[2]"},
  };
  for (const Case& row : cases) {
    SCOPED_TRACE(row.name);
    run_ranks(2, [&](Rank& rank) {
      auto transfer = rank.index == 0 ? rank.transport->send(1, kPipeline, row.sent)
                                      : rank.transport->receive(0, kPipeline, row.expected);
      EXPECT_EQ(error_of([&] { transfer->wait(); }), row.error);
    });
  }
}

TEST(LoopbackTransport, NamesBothSidesOfDifferentCollectives) {
  run_ranks(2, [](Rank& rank) {
    at::Tensor tensor = torch::zeros({2 + rank.index});
    EXPECT_THAT(error_of([&] { rank.transport->all_reduce_sum(tensor); }),
                HasSubstr("collectives do not match: rank " + std::to_string(rank.index) +
                          " called all_reduce_sum of float32[" + std::to_string(2 + rank.index) + "]"));
  });
}

TEST(LoopbackTransport, MovesNothingBeforeTheReceiverHasPosted) {
  auto ranks = make_loopback(2);
  const at::Tensor sent = number(1);
  auto send = ranks[0]->send(1, kPipeline, {sent});
  sent.fill_(2);
  const at::Tensor into = number(-1);
  auto receive = ranks[1]->receive(0, kPipeline, {into});
  sent.fill_(3);
  receive->wait();
  send->wait();
  EXPECT_TRUE(into.equal(number(2))) << into;
}

// The delay runs from the later posting on, for all messages at once, and does not hold the sender.
TEST(LoopbackTransport, DelaysTheArrivalOfEachMessage) {
  auto ranks = make_loopback(2, {milliseconds(60000), milliseconds(1000)});
  std::vector<std::unique_ptr<Transfer>> receives;
  receives.reserve(3);
  for (int i = 0; i < 3; ++i) {
    receives.push_back(ranks[1]->receive(0, kPipeline, {number(-1)}));
  }
  double sending = 0;
  const double seconds = seconds_of([&] {
    sending = seconds_of([&] {
      for (int i = 0; i < 3; ++i) {
        ranks[0]->send(1, kPipeline, {number(i)})->wait();
      }
    });
    for (auto& receive : receives) {
      receive->wait();
    }
  });
  EXPECT_LT(sending, 1);
  EXPECT_GE(seconds, 1);
  EXPECT_LT(seconds, 3);  // What three delays in a row would take.
}

}  // namespace
}  // namespace dualpipe
