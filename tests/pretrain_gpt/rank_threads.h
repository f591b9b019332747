// tests/pretrain_gpt/rank_threads.h
//
// Ranks as threads of the test, each with a Gloo group over one in-memory store. It needs nothing of the plugin.
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

// Calls body(context) once per rank; rethrows the first exception by rank. A body that throws leaves the others to
// their timeout.
inline void run_rank_threads(const Config& config, int world_size,
                             const std::function<void(const TrainContext&)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Environment environment;
        environment.rank = rank;
        environment.world_size = environment.local_world_size = world_size;
        const auto group = make_gloo_group(store, environment, std::chrono::seconds(30));
        body({config, rank, world_size, group, store, "."});
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

}  // namespace pretrain_gpt
