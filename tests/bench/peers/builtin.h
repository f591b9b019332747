// tests/bench/peers/builtin.h
//
// The trainer's own 1F1B: its schedule and its messages of 1 KiB, with a chunk so small that what it computes is
// over long before the time that each F and B sleeps for. Asked by requests as the engine is
// (tests/bench/executor/engine.h), of which it reads "microbatches", "pace_ms", "steps" and "at".
#pragma once

#include <memory>
#include <nlohmann/json.hpp>

#include "examples/pretrain_gpt/forward_backward.h"
#include "tests/bench/support/meeting.h"
#include "tests/bench/support/sleep.h"

namespace dualpipe::bench {

class Builtin {
 public:
  // Collective over the ranks of the meeting.
  Builtin(const Meeting& meeting, int num_microbatches);
  nlohmann::json answer(const nlohmann::json& request);

 private:
  void run(char kind, const std::function<void()>& compute);

  pretrain_gpt::Config config_;
  std::unique_ptr<pretrain_gpt::ProcessGroups> groups_;
  std::unique_ptr<pretrain_gpt::ForwardBackward> schedule_;
  pretrain_gpt::ReadMicroBatch read_;
  Sleeper sleeper_;
};

}  // namespace dualpipe::bench
