#include "examples/pretrain_gpt/data/data_position.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>

#include "examples/pretrain_gpt/data/prepare_data.h"
#include "examples/pretrain_gpt/data/split.h"
#include "examples/pretrain_gpt/error.h"

namespace pretrain_gpt {
namespace {

std::unique_ptr<DataPosition> open_part(const Config& config, std::shared_ptr<const IndexedDataset> dataset,
                                        const std::string& part, std::int64_t first, std::int64_t count) {
  if (count < 1) {
    throw UserError("data_path",
                    fmt::format("{} must hold at least one {} sample of seq_length + 1 = {} tokens with split "
                                "{}, got {} tokens; give it more text, or a smaller seq_length",
                                config.data_path, part, config.seq_length + 1, config.split, dataset->num_tokens()));
  }
  return std::make_unique<DataPosition>(
      config, GptSamples(std::move(dataset), config.seq_length, first, count, static_cast<std::uint64_t>(config.seed)));
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

DataPosition::DataPosition(const Config& config, GptSamples samples)
    : samples_(std::move(samples)),
      seq_length_(config.seq_length),
      micro_batch_size_(config.micro_batch_size),
      global_batch_size_(config.global_batch_size),
      vocab_size_(config.vocab_size),
      mask_end_of_document_(config.eod_mask_loss) {}

MicroBatch DataPosition::read(int index) {
  const at::Tensor samples = at::empty({micro_batch_size_, seq_length_ + 1}, at::kLong);
  const std::int64_t first = consumed_samples_ + index * micro_batch_size_;
  for (std::int64_t row = 0; row < micro_batch_size_; ++row) {
    samples_.read(first + row, {samples[row].data_ptr<std::int64_t>(), static_cast<std::size_t>(seq_length_ + 1)});
  }
  check_vocabulary(samples, vocab_size_);
  const at::Tensor labels = samples.narrow(1, 1, seq_length_).contiguous();
  const at::Tensor mask = mask_end_of_document_ ? labels.ne(kEndOfDocument).to(at::kFloat)
                                                : at::ones({micro_batch_size_, seq_length_}, at::kFloat);
  return {samples.narrow(1, 0, seq_length_).contiguous(), labels, mask};
}

TrainingData open_training_data(const Config& config) {
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
  data.training = open_part(config, dataset, "training", 0, for_training);
  if (config.eval_interval > 0) {
    data.validation = open_part(config, dataset, "validation", for_training, split.validation_samples(samples));
  }
  return data;
}

}  // namespace pretrain_gpt
