#include "examples/pretrain_gpt/failures/roll_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "examples/pretrain_gpt/failures/exit_code.h"

namespace pretrain_gpt {
namespace {

std::string key_of(int rank) { return fmt::format("roll/{}", rank); }

// "<world size> <process>"
std::string text_of(const Enrolment& entry) { return fmt::format("{} {}", entry.world_size, to_text(entry.process)); }

Enrolment read(int rank, const std::string& text) {
  const std::size_t space = text.find(' ');
  return {rank, std::stoi(text.substr(0, space)), identity_from_text(text.substr(space + 1))};
}

[[noreturn]] void refuse(const std::string& message) { throw RunError(ExitCode::kStart, message); }

void check_world_size(const Enrolment& mine, const Enrolment& other) {
  if (other.world_size != mine.world_size) {
    refuse(
        fmt::format("[WORLD_SIZE] must be the same on every rank, got {} on rank {} and {} on rank {}; start all "
                    "ranks by one command",
                    other.world_size, other.rank, mine.world_size, mine.rank));
  }
}

std::string list(const std::vector<int>& ranks) {
  constexpr std::size_t kShown = 16;
  const auto end = ranks.begin() + static_cast<std::ptrdiff_t>(std::min(ranks.size(), kShown));
  return fmt::format("{} {}{}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks.begin(), end, ", "),
                     ranks.size() > kShown ? fmt::format(" and {} more", ranks.size() - kShown) : "");
}

}  // namespace

void enrol(Board& board, const Enrolment& mine) {
  const Enrolment there = read(mine.rank, board.set_first(key_of(mine.rank), text_of(mine)));
  if (!(there.process == mine.process)) {
    refuse(
        fmt::format("[RANK] must be a process's own, got {} for {} and for {}; give each process another rank, and "
                    "each run on a machine a MASTER_PORT of its own",
                    mine.rank, describe(there.process), describe(mine.process)));
  }
}

std::vector<ProcessIdentity> wait_for_all(Board& board, const Enrolment& mine, std::chrono::milliseconds patience,
                                          const std::function<void()>& pause) {
  std::vector<std::optional<Enrolment>> entries(static_cast<std::size_t>(mine.world_size));
  std::vector<int> absent;
  const auto look = [&] {
    absent.clear();
    for (int rank = 0; rank < mine.world_size; ++rank) {
      auto& entry = entries[static_cast<std::size_t>(rank)];
      if (entry) {
        continue;
      }
      if (const auto text = board.get(key_of(rank))) {
        entry = read(rank, *text);
        check_world_size(mine, *entry);
      } else {
        absent.push_back(rank);
      }
    }
    return absent.empty();
  };
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!look()) {
    if (std::chrono::steady_clock::now() >= end) {
      refuse(fmt::format("[WORLD_SIZE] all {} ranks must be there within timeout_s, got nothing of {} for {:.3g} s",
                         mine.world_size, list(absent), std::chrono::duration<double>(patience).count()));
    }
    pause();
  }
  std::vector<ProcessIdentity> processes;
  for (const auto& entry : entries) {
    processes.push_back(entry->process);
  }
  return processes;
}

}  // namespace pretrain_gpt
