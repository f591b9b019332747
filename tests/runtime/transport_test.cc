#include "plugin/runtime/transport.h"

#include <gmock/gmock.h>
#include <torch/types.h>

#include <mutex>
#include <thread>

#include "tests/runtime/transport_tools.h"
#include "tests/support/edge_groups.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::StartsWith;

struct Kind {
  const char* name;
  std::function<void(int, const RankBody&, const RunOptions&)> run;
};

void run_edges(int ranks, const RankBody& body, const RunOptions& options) {
  run_gloo_ranks(
      ranks,
      [&](Rank& rank) {
        rank.transport = make_edge_transport(rank.group, options.timeout);
        body(rank);
      },
      options);
}

class EveryTransport : public ::testing::TestWithParam<Kind> {
 protected:
  void run(int ranks, const RankBody& body, const RunOptions& options = {}) { GetParam().run(ranks, body, options); }
};

INSTANTIATE_TEST_SUITE_P(Transport, EveryTransport,
                         ::testing::Values(Kind{"Loopback", run_ranks}, Kind{"Gloo", run_gloo_ranks},
                                           Kind{"EdgeGroups", run_edges}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(EveryTransport, MatchesMessagesInTheOrderOfPosting) {
  run(2, [](Rank& rank) {
    for (int i = 0; i < 50; ++i) {
      if (rank.index == 0) {
        rank.transport->send(1, kPipeline, {number(i)})->wait();
      } else {
        const at::Tensor into = number(-1);
        rank.transport->receive(0, kPipeline, {into})->wait();
        EXPECT_TRUE(into.equal(number(i))) << i << ": " << into;
      }
    }
  });
}

TEST_P(EveryTransport, LetsWaitsComeInAnyOrder) {
  run(2, [](Rank& rank) {
    const int peer = 1 - rank.index;
    TensorList into;
    std::vector<std::unique_ptr<Transfer>> receives;
    std::vector<std::unique_ptr<Transfer>> sends;
    for (int i = 0; i < 4; ++i) {
      into.push_back(number(-1));
      receives.push_back(rank.transport->receive(peer, kPipeline, {into.back()}));
      sends.push_back(rank.transport->send(peer, kPipeline, {number(10 * rank.index + i)}));
    }
    for (const int i : {2, 0, 3, 1}) {
      receives[i]->wait();
      EXPECT_TRUE(into[i].equal(number(10 * peer + i))) << i << ": " << into[i];
    }
    for (const int i : {3, 2, 1, 0}) {
      sends[i]->wait();
    }
  });
}

TensorList one_of_each_dtype(int seed) {
  torch::manual_seed(seed);
  TensorList tensors;
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    tensors.push_back(torch::randn({3, 5}).to(dtype));
  }
  for (const auto dtype : {at::kLong, at::kInt, at::kShort, at::kChar, at::kByte}) {
    tensors.push_back(torch::randint(0, 100, {7}).to(dtype));
  }
  tensors.push_back(torch::rand({2, 3}).gt(0.5));
  tensors.push_back(torch::complex(torch::randn({2}), torch::randn({2})));
  tensors.push_back(torch::empty({0, 3}));
  tensors.push_back(torch::tensor(seed + 0.5));
  tensors.push_back(torch::empty({2, 0}, at::kLong));
  return tensors;
}

TEST_P(EveryTransport, MovesManyTensorsOfAnyDtypeInOneMessage) {
  run(2, [](Rank& rank) {
    static std::mutex generator;  // Threads share the default one.
    TensorList given;
    TensorList expected;
    {
      std::lock_guard lock(generator);
      given = one_of_each_dtype(rank.index);
      expected = one_of_each_dtype(1 - rank.index);
    }
    TensorList into;
    for (const at::Tensor& tensor : expected) {
      into.push_back(torch::zeros_like(tensor));
    }
    auto receive = rank.transport->receive(1 - rank.index, kPipeline, into);
    auto send = rank.transport->send(1 - rank.index, kPipeline, given);
    receive->wait();
    send->wait();
    for (std::size_t i = 0; i < into.size(); ++i) {
      EXPECT_TRUE(into[i].equal(expected[i])) << i << ": " << into[i] << expected[i];
    }
  });
}

TEST_P(EveryTransport, CountsMessagesWithoutElementsToo) {
  run(2, [](Rank& rank) {
    const at::Tensor into = number(-1);
    if (rank.index == 0) {
      rank.transport->send(1, kPipeline, {torch::empty({0})})->wait();
      rank.transport->send(1, kPipeline, {})->wait();
      rank.transport->send(1, kPipeline, {number(3)})->wait();
    } else {
      rank.transport->receive(0, kPipeline, {torch::empty({0})})->wait();
      rank.transport->receive(0, kPipeline, {})->wait();
      rank.transport->receive(0, kPipeline, {into})->wait();
      EXPECT_TRUE(into.equal(number(3))) << into;
    }
  });
}

TEST_P(EveryTransport, SendsWhatRequiresGradWithoutRecordingIt) {
  run(2, [](Rank& rank) {
    if (rank.index == 0) {
      rank.transport->send(1, kPipeline, {number(3).requires_grad_()})->wait();
    } else {
      const at::Tensor into = number(-1);
      rank.transport->receive(0, kPipeline, {into})->wait();
      EXPECT_FALSE(into.requires_grad());
      EXPECT_TRUE(into.equal(number(3))) << into;
    }
  });
}

// With two ranks both neighbours are one peer, and messages of each channel and direction have an order of their own.
TEST_P(EveryTransport, KeepsChannelsAndDirectionsApart) {
  run(2, [](Rank& rank) {
    const int peer = 1 - rank.index;
    const std::vector<int> mine =
        rank.index == 0 ? std::vector{kPipeline, kMirror, kOther} : std::vector{kOther, kPipeline, kMirror};
    std::vector<std::unique_ptr<Transfer>> sends;
    for (int i = 0; i < 8; ++i) {
      for (const int channel : mine) {
        sends.push_back(rank.transport->send(peer, channel, {number(1000 * rank.index + 10 * i + channel)}));
      }
    }
    for (int i = 0; i < 8; ++i) {
      for (const int channel : {kMirror, kOther, kPipeline}) {
        const at::Tensor into = number(-1);
        rank.transport->receive(peer, channel, {into})->wait();
        EXPECT_TRUE(into.equal(number(1000 * peer + 10 * i + channel))) << i << " " << channel << into;
      }
    }
    for (auto& send : sends) {
      send->wait();
    }
  });
}

// The steady state of a pipeline: two receives posted ahead on each of the four directed edges of a middle rank.
TEST_P(EveryTransport, CarriesARingWithTwoSlotsPerEdge) {
  constexpr int kMessages = 40;
  run(4,
      [](Rank& rank) {
        const int next = (rank.index + 1) % 4;
        const int previous = (rank.index + 3) % 4;
        std::vector<std::unique_ptr<Transfer>> sends;
        struct Slot {
          at::Tensor forward = number(-1);
          at::Tensor backward = number(-1);
          std::unique_ptr<Transfer> from_previous;
          std::unique_ptr<Transfer> from_next;
        };
        std::vector<Slot> slots(2);
        const auto post = [&](Slot& slot) {
          slot.from_previous = rank.transport->receive(previous, kPipeline, {slot.forward});
          slot.from_next = rank.transport->receive(next, kPipeline, {slot.backward});
        };
        post(slots[0]);
        post(slots[1]);
        for (int i = 0; i < kMessages; ++i) {
          sends.push_back(rank.transport->send(next, kPipeline, {number(100 * rank.index + i)}));
          sends.push_back(rank.transport->send(previous, kPipeline, {number(-100 * rank.index - i)}));
          Slot& slot = slots[i % 2];
          slot.from_next->wait();
          slot.from_previous->wait();
          EXPECT_TRUE(slot.forward.equal(number(100 * previous + i)));
          EXPECT_TRUE(slot.backward.equal(number(-100 * next - i)));
          if (i + 2 < kMessages) {
            post(slot);
          }
        }
        for (auto& send : sends) {
          send->wait();
        }
      },
      {.bound = milliseconds(60000), .timeout = milliseconds(50000), .delay = {}});
}

TEST_P(EveryTransport, MovesBigMessagesBothWays) {
  constexpr std::int64_t kElements = (16 << 20) / sizeof(float);
  run(2, [](Rank& rank) {
    const int peer = 1 - rank.index;
    for (int i = 0; i < 4; ++i) {
      const at::Tensor into = torch::zeros({kElements});
      auto send = rank.transport->send(peer, kPipeline, {torch::full({kElements}, 10.0f * rank.index + i)});
      auto receive = rank.transport->receive(peer, kPipeline, {into});
      receive->wait();
      send->wait();
      EXPECT_TRUE(into.eq(10.0f * peer + i).all().item<bool>());
    }
  });
}

// --- collectives

TEST_P(EveryTransport, SumsInRankOrderWithEqualBitsEverywhere) {
  std::vector<at::Tensor> parts;
  torch::manual_seed(7);
  for (int i = 0; i < 4; ++i) {
    parts.push_back(torch::randn({1000, 3}) * std::pow(10.0, i));
  }
  const at::Tensor expected = ((parts[0] + parts[1]) + parts[2]) + parts[3];
  run(4, [&](Rank& rank) {
    at::Tensor sum = parts[rank.index].clone();
    rank.transport->all_reduce_sum(sum);
    EXPECT_TRUE(sum.equal(expected));
    at::Tensor transposed = parts[rank.index].t().clone().t();
    rank.transport->all_reduce_sum(transposed);
    EXPECT_TRUE(transposed.equal(expected));
    at::Tensor narrow = torch::full({3}, 1.0 + rank.index, at::kBFloat16);
    rank.transport->all_reduce_sum(narrow);
    EXPECT_TRUE(narrow.equal(torch::full({3}, 10.0, at::kBFloat16)));
    at::Tensor count = torch::full({}, rank.index, at::kLong);
    rank.transport->all_reduce_sum(count);
    EXPECT_EQ(count.item<std::int64_t>(), 6);
  });
}

TEST_P(EveryTransport, SumsATensorLongerThanOnePiece) {
  run(2, [](Rank& rank) {
    at::Tensor sum = torch::arange(5'000'000, at::kFloat) * (rank.index + 1);
    rank.transport->all_reduce_sum(sum);
    EXPECT_TRUE(sum.equal(torch::arange(5'000'000, at::kFloat) * 3));
  });
}

TEST_P(EveryTransport, GathersStringsOfAnyLength) {
  run(3, [](Rank& rank) {
    const std::vector<std::string> given{"", "one", std::string("with\0 zero", 10)};
    EXPECT_EQ(rank.transport->all_gather(given[rank.index]), given);
    EXPECT_THAT(rank.transport->all_gather(""), ElementsAre("", "", ""));
  });
}

TEST_P(EveryTransport, BroadcastsFromAnyRoot) {
  run(3, [](Rank& rank) {
    for (int root = 0; root < 3; ++root) {
      at::Tensor tensor = torch::full({2, 3}, rank.index, at::kLong).t();
      rank.transport->broadcast(tensor, root);
      EXPECT_TRUE(tensor.equal(torch::full({3, 2}, root, at::kLong))) << tensor;
    }
  });
}

TEST_P(EveryTransport, WorksAlone) {
  run(1, [](Rank& rank) {
    at::Tensor tensor = number(3);
    rank.transport->all_reduce_sum(tensor);
    rank.transport->broadcast(tensor, 0);
    EXPECT_TRUE(tensor.equal(number(3)));
    EXPECT_THAT(rank.transport->all_gather("me"), ElementsAre("me"));
    EXPECT_EQ(rank.transport->size(), 1);
  });
}

// --- failure

TEST_P(EveryTransport, AbortWakesTheWaitAndFailsWhatFollowsAtOnce) {
  run(2, [](Rank& rank) {
    if (rank.index == 1) {
      return;
    }
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(100));
      rank.transport->abort("rank 1 failed in 0F0: no reason");
      rank.transport->abort("a later reason");
    });
    auto first = rank.transport->receive(1, kPipeline, {number(0)});
    auto second = rank.transport->receive(1, kPipeline, {number(0)});
    const double seconds = seconds_of([&] {
      EXPECT_EQ(error_of([&] { first->wait(); }),
                "rank 0, receive 0 from rank 1 (channel 0): aborted: rank 1 failed in 0F0: no reason");
      EXPECT_EQ(error_of([&] { second->wait(); }),
                "rank 0, receive 1 from rank 1 (channel 0): aborted: rank 1 failed in 0F0: no reason");
      EXPECT_THAT(error_of([&] { rank.transport->send(1, kOther, {number(0)})->wait(); }),
                  StartsWith("rank 0, send 0 to rank 1 (channel 2): aborted: rank 1 failed in 0F0"));
    });
    EXPECT_LT(seconds, 5);
    other.join();
  });
}

