#include "plugin/compare/ring_files.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string_view>

#include "plugin/compare/json_line.h"
#include "plugin/schedule/error.h"

namespace dualpipe {
namespace {

using compare::JsonLine;

constexpr std::int64_t kMostRanks = 1 << 17;  // A list of those without a log is made.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 53;
constexpr std::string_view kBefore = "ring_rank";
constexpr std::string_view kBehind = ".jsonl";

bool is_ring(const std::string& name) {
  if (!name.starts_with(kBefore) || !name.ends_with(kBehind)) return false;
  const std::string_view number =
      std::string_view(name).substr(kBefore.size(), name.size() - kBefore.size() - kBehind.size());
  return !number.empty() && std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Whole ones.
std::vector<JsonLine> read_lines(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw ScheduleError(path.string(), "must be a file that can be read");
  std::vector<JsonLine> lines;
  for (std::string text; std::getline(file, text) && !file.eof();) {
    lines.emplace_back(path.string(), static_cast<int>(lines.size()) + 1, text);
  }
  if (lines.empty()) throw ScheduleError(path.string(), "must have a first line that describes the rank, got nothing");
  return lines;
}

RingAction read_action(const JsonLine& line) {
  RingAction action;
  action.kind = line.text("kind");
  const auto kinds = {"compute", "send", "receive", "collective"};
  if (std::find(kinds.begin(), kinds.end(), action.kind) == kinds.end())
    line.refuse("kind", "compute, send, receive or collective", action.kind);
  action.action = line.text("action");
  if (const auto peer = line.optional_integer("peer", 0, kMostRanks)) action.peer = static_cast<int>(*peer);
  action.bytes = line.optional_integer("bytes", 0, kMostBytes).value_or(0);
  action.posted = line.number("posted", 0);
  action.started = line.optional_number("started", 0);
  action.done = line.optional_number("done", 0);
  return action;
}

RingFile read_ring(const std::filesystem::path& path) {
  const std::vector<JsonLine> lines = read_lines(path);
  const JsonLine& header = lines.front();
  if (header.text("format") != "dualpipe-ring") header.refuse("format", "dualpipe-ring", header.text("format"));
  header.integer("version", 1, 1);
  RingFile ring;
  ring.world_size = static_cast<int>(header.integer("world_size", 1, kMostRanks));
  ring.rank = static_cast<int>(header.integer("rank", 0, ring.world_size - 1));
  ring.written = header.number("written", 0);
  if (const auto rank = header.optional_integer("failed_rank", 0, ring.world_size - 1))
    ring.failed_rank = static_cast<int>(*rank);
  if (header.contains("failed_place")) ring.failed_place = header.text("failed_place");
  if (header.contains("failure")) ring.failure = header.text("failure");
  for (std::size_t i = 1; i < lines.size(); ++i) ring.actions.push_back(read_action(lines[i]));
  return ring;
}

}  // namespace

std::vector<RingFile> read_rings(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<RingFile> rings;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (is_ring(entry.path().filename().string())) rings.push_back(read_ring(entry.path()));
  }
  if (rings.empty())
    throw ScheduleError(folder.string(),
                        "must hold ring_rank<R>.jsonl files, which a run writes when it fails; "
                        "for example the output_dir of the trainer");
  std::sort(rings.begin(), rings.end(), [](const RingFile& a, const RingFile& b) { return a.rank < b.rank; });
  return rings;
}

}  // namespace dualpipe
