#include "examples/pretrain_gpt/checkpoint/checkpoint_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>

#include "examples/pretrain_gpt/checkpoint/checkpoint_error.h"
#include "examples/pretrain_gpt/checkpoint/durable_file.h"
#include "examples/pretrain_gpt/checkpoint/input_file.h"
#include "examples/pretrain_gpt/checkpoint/sha256.h"

namespace pretrain_gpt {
namespace {

namespace fs = std::filesystem;

const std::string kPrefix = "iter_";
constexpr std::uint64_t kMostManifestBytes = std::uint64_t{1} << 32;
constexpr std::uint64_t kMostHashBytes = 256;

std::optional<std::int64_t> iteration_of(const std::string& name) {
  std::int64_t iteration = 0;
  const char* end = name.data() + name.size();
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, iteration);
  const bool is_read = error == std::errc{} && stop == end && iteration > 0;
  return is_read && checkpoint_path("", iteration) == name ? std::optional(iteration) : std::nullopt;
}

void visit(const fs::path& save, const std::function<void(const fs::path&)>& visit_folder) {
  std::vector<fs::path> folders;
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(save)) {
      if (fs::is_directory(entry.symlink_status())) {
        folders.push_back(entry.path());
      }
    }
  } catch (const fs::filesystem_error& error) {
    if (error.code() != std::errc::no_such_file_or_directory) {
      throw CheckpointError(save.string(), "must be a readable folder, got: " + error.code().message());
    }
  }
  std::for_each(folders.begin(), folders.end(), visit_folder);
}

void remove_folder(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) {
    throw CheckpointError(folder.string(), "must be a folder that can be removed, got: " + error.message());
  }
}

fs::path with_ending(const fs::path& save, std::int64_t iteration, const std::string& ending) {
  return save / fmt::format("{}{:07}{}", kPrefix, iteration, ending);
}

bool is_complete(const fs::path& checkpoint) {
  try {
    read_manifest(checkpoint);
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

}  // namespace

fs::path checkpoint_path(const fs::path& save, std::int64_t iteration) { return with_ending(save, iteration, ""); }

fs::path unfinished_path(const fs::path& save, std::int64_t iteration) { return with_ending(save, iteration, ".tmp"); }

std::vector<std::int64_t> list_checkpoints(const fs::path& save) {
  std::vector<std::int64_t> iterations;
  visit(save, [&](const fs::path& folder) {
    if (const auto iteration = iteration_of(folder.filename().string())) {
      iterations.push_back(*iteration);
    }
  });
  std::sort(iterations.begin(), iterations.end(), std::greater<>());
  return iterations;
}

std::string describe_checkpoint(const fs::path& load, std::optional<std::int64_t> iteration) {
  const std::vector<std::int64_t> candidates = iteration ? std::vector{*iteration} : list_checkpoints(load);
  if (candidates.empty()) {
    return "none";
  }
  const fs::path checkpoint = checkpoint_path(load, candidates.front());
  try {
    const std::string manifest = read_text_file(checkpoint / kManifestName, kMostManifestBytes);
    return fmt::format("{} with manifest {}", checkpoint.filename().string(), sha256(manifest));
  } catch (const DamagedCheckpoint&) {
    return fmt::format("{} without a manifest", checkpoint.filename().string());
  }
}

CheckedManifest read_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kManifestName;
  const std::string text = read_text_file(path, kMostManifestBytes);
  const std::string line = read_text_file(checkpoint / kManifestHashName, kMostHashBytes);
  const std::string wanted = manifest_hash_line(text);
  if (line != wanted) {
    throw DamagedCheckpoint(
        (checkpoint / kManifestHashName).string(),
        fmt::format("must be the hash of {} = {}, got another", kManifestName, wanted.substr(0, wanted.find(' '))));
  }
  CheckedManifest checked{parse_manifest(text, path.string()), wanted.substr(0, wanted.find(' '))};
  for (const ManifestFile& file : checked.manifest.files) {
    const InputFile given(checkpoint / file.name);
    if (given.size() != file.bytes) {
      throw DamagedCheckpoint(given.path().string(),
                              fmt::format("must have the {} bytes of the manifest, got {}", file.bytes, given.size()));
    }
  }
  return checked;
}

void check_hash(const fs::path& checkpoint, const ManifestFile& file) {
  const InputFile given(checkpoint / file.name);
  const std::string hash = sha256_of_file(given);
  if (hash != file.sha256 || given.size() != file.bytes) {
    throw DamagedCheckpoint(given.path().string(),
                            fmt::format("must have the sha256 of the manifest = {}, got {}", file.sha256, hash));
  }
}

void remove_leftovers(const fs::path& save) {
  visit(save, [](const fs::path& folder) {
    const fs::path ending = folder.extension();
    if (iteration_of(folder.stem().string()) && (ending == ".tmp" || ending == ".removed")) {
      remove_folder(folder);
    }
  });
}

// Under another name first: what is half removed is never taken for a checkpoint.
void remove_old_checkpoints(const fs::path& save, std::int64_t keep) {
  std::int64_t complete = 0;
  for (const std::int64_t iteration : list_checkpoints(save)) {
    const fs::path checkpoint = checkpoint_path(save, iteration);
    if (!is_complete(checkpoint) || ++complete <= keep) {
      continue;
    }
    const fs::path removed = with_ending(save, iteration, ".removed");
    remove_folder(removed);
    rename_durably(checkpoint, removed);
    remove_folder(removed);
  }
}

void set_aside(const fs::path& save, std::int64_t iteration) {
  const fs::path damaged = with_ending(save, iteration, ".damaged");
  remove_folder(damaged);
  rename_durably(checkpoint_path(save, iteration), damaged);
}

}  // namespace pretrain_gpt
