#include <gmock/gmock.h>
#include <torch/types.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <thread>

#include "plugin/runtime/c10d_transport.h"
#include "tests/support/gloo_group.h"
#include "tests/support/run_processes.h"

namespace dualpipe {
namespace {

using std::chrono::milliseconds;
using ::testing::IsEmpty;

constexpr int kPipeline = 0;
constexpr milliseconds kTimeout{30000};

void expect_success(const std::vector<Outcome>& outcomes) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_EQ(outcomes[rank].exit_code, 0) << "rank " << rank << ": " << outcomes[rank].to_string();
    EXPECT_THAT(outcomes[rank].err, IsEmpty()) << "rank " << rank;
  }
}

void require(bool holds, const std::string& what) {
  if (!holds) {
    throw std::runtime_error(what);
  }
}

at::Tensor number(double value) { return torch::full({1024}, value, torch::kDouble); }

// A fresh sub-group of ranks 1, 2, 4 and 5 of 6 per start, its first message the pipeline's; ranks 0 and 3 just leave.
DUALPIPE_PROCESS_BODY(sub_group_of_four) {
  if (process.rank == 0 || process.rank == 3) {
    return;
  }
  const int index = process.rank < 3 ? process.rank - 1 : process.rank - 2;
  const auto store = process.connect();
  for (int start = 0; start < 10; ++start) {
    const auto prefixed = c10::make_intrusive<c10d::PrefixStore>(std::to_string(start), store);
    const auto group = make_gloo_group(prefixed, index, 4, kTimeout);
    const auto transport = make_c10d_transport(group, {.timeout = kTimeout});
    at::Tensor value = number(start);
    if (index > 0) {
      transport->receive(index - 1, kPipeline, {value})->wait();
      value += 1;
    }
    if (index < 3) {
      transport->send(index + 1, kPipeline, {value})->wait();
    }
    require(value.equal(number(start + index)), "rank " + std::to_string(process.rank) + " got a wrong value");
  }
}

TEST(TransportProcesses, FieldReport17FirstMessageOnASubGroup) {
  for (int repeat = 0; repeat < 3; ++repeat) {
    expect_success(run_processes(6, "sub_group_of_four"));
  }
}

// The sender lets go of each tensor as soon as it has posted it; the allocator may reuse whatever is freed too early.
DUALPIPE_PROCESS_BODY(slow_receiver) {
  constexpr std::int64_t kElements = (16 << 20) / sizeof(float);
  const int messages = std::stoi(process.args.at(0));
  const auto transport = make_c10d_transport(make_gloo_group(process.connect(), process.rank, 2, kTimeout));
  std::vector<std::unique_ptr<Transfer>> sends;
  const at::Tensor into = torch::zeros({kElements});
  for (int i = 0; i < messages; ++i) {
    if (process.rank == 0) {
      sends.push_back(transport->send(1, kPipeline, {torch::full({kElements}, float(i))}));
      if (i >= 3) {
        sends[i - 3]->wait();
        sends[i - 3].reset();
      }
    } else {
      std::this_thread::sleep_for(milliseconds(i % 10 == 0 ? 100 : 1));
      transport->receive(0, kPipeline, {into})->wait();
      require(into.eq(float(i)).all().item<bool>(), "message " + std::to_string(i) + " is not what was sent");
    }
  }
  for (auto& send : sends) {
    if (send) {
      send->wait();
    }
  }
}

TEST(TransportProcesses, FieldReport37SlowReceiverGetsExactlyWhatWasSent) {
  expect_success(run_processes(2, "slow_receiver", {"60"}));
}

// Each rank returns from main right after its last step; the slow one sleeps before its last receive.
DUALPIPE_PROCESS_BODY(leaves_at_once) {
  const int slow = std::stoi(process.args.at(0));
  const auto transport = make_c10d_transport(make_gloo_group(process.connect(), process.rank, 4, kTimeout));
  std::vector<std::unique_ptr<Transfer>> sends;
  for (int i = 0; i < 4; ++i) {
    at::Tensor value = number(10 * i);
    if (i == 3 && process.rank == slow) {
      std::this_thread::sleep_for(std::chrono::seconds(2));
    }
    if (process.rank > 0) {
      transport->receive(process.rank - 1, kPipeline, {value})->wait();
      require(value.equal(number(10 * i + process.rank)), "a message is lost");
    }
    if (process.rank < 3) {
      sends.push_back(transport->send(process.rank + 1, kPipeline, {value + 1}));
    }
  }
  for (auto& send : sends) {
    send->wait();
  }
}

TEST(TransportProcesses, FieldReport61ALateReceiverLosesNothing) {
  for (const char* slow : {"3", "2", "1"}) {
    expect_success(run_processes(4, "leaves_at_once", {slow}));
  }
}

}  // namespace
}  // namespace dualpipe
