// examples/pretrain_gpt/data/data_position.h
//
// The data of a run as micro-batches, and how far the run has come in it.
//
// Micro-batch k of a step holds samples consumed_samples + k micro_batch_size onwards, whatever the schedule and the
// division into ranks; consumed_samples is all there is to save and set.
#pragma once

#include <cstdint>
#include <memory>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/data/gpt_samples.h"
#include "examples/pretrain_gpt/data/micro_batch.h"

namespace pretrain_gpt {

class DataPosition {
 public:
  DataPosition(const Config& config, GptSamples samples);

  std::int64_t consumed_samples() const { return consumed_samples_; }
  void set_consumed_samples(std::int64_t samples) { consumed_samples_ = samples; }

  // Throws UserError where a token does not fit vocab_size.
  MicroBatch read(int index);
  void advance() { consumed_samples_ += global_batch_size_; }  // To the next step.

  std::int64_t size() const { return samples_.size(); }

 private:
  GptSamples samples_;
  std::int64_t seq_length_, micro_batch_size_, global_batch_size_, vocab_size_;
  bool mask_end_of_document_;
  std::int64_t consumed_samples_ = 0;
};

// The training part of `data_path`, and the validation part where eval_interval asks for one (else null). Throws
// UserError where the data is missing, truncated, or too short for one sample.
struct TrainingData {
  std::unique_ptr<DataPosition> training;
  std::unique_ptr<DataPosition> validation;
  std::int64_t num_tokens = 0;  // Of the whole data set.
};
TrainingData open_training_data(const Config& config);

}  // namespace pretrain_gpt
