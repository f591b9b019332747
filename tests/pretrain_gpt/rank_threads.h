// tests/pretrain_gpt/rank_threads.h
//
// Ranks as threads of the test, each with its Gloo groups over one in-memory store. It needs nothing of the plugin.
#pragma once

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "examples/pretrain_gpt/distributed.h"
#include "examples/pretrain_gpt/forward_backward.h"

namespace pretrain_gpt {

// Calls body once per rank; rethrows the first exception by rank. A body that throws leaves the others to their
// timeout.
inline void run_threads(int world_size,
                        const std::function<void(const Environment&, const c10::intrusive_ptr<c10d::Store>&)>& body) {
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Environment environment;
        environment.rank = rank;
        environment.world_size = environment.local_world_size = world_size;
        body(environment, store);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

// The same with the groups of the layout that `config` asks for in a world of that size.
inline void run_rank_threads(const Config& config, int world_size, const std::function<void(const TrainContext&)>& body,
                             bool mirrored = false) {
  Config resolved = config;
  resolve(resolved, world_size);
  const RankLayout layout(parallel_sizes(resolved, mirrored));
  run_threads(world_size, [&](const Environment& environment, const c10::intrusive_ptr<c10d::Store>& store) {
    const ProcessGroups groups(layout, environment, store, std::chrono::seconds(60));
    body({resolved, groups, store, "."});
  });
}

}  // namespace pretrain_gpt
