#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <thread>
#include <utility>

#include "plugin/runtime/c10d_transport.h"
#include "tests/support/gloo_group.h"
#include "tests/support/run_ranks.h"

namespace dualpipe {
namespace {

std::vector<Rank> gloo_ranks(int count, const RunOptions& options) {
  auto failures = make_loopback_failure_channel();
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<Rank> ranks(count);
  for (int i = 0; i < count; ++i) {
    ranks[i] = Rank{i, count, nullptr, failures, {}, store};
  }
  const auto connect = [&](Rank& rank) { rank.group = make_gloo_group(store, rank.index, count, options.timeout); };
  std::vector<std::thread> threads;
  for (Rank& rank : ranks) {
    threads.emplace_back(connect, std::ref(rank));
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (Rank& rank : ranks) {
    rank.transport = make_c10d_transport(rank.group, {.timeout = options.timeout, .failures = failures});
  }
  return ranks;
}

}  // namespace

void run_gloo_ranks(int ranks, const RankBody& body, const RunOptions& options) {
  run_on(gloo_ranks(ranks, options), body, options);
}

std::vector<std::optional<std::string>> errors_of_gloo_ranks(int ranks, const RankBody& body,
                                                             const RunOptions& options) {
  return errors_on(gloo_ranks(ranks, options), body, options);
}

}  // namespace dualpipe
