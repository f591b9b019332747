#include "examples/pretrain_gpt/data/data_position.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "examples/pretrain_gpt/data/prepare_data.h"
#include "examples/pretrain_gpt/data/split.h"
#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {
namespace {

std::unique_ptr<DataPosition> open_part(const Config& config, std::shared_ptr<const IndexedDataset> dataset,
                                        const std::string& part, std::int64_t first, std::int64_t count,
                                        int data_parallel_rank) {
  if (count < 1) {
    throw UserError("data_path",
                    fmt::format("{} must hold at least one {} sample of seq_length + 1 = {} tokens with split "
                                "{}, got {} tokens; give it more text, or a smaller seq_length",
                                config.data_path, part, config.seq_length + 1, config.split, dataset->num_tokens()));
  }
  return std::make_unique<DataPosition>(
      config, GptSamples(std::move(dataset), config.seq_length, first, count, static_cast<std::uint64_t>(config.seed)),
      data_parallel_rank);
}

void check_vocabulary(const at::Tensor& tokens, std::int64_t vocab_size) {
  const auto least = tokens.min().item<std::int64_t>(), most = tokens.max().item<std::int64_t>();
  if (least < 0 || most >= vocab_size) {
    throw UserError("vocab_size",
                    fmt::format("must be above every token of the data, got {} with token {}; for example {}",
                                vocab_size, least < 0 ? least : most, std::max<std::int64_t>(256, most + 1)));
  }
}

}  // namespace

DataPosition::DataPosition(const Config& config, GptSamples samples, int data_parallel_rank)
    : samples_(std::move(samples)),
      seq_length_(config.seq_length),
      micro_batch_size_(config.micro_batch_size),
      global_batch_size_(config.global_batch_size),
      vocab_size_(config.vocab_size),
      data_parallel_size_(config.data_parallel_size),
      data_parallel_rank_(data_parallel_rank),
      last_batch_(config.last_batch),
      mask_end_of_document_(config.eod_mask_loss) {
  if (last_batch_ == "drop" && size() < global_batch_size_) {
    throw UserError("last_batch", fmt::format("drop must leave a batch of global_batch_size = {}, got {} samples in a "
                                              "pass; for example pad",
                                              global_batch_size_, size()));
  }
}

void DataPosition::set_consumed_samples(std::int64_t samples) {
  consumed_samples_ = samples;
  drop_incomplete_batch();
}

void DataPosition::advance() {
  consumed_samples_ += samples_of_step();
  drop_incomplete_batch();
}

std::int64_t DataPosition::samples_of_step() const {
  return last_batch_ == "pad" ? std::min(global_batch_size_, left_in_pass()) : global_batch_size_;
}

void DataPosition::drop_incomplete_batch() {
  if (last_batch_ == "drop" && left_in_pass() < global_batch_size_) {
    consumed_samples_ += left_in_pass();
  }
}

MicroBatch DataPosition::read(int index) {
  const at::Tensor samples = at::zeros({micro_batch_size_, seq_length_ + 1}, at::kLong);
  const std::int64_t first = (index * data_parallel_size_ + data_parallel_rank_) * micro_batch_size_;
  const std::int64_t left = last_batch_ == "pad" ? left_in_pass() - first : micro_batch_size_;
  const std::int64_t rows = std::clamp<std::int64_t>(left, 0, micro_batch_size_);
  for (std::int64_t row = 0; row < rows; ++row) {
    samples_.read(consumed_samples_ + first + row,
                  {samples[row].data_ptr<std::int64_t>(), static_cast<std::size_t>(seq_length_ + 1)});
  }
  check_vocabulary(samples, vocab_size_);
  const at::Tensor labels = samples.narrow(1, 1, seq_length_).contiguous();
  const at::Tensor mask = mask_end_of_document_ ? labels.ne(kEndOfDocument).to(at::kFloat)
                                                : at::ones({micro_batch_size_, seq_length_}, at::kFloat);
  mask.narrow(0, rows, micro_batch_size_ - rows).zero_();
  return {samples.narrow(1, 0, seq_length_).contiguous(), labels, mask};
}

TrainingData open_training_data(const Config& config, int data_parallel_rank) {
  if (config.data_path.empty()) {
    throw UserError("data_path",
                    "must name an indexed data set, got nothing; for example data_path: data/text, made with "
                    "`pretrain_gpt prepare-data --input FILES --output data/text`");
  }
  const auto dataset = std::make_shared<const IndexedDataset>(config.data_path);
  const Split split = parse_split(config.split, "split");
  const std::int64_t samples = GptSamples::samples_of(*dataset, config.seq_length);
  const std::int64_t for_training = split.training_samples(samples);
  TrainingData data;
  data.num_tokens = dataset->num_tokens();
  data.training = open_part(config, dataset, "training", 0, for_training, data_parallel_rank);
  if (config.eval_interval > 0) {
    Config whole = config;
    whole.last_batch = "continue";
    data.validation =
        open_part(whole, dataset, "validation", for_training, split.validation_samples(samples), data_parallel_rank);
  }
  return data;
}

}  // namespace pretrain_gpt
