// plugin/compare/ring_files.h
//
// ring_rank<R>.jsonl: the last actions and messages of the ranks of a run that failed (docs/run_files.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace dualpipe {

// Times are Unix times in seconds.
struct RingAction {
  std::string kind;         // "compute", "send", "receive" or "collective".
  std::string action;       // "3B2", "3SEND_B2", "the sum of gradients".
  std::optional<int> peer;  // Of a message; a rank of the run.
  std::int64_t bytes = 0;
  double posted = 0;
  std::optional<double> started;  // Of a message: when somebody began to wait for it.
  std::optional<double> done;
};

struct RingFile {
  int rank = 0;
  int world_size = 1;
  double written = 0;
  std::optional<int> failed_rank;  // As this rank was told.
  std::string failed_place;
  std::string failure;
  std::vector<RingAction> actions;  // Oldest first.
};

// All such files of a folder, by rank. Throws ScheduleError where there is none, and with file and line where one
// cannot be read; a last line that was cut off is left out, since its process may have been ended while it wrote.
std::vector<RingFile> read_rings(const std::filesystem::path& folder);

}  // namespace dualpipe
