// Bit flips and truncations of a checkpoint's files, one at a time: each has to be refused, with the file's name. The
// k-th case depends on the seed and k alone; --first runs on from there. Prints a JSON row; exits with 1 on a miss.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "examples/pretrain_gpt/checkpoint/checkpoint_error.h"
#include "examples/pretrain_gpt/checkpoint/checkpoint_folder.h"
#include "examples/pretrain_gpt/checkpoint/safetensors_file.h"
#include "tests/stress/trials.h"
#include "tests/support/temporary_folder.h"

namespace dualpipe::stress {
namespace {

namespace fs = std::filesystem;
using namespace pretrain_gpt;

void write(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

// Two ranks' files of a tensor and its moments, in halves.
void write_checkpoint(const fs::path& folder) {
  const std::vector<std::string> names{"w", "optimizer.state.exp_avg.w", "optimizer.state.exp_avg_sq.w"};
  Manifest manifest;
  manifest.iteration = 100;
  manifest.consumed_samples = 1600;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    std::vector<StoredTensor> tensors;
    const Box half{{static_cast<std::int64_t>(8 * rank), 0}, {8, 4}};
    for (const std::string& name : names) {
      tensors.push_back({piece_name(name, {16, 4}, half), "F32", half.size});
      manifest.tensors[name].dtype = "F32";
      manifest.tensors[name].shape = {16, 4};
      manifest.tensors[name].pieces.push_back({rank, half});
    }
    std::string bytes(128, static_cast<char>('a' + rank));
    const std::string name = "rank_0000" + std::to_string(rank) + ".safetensors";
    const WrittenFile file = write_safetensors(folder / name, tensors, {{"format", "pt"}},
                                               [&](std::size_t) { return std::as_bytes(std::span(bytes)); });
    manifest.files.push_back({name, file.bytes, file.sha256});
  }
  write(folder / kManifestName, print_manifest(manifest));
  write(folder / kManifestHashName, manifest_hash_line(print_manifest(manifest)));
}

// What a rank alone does before it loads.
void check(const fs::path& folder) {
  for (const ManifestFile& file : read_manifest(folder).manifest.files) {
    check_hash(folder, file);
    SafetensorsFile(folder / file.name);
  }
}

class Trials {
 public:
  explicit Trials(const TrialOptions& options) : options_(options) {
    write_checkpoint(folder_.path());
    check(folder_.path());
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      files_[entry.path().filename().string()] = read_text(entry.path());
    }
  }

  void run() {
    for (std::uint64_t number = options_.first; number < options_.first + options_.count; ++number) {
      try_case(number);
      if ((number + 1 - options_.first) % 10000 == 0) {
        std::cerr << number + 1 - options_.first << "/" << options_.count << " damaged\n";
      }
    }
    check(folder_.path());  // Nothing was left damaged, so that every case was one of its own.
  }

  ResultRow row() const {
    return {"bit flips and truncations of checkpoints", std::to_string(options_.count) + ", none accepted",
            std::to_string(options_.count - refused_) + " accepted (" + std::to_string(flips_) + " flips, " +
                std::to_string(options_.count - flips_) + " truncations)",
            std::to_string(options_.seed), refused_ == options_.count};
  }

 private:
  // One or a few bits of a file that is chosen first, so that small ones get their share.
  void try_case(std::uint64_t number) {
    std::mt19937_64 random(options_.seed * 0x9E3779B97F4A7C15u + number);
    const auto file = std::next(files_.begin(), static_cast<std::ptrdiff_t>(random() % files_.size()));
    std::string bytes = file->second;
    if (random() % 4 == 0) {
      bytes.resize(random() % bytes.size());
    } else {
      ++flips_;
      const std::size_t place = random() % bytes.size();
      bytes[place] = static_cast<char>(bytes[place] ^ (1 << random() % 8));
    }
    write(folder_.file(file->first), bytes);
    note(number, file->first);
    write(folder_.file(file->first), file->second);
  }

  void note(std::uint64_t number, const std::string& name) {
    try {
      check(folder_.path());
    } catch (const CheckpointError& error) {
      refused_ += std::string(error.what()).find(folder_.path()) == 1 ? 1 : 0;
      return;
    }
    std::cerr << "case " << number << ": a damaged " << name << " was accepted\n";
  }

  TrialOptions options_;
  TemporaryFolder folder_;
  std::map<std::string, std::string> files_;
  std::uint64_t refused_ = 0, flips_ = 0;
};

}  // namespace
}  // namespace dualpipe::stress

int main(int argc, char** argv) {
  using namespace dualpipe::stress;
  return run_trials<Trials>(argc, argv, "Damaged checkpoints");
}
