// tests/libtorch_host/trainer_case.h
//
// What the tests of the trainer's gradients share: random micro-batches, the same model whole in one process under
// plain autograd, a schedule by name, and the comparison of a rank's parts with the whole.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/forward_backward.h"
#include "examples/pretrain_gpt/parallel/groups.h"
#include "tests/support/run_processes.h"

namespace dualpipe {

// 8 layers of 16 in float64; 16 micro-batches of 2 samples.
pretrain_gpt::Config small_config(const std::string& schedule);

// Micro-batch `index` of all of a step's, over all data-parallel ranks. Random tokens; every fifth label does not
// count.
pretrain_gpt::MicroBatch random_micro_batch(const pretrain_gpt::Config& config, int step, int index);

// One step of the whole model. `config` as it is for one process; micro-batches of the step in turn.
struct WholeStep {
  std::shared_ptr<pretrain_gpt::GptChunk> chunk;
  double loss = 0;
  double grad_norm() const;
};
WholeStep run_whole_step(pretrain_gpt::Config config);

void require(bool holds, const std::string& what);

// Each parameter's gradient is that of the whole one's elements that have the same initial values: nothing is known
// here of how a parameter is divided. Norm-wise within 1e-10.
void compare_gradients(const std::vector<pretrain_gpt::GptChunk*>& chunks, const pretrain_gpt::GptChunk& whole);

// Every (name, part) means the same bits on every rank that has it.
void compare_copies(const pretrain_gpt::TrainContext& context, const std::string& key,
                    const std::vector<pretrain_gpt::GptChunk*>& chunks);

// Groups, context and schedule of one process of a case.
class TrainerRank {
 public:
  // `key` is new for every one that a process makes.
  TrainerRank(const Process& process, pretrain_gpt::Config config, const std::string& key);

  // This rank's micro-batches of a step; fails where one enters at a rank where it should not.
  pretrain_gpt::ReadMicroBatch reader(int step) const;
  const pretrain_gpt::Config& config() const { return config_; }
  const pretrain_gpt::TrainContext& context() const { return *context_; }
  pretrain_gpt::ForwardBackward& schedule() { return *schedule_; }

 private:
  pretrain_gpt::Config config_;
  std::optional<pretrain_gpt::ProcessGroups> groups_;
  std::optional<pretrain_gpt::TrainContext> context_;
  std::unique_ptr<pretrain_gpt::ForwardBackward> schedule_;
};

}  // namespace dualpipe
