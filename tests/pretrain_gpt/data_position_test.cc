#include "examples/pretrain_gpt/data/data_position.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "examples/pretrain_gpt/data/indexed_writer.h"
#include "examples/pretrain_gpt/error.h"
#include "tests/support/temporary_folder.h"

namespace pretrain_gpt {
namespace {

std::string refusal(const Config& config) {
  try {
    open_training_data(config).training->read(0);
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

class DataPositionTest : public testing::Test {
 protected:
  void SetUp() override {
    config_.data_path = folder_.file("d");
    config_.seq_length = 4;
    config_.micro_batch_size = 2;
    config_.global_batch_size = 6;
    std::vector<std::uint8_t> tokens(201);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<std::uint8_t>(i % 10 == 9 ? 0 : i);
    }
    IndexedWriter writer(config_.data_path);
    writer.add_document(tokens);
    writer.finish();
  }

  dualpipe::TemporaryFolder folder_;
  Config config_;
};

TEST_F(DataPositionTest, LabelsAreTheTokensThatFollow) {
  const TrainingData data = open_training_data(config_);
  const MicroBatch batch = data.training->read(0);
  EXPECT_EQ(batch.tokens.sizes(), (std::vector<std::int64_t>{2, 4}));
  EXPECT_TRUE(at::equal(batch.tokens.narrow(1, 1, 3), batch.labels.narrow(1, 0, 3)));
  EXPECT_TRUE(at::equal(batch.loss_mask, at::ones({2, 4})));
}

TEST_F(DataPositionTest, AMicroBatchIsTheSameInAnyOrderAndHoldsTheNextSamples) {
  const TrainingData one = open_training_data(config_), other = open_training_data(config_);
  const MicroBatch last = one.training->read(2), first = one.training->read(0);
  EXPECT_TRUE(at::equal(other.training->read(0).tokens, first.tokens));
  EXPECT_TRUE(at::equal(other.training->read(2).tokens, last.tokens));
  config_.micro_batch_size = 1;  // The same samples, cut another way.
  const TrainingData finer = open_training_data(config_);
  EXPECT_TRUE(at::equal(at::cat({finer.training->read(4).tokens, finer.training->read(5).tokens}), last.tokens));
}

TEST_F(DataPositionTest, CanBeSavedAndSet) {
  const TrainingData run = open_training_data(config_), resumed = open_training_data(config_);
  run.training->advance();
  run.training->advance();
  EXPECT_EQ(run.training->consumed_samples(), 12);
  resumed.training->set_consumed_samples(12);
  EXPECT_TRUE(at::equal(run.training->read(1).tokens, resumed.training->read(1).tokens));
}

// 50 samples in steps of 6: the last step of a pass takes the first samples of the next.
TEST_F(DataPositionTest, FieldReport56GoesOnWithTheNextPass) {
  config_.split = "1";
  const TrainingData data = open_training_data(config_);
  EXPECT_EQ(data.training->size(), 50);
  data.training->set_consumed_samples(48);
  const MicroBatch across = data.training->read(1);
  data.training->set_consumed_samples(50);
  EXPECT_TRUE(at::equal(across.tokens, data.training->read(0).tokens));
}

// 50 samples in steps of 6: of the last step 2 samples count.
TEST_F(DataPositionTest, FieldReport56PadsWithRowsThatDoNotCount) {
  config_.split = "1";
  const TrainingData whole = open_training_data(config_);
  config_.last_batch = "pad";
  config_.micro_batch_size = 3;
  const TrainingData data = open_training_data(config_);
  data.training->set_consumed_samples(48);
  whole.training->set_consumed_samples(48);
  const MicroBatch half = data.training->read(0), empty = data.training->read(1);
  EXPECT_TRUE(at::equal(half.tokens.narrow(0, 0, 2), whole.training->read(0).tokens));
  EXPECT_EQ(half.loss_mask.sum().item<double>(), 8);
  EXPECT_EQ(half.loss_mask[2].sum().item<double>(), 0);
  EXPECT_EQ(empty.loss_mask.sum().item<double>(), 0);
  EXPECT_EQ(empty.tokens.sizes(), (std::vector<std::int64_t>{3, 4}));
  data.training->advance();
  EXPECT_EQ(data.training->consumed_samples(), 50);
}

TEST_F(DataPositionTest, SaysHowManySamplesOfAStepCount) {
  config_.split = "1";
  for (const auto& [rule, count] : {std::pair("continue", 6), std::pair("pad", 2)}) {
    config_.last_batch = rule;
    const TrainingData data = open_training_data(config_);
    EXPECT_EQ(data.training->samples_of_step(), 6);
    data.training->set_consumed_samples(48);
    EXPECT_EQ(data.training->samples_of_step(), count) << rule;
  }
}

// 25 samples in steps of 6.
TEST_F(DataPositionTest, BatchesOfAnEvaluationAreWhole) {
  config_.split = "1,1";
  config_.eval_interval = 1;
  for (const char* rule : {"pad", "drop"}) {
    config_.last_batch = rule;
    const TrainingData data = open_training_data(config_);
    ASSERT_EQ(data.validation->size(), 25);
    data.validation->set_consumed_samples(24);
    EXPECT_EQ(data.validation->consumed_samples(), 24) << rule;
    EXPECT_EQ(data.validation->read(2).loss_mask.sum().item<double>(), 8) << rule;
    data.validation->advance();
    EXPECT_EQ(data.validation->consumed_samples(), 30) << rule;
  }
}

TEST_F(DataPositionTest, FieldReport56DropsWhatIsLeftOfAPass) {
  config_.split = "1";
  config_.last_batch = "drop";
  const TrainingData data = open_training_data(config_);
  for (int step = 0; step < 8; ++step) {
    EXPECT_EQ(data.training->consumed_samples(), step * 6);
    data.training->advance();
  }
  EXPECT_EQ(data.training->consumed_samples(), 50);
  data.training->set_consumed_samples(48);
  EXPECT_EQ(data.training->consumed_samples(), 50);
}

TEST_F(DataPositionTest, FieldReport56RefusesToDropEverything) {
  config_.last_batch = "drop";
  config_.split = "1";
  config_.global_batch_size = 60;
  EXPECT_EQ(
      refusal(config_),
      "[last_batch] drop must leave a batch of global_batch_size = 60, got 50 samples in a pass; for example pad");
}

// Micro-batch k of rank d is micro-batch k x 2 + d of one rank.
TEST_F(DataPositionTest, DataParallelRanksTakeTurns) {
  config_.global_batch_size = 12;
  const TrainingData whole = open_training_data(config_);
  config_.data_parallel_size = 2;
  for (int rank : {0, 1}) {
    const TrainingData part = open_training_data(config_, rank);
    for (int k = 0; k < 3; ++k) {
      EXPECT_TRUE(at::equal(part.training->read(k).tokens, whole.training->read(k * 2 + rank).tokens));
    }
    part.training->advance();
    EXPECT_EQ(part.training->consumed_samples(), 12);
  }
}

TEST_F(DataPositionTest, MasksTheEndOfADocument) {
  config_.eod_mask_loss = true;
  const TrainingData data = open_training_data(config_);
  const MicroBatch batch = data.training->read(0);
  EXPECT_TRUE(at::equal(batch.loss_mask, batch.labels.ne(0).to(at::kFloat)));
}

TEST_F(DataPositionTest, TrainingAndValidationShareNoSample) {
  config_.split = "4,1";
  config_.eval_interval = 1;
  const TrainingData data = open_training_data(config_);
  EXPECT_EQ(data.training->size(), 40);
  EXPECT_EQ(data.validation->size(), 10);
  for (int k = 0; k < 5; ++k) {
    EXPECT_TRUE(data.validation->read(k).tokens.select(1, 0).ge(160).all().item<bool>());
  }
}

TEST_F(DataPositionTest, RefusesDataThatDoesNotFit) {
  Config config = config_;
  config.vocab_size = 1;
  EXPECT_NE(refusal(config).find("[vocab_size] must be above every token of the data, got 1 with token "),
            std::string::npos);
  config = config_;
  config.seq_length = 201;
  EXPECT_EQ(refusal(config),
            "[data_path] " + config_.data_path +
                " must hold at least one training sample of seq_length + 1 = 202 tokens with split 99,1, "
                "got 201 tokens; give it more text, or a smaller seq_length");
  config = config_;
  config.split = "1,0";
  config.eval_interval = 1;
  EXPECT_NE(refusal(config).find("at least one validation sample"), std::string::npos);
  config.data_path = "";
  EXPECT_EQ(refusal(config),
            "[data_path] must name an indexed data set, got nothing; for example data_path: data/text, made with "
            "`pretrain_gpt prepare-data --input FILES --output data/text`");
}

}  // namespace
}  // namespace pretrain_gpt
