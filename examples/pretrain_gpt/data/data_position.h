// examples/pretrain_gpt/data/data_position.h
//
// The data of a run as micro-batches, and how far the run has come in it.
//
// Micro-batch k of data-parallel rank d holds samples consumed_samples + (k DP + d) micro_batch_size onwards of the
// stream of shuffled passes over the data, whatever the schedule and the division into ranks; consumed_samples is all
// there is to save and set. Where a pass ends inside a global batch, `last_batch` says what the batch holds:
//   continue  the first samples of the next pass behind it. Every sample counts once per pass.
//   pad       rows that do not count: loss mask 0, and no part in what routers balance. The step's loss and gradients
//             are means over what counts; the next step starts the next pass.
//   drop      nothing: the pass ends before it, and consumed_samples skips what is left.
// Batches of an evaluation are always whole (`continue`).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "examples/pretrain_gpt/config.h"
#include "examples/pretrain_gpt/data/gpt_samples.h"
#include "examples/pretrain_gpt/data/micro_batch.h"

namespace pretrain_gpt {

class DataPosition {
 public:
  // For this data-parallel rank of config.data_parallel_size. Throws UserError where `drop` would drop everything.
  DataPosition(const Config& config, GptSamples samples, int data_parallel_rank = 0);

  std::int64_t consumed_samples() const { return consumed_samples_; }
  void set_consumed_samples(std::int64_t samples);

  // Throws UserError where a token does not fit vocab_size.
  MicroBatch read(int index);
  void advance();  // To the next step.

  // Samples of the current step that count: its first ones.
  std::int64_t samples_of_step() const;

  std::int64_t size() const { return samples_.size(); }

 private:
  std::int64_t left_in_pass() const { return size() - consumed_samples_ % size(); }
  void drop_incomplete_batch();

  GptSamples samples_;
  std::int64_t seq_length_, micro_batch_size_, global_batch_size_, vocab_size_;
  std::int64_t data_parallel_size_, data_parallel_rank_;
  std::string last_batch_;
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
TrainingData open_training_data(const Config& config, int data_parallel_rank = 0);

}  // namespace pretrain_gpt
