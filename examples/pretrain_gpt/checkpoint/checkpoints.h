// examples/pretrain_gpt/checkpoint/checkpoints.h
//
// The checkpoints of a run: where it goes on from, and what it saves.
//
// A checkpoint knows no schedule and no layout: it holds every parameter of the model with its optimizer state once, by
// logical name, and loads under any schedule and any sizes of tensor, pipeline, expert and data parallelism, with a
// distributed optimizer or without. Nothing in it is executable. Under the layout that it was saved from, a run goes on
// as if it had never stopped, to the bit; under another one it begins at the same bits.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/checkpoint/checkpoint_writer.h"
#include "examples/pretrain_gpt/checkpoint/find_checkpoint.h"
#include "examples/pretrain_gpt/checkpoint/held_state.h"
#include "examples/pretrain_gpt/checkpoint/snapshot.h"
#include "examples/pretrain_gpt/forward_backward.h"

namespace pretrain_gpt {

// How long a rank may read or write its share, and the others wait for it: disks may take longer than steps.
std::chrono::seconds save_patience(const Config& config);

class Checkpoints {
 public:
  // The run's parts; all outlive this. `store`: a client of its own for the thread that saves, null where
  // `config.save` is empty. On this rank's main thread `say` takes lines for the log, and `set_waits` is told when it
  // begins and ends to wait for other ranks, or for a thread that does.
  struct Run {
    const TrainContext& context;
    std::vector<GptChunk*> chunks;
    torch::optim::Optimizer& optimizer;
    std::int64_t num_tokens = 0;  // Of the data set.
    c10::intrusive_ptr<c10d::Store> store;
    std::function<void(const std::string& line)> say;
    std::function<void(bool waits)> set_waits = [](bool) {};
  };

  // Collective where `save` or `load` is set, and nothing where not.
  explicit Checkpoints(Run run);

  // Collective, before the first step: fills the model and the optimizer from `load`, and clears `save` of what earlier
  // runs left half done. Gives the position to go on from; {0, 0} where training begins anew. Throws CheckpointError,
  // the same on all ranks, where a checkpoint does not fit; parameters may be of either by then.
  TrainingPosition load();

  // Collective, after every step: saves where save_interval says so, and tells of a save that is done by now. Throws
  // CheckpointError, the same on all ranks but maybe not after the same step, where one has failed.
  void after_step(const TrainingPosition& position);

  // Collective: saves, unless this position is saved.
  void save(const TrainingPosition& position);

  // Collective: returns once everything is on the disk.
  void finish();

 private:
  const Config& config() const { return run_.context.config; }
  void set_saver_waits(bool waits);
  Manifest base_manifest() const;
  void exchange_plan();
  void make_writer(const std::vector<std::vector<HeldBox>>& by_rank);
  std::optional<FoundCheckpoint> find(std::vector<std::int64_t>& passed_over);
  void fill_from(const FoundCheckpoint& found);
  void prepare_save_folder(std::int64_t iteration, const std::vector<std::int64_t>& passed_over) const;
  void agree(const std::function<void()>& work);  // Throws on all ranks what it throws on any.
  void collect();                                 // The save that is under way; waits for it.

  Run run_;
  std::optional<RankExchange> exchange_;  // The main thread's.
  std::optional<HeldState> held_;
  std::vector<std::string> names_;  // Of the tensors of all ranks, sorted; on the first rank.
  std::optional<Snapshot> snapshot_;
  std::optional<CheckpointWriter> writer_;
  std::optional<TrainingPosition> saved_;  // Last one that was saved or loaded.
  std::atomic<bool> saver_waits_{false};   // The thread that saves: for other ranks.
  std::future<SaveReport> under_way_;      // Behind what its thread uses.
};

}  // namespace pretrain_gpt