TEST_P(EveryTransport, ATimeoutNamesPeerChannelMessageAndTime) {
  run(2,
      [](Rank& rank) {
        if (rank.index == 1) {
          rank.transport->send(0, kMirror, {number(0)})->wait();
          std::this_thread::sleep_for(milliseconds(600));  // Gloo's timeouts break the other side's links too.
          return;
        }
        rank.transport->receive(1, kMirror, {number(0)})->wait();
        auto late = rank.transport->receive(1, kMirror, {number(0)});
        EXPECT_EQ(error_of([&] { late->wait(); }), "rank 0, receive 1 from rank 1 (channel 1): timed out after 300 ms");
      },
      {.bound = milliseconds(60000), .timeout = milliseconds(300), .delay = {}});
}

TEST_P(EveryTransport, RefusesWhatNoMessageMayHold) {
  run(2, [](Rank& rank) {
    EXPECT_THROW(rank.transport->send(rank.index, kPipeline, {number(0)}), std::logic_error);
    EXPECT_THROW(rank.transport->send(2, kPipeline, {number(0)}), std::logic_error);
    EXPECT_THROW(rank.transport->send(1 - rank.index, kPipeline, {at::Tensor()}), std::logic_error);
    EXPECT_THROW(rank.transport->receive(1 - rank.index, kPipeline, {torch::zeros({2, 3}).t()}), std::logic_error);
  });
}

}  // namespace
}  // namespace dualpipe
