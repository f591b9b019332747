#include "examples/pretrain_gpt/iteration_record.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace pretrain_gpt {

void LogInterval::add(const IterationRecord& record) {
  last = record;
  ++steps;
  skipped += record.skipped ? 1 : 0;
  loss_sum += record.lm_loss;
  ms_sum += record.ms;
}

std::string megatron_line(const LogInterval& interval, const Config& config) {
  const auto steps = static_cast<double>(interval.steps);
  const double ms = interval.ms_sum / steps;
  const auto tokens = static_cast<double>(config.global_batch_size * config.seq_length);
  std::string line = fmt::format(
      " iteration {:8}/{:8} | consumed samples: {:12} | elapsed time per iteration (ms): {:.1f} | tokens per second: "
      "{:.0f} |"
      " learning rate: {:.6E} | global batch size: {:5} | lm loss: {:.6E} | grad norm: {:.3f} |"
      " number of skipped iterations: {:3} |",
      interval.last.iteration, config.train_iters, interval.last.consumed_samples, ms, tokens * 1000 / ms,
      interval.last.lr, config.global_batch_size, interval.loss_sum / steps, interval.last.grad_norm, interval.skipped);
  if (interval.last.validation_loss) {
    line += fmt::format(" validation loss: {:.6E} |", *interval.last.validation_loss);
  }
  return line;
}

std::string metrics_line(const IterationRecord& record) {
  nlohmann::ordered_json json = {{"iteration", record.iteration},
                                 {"lm_loss", record.lm_loss},
                                 {"grad_norm", record.grad_norm},
                                 {"lr", record.lr},
                                 {"ms", record.ms},
                                 {"tokens_per_second", record.tokens_per_second}};
  if (record.validation_loss) {
    json["validation_loss"] = *record.validation_loss;
  }
  if (record.skipped) {
    json["skipped"] = true;
  }
  return json.dump();
}

}  // namespace pretrain_gpt
