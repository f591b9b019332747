// examples/pretrain_gpt/iteration_record.h
//
// What a training step leaves for the log.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "examples/pretrain_gpt/config.h"

namespace pretrain_gpt {

struct IterationRecord {
  std::int64_t iteration = 0;         // From 1.
  std::int64_t consumed_samples = 0;  // After this step.
  double lm_loss = 0;
  double grad_norm = 0;
  double lr = 0;
  double ms = 0;  // Wall time of the step.
  double tokens_per_second = 0;
  bool skipped = false;
  std::optional<double> validation_loss;
};

// Several steps as one log line says them: means of loss, time and speed; norm and rate of the last.
struct LogInterval {
  IterationRecord last;
  std::int64_t steps = 0;
  std::int64_t skipped = 0;
  double loss_sum = 0;
  double ms_sum = 0;

  void add(const IterationRecord& record);
};

// " iteration       10/     200 | consumed samples:          160 | elapsed time per iteration (ms): …"
std::string megatron_line(const LogInterval& interval, const Config& config);

// A JSON object on one line, numbers with all their digits: iteration, lm_loss, grad_norm, lr, ms, tokens_per_second;
// with validation_loss after an evaluation, and skipped (true) where the step was.
std::string metrics_line(const IterationRecord& record);

}  // namespace pretrain_gpt
