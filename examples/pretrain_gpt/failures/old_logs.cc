#include "examples/pretrain_gpt/failures/old_logs.h"

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace pretrain_gpt {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBefore = "ring_rank", kBehind = ".jsonl";

std::optional<int> rank_of(const std::string& name) {
  if (!name.starts_with(kBefore) || !name.ends_with(kBehind) || name.size() <= kBefore.size() + kBehind.size()) {
    return std::nullopt;
  }
  int rank = 0;
  const char* end = name.data() + name.size() - kBehind.size();
  const auto [stop, error] = std::from_chars(name.data() + kBefore.size(), end, rank);
  return error == std::errc{} && stop == end && rank >= 0 ? std::optional(rank) : std::nullopt;
}

}  // namespace

void remove_old_logs(const fs::path& folder, int rank, int world_size) {
  std::error_code error;
  std::vector<fs::path> old;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::optional<int> other = rank_of(entry->path().filename().string());
    if (other && (*other == rank || (rank == 0 && *other >= world_size))) {
      old.push_back(entry->path());
    }
  }
  for (const fs::path& file : old) {
    fs::remove(file, error);
  }
}

}  // namespace pretrain_gpt
