// examples/pretrain_gpt/checkpoint/checkpoint_writer.h
//
// Writes a checkpoint, all ranks side by side: each its file into <save>/iter_<n>.tmp, then the first rank the
// manifest, and one rename. A save that is cut off anywhere leaves the checkpoints that were there as they were.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/checkpoint/manifest.h"
#include "examples/pretrain_gpt/checkpoint/rank_exchange.h"
#include "examples/pretrain_gpt/checkpoint/safetensors_file.h"

namespace pretrain_gpt {

// After a step.
struct TrainingPosition {
  std::int64_t iteration = 0;  // Steps that are done.
  std::int64_t consumed_samples = 0;

  bool operator==(const TrainingPosition&) const = default;
};

struct SaveReport {
  std::filesystem::path folder;
  std::int64_t iteration = 0;
  std::uint64_t bytes = 0;  // Of all ranks' files.
  double seconds = 0;       // From the start of the save until it has its name.
  double waited = 0;        // Seconds of training that it took, on the rank where it took most.
  std::string note;         // An older checkpoint that could not be removed, say.
};

// "checkpoint of iteration 20: save/iter_0000020, 1.23 MB in 45.2 ms; training waited 0.8 ms (1.8 %)"
std::string print_report(const SaveReport& report);

class CheckpointWriter {
 public:
  // `exchange` is the writer's own. `base` says all but position, files and hashes; its tensors and `writes`, whether a
  // rank has anything to write, matter on the first rank alone. `mine` is what this rank writes.
  CheckpointWriter(std::filesystem::path save, std::int64_t keep, RankExchange exchange, Manifest base,
                   std::vector<bool> writes, std::vector<StoredTensor> mine);

  // Collective; on any one thread at a time. `began`: the save, `waited`: seconds until now for which this rank has not
  // trained. Throws CheckpointError, the same on all ranks, where a rank could not write.
  SaveReport write(const TrainingPosition& position, std::chrono::steady_clock::time_point began, double waited,
                   const BytesOf& bytes_of);

 private:
  void make_folder(const std::filesystem::path& folder);
  std::string write_own_file(const std::filesystem::path& folder, double waited, const BytesOf& bytes_of) const;
  std::string complete(const std::filesystem::path& folder, const TrainingPosition& position,
                       const std::vector<std::string>& records);

  std::filesystem::path save_;
  std::int64_t keep_;
  RankExchange exchange_;
  Manifest base_;
  std::vector<bool> writes_;
  std::vector<StoredTensor> mine_;
};

}  // namespace pretrain_gpt
