#include "examples/pretrain_gpt/checkpoint/checkpoint_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "examples/pretrain_gpt/checkpoint/checkpoint_error.h"
#include "examples/pretrain_gpt/checkpoint/checkpoint_folder.h"
#include "examples/pretrain_gpt/checkpoint/durable_file.h"
#include "examples/pretrain_gpt/checkpoint/outcome.h"
#include "examples/pretrain_gpt/checkpoint/save_plan.h"

namespace pretrain_gpt {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

double seconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

std::string as_megabytes(std::uint64_t bytes) { return fmt::format("{:.2f} MB", static_cast<double>(bytes) / 1e6); }

}  // namespace

std::string print_report(const SaveReport& report) {
  return fmt::format("checkpoint of iteration {}: {}, {} in {:.1f} ms; training waited {:.1f} ms ({:.1f} %){}",
                     report.iteration, report.folder.string(), as_megabytes(report.bytes), report.seconds * 1e3,
                     report.waited * 1e3, 100 * report.waited / report.seconds, report.note);
}

CheckpointWriter::CheckpointWriter(fs::path save, std::int64_t keep, RankExchange exchange, Manifest base,
                                   std::vector<bool> writes, std::vector<StoredTensor> mine)
    : save_(std::move(save)),
      keep_(keep),
      exchange_(std::move(exchange)),
      base_(std::move(base)),
      writes_(std::move(writes)),
      mine_(std::move(mine)) {}

SaveReport CheckpointWriter::write(const TrainingPosition& position, std::chrono::steady_clock::time_point began,
                                   double waited, const BytesOf& bytes_of) {
  const fs::path folder = unfinished_path(save_, position.iteration);
  take_outcome(exchange_.broadcast(exchange_.is_first() ? outcome_of([&] {
    make_folder(folder);
    return std::string();
  })
                                                        : ""));
  const std::vector<std::string> records =
      exchange_.gather(outcome_of([&] { return write_own_file(folder, waited, bytes_of); }));
  const std::string outcome =
      exchange_.broadcast(exchange_.is_first() ? outcome_of([&] { return complete(folder, position, records); }) : "");
  const json said = json::parse(take_outcome(outcome));
  return {checkpoint_path(save_, position.iteration),
          position.iteration,
          said.at("bytes"),
          seconds_since(began),
          said.at("waited"),
          said.at("note")};
}

void CheckpointWriter::make_folder(const fs::path& folder) {
  std::error_code error;
  make_folders_durably(save_, error);
  if (!error) {
    fs::remove_all(folder, error);
  }
  if (!error) {
    fs::create_directory(folder, error);
  }
  if (error) {
    throw CheckpointError(folder.string(), fmt::format("must be a folder that can be made, got: {}; for example save: "
                                                       "output/checkpoints",
                                                       error.message()));
  }
}

std::string CheckpointWriter::write_own_file(const fs::path& folder, double waited, const BytesOf& bytes_of) const {
  json record = {{"waited", waited}, {"bytes", 0}, {"sha256", ""}};
  if (!mine_.empty()) {
    const WrittenFile file =
        write_safetensors(folder / rank_file_name(exchange_.rank()), mine_, {{"format", "pt"}}, bytes_of);
    record["bytes"] = file.bytes;
    record["sha256"] = file.sha256;
  }
  return record.dump();
}

std::string CheckpointWriter::complete(const fs::path& folder, const TrainingPosition& position,
                                       const std::vector<std::string>& records) {
  Manifest manifest = base_;
  manifest.iteration = position.iteration;
  manifest.consumed_samples = position.consumed_samples;
  json said = {{"bytes", 0}, {"waited", 0.0}, {"note", ""}};
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    const json record = json::parse(take_outcome(records[rank]));
    if (writes_[rank]) {
      manifest.files.push_back({rank_file_name(static_cast<int>(rank)), record.at("bytes"), record.at("sha256")});
    }
    said["bytes"] = said["bytes"].get<std::uint64_t>() + record.at("bytes").get<std::uint64_t>();
    said["waited"] = std::max(said["waited"].get<double>(), record.at("waited").get<double>());
  }
  const std::string text = print_manifest(manifest);
  write_durably(folder / kManifestName, text);
  write_durably(folder / kManifestHashName, manifest_hash_line(text));
  sync_folder(folder);
  rename_durably(folder, checkpoint_path(save_, position.iteration));
  try {
    remove_old_checkpoints(save_, keep_);
  } catch (const CheckpointError& error) {
    said["note"] = fmt::format("; {}", error.what());
  }
  return said.dump();
}

}  // namespace pretrain_gpt
