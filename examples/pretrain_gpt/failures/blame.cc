#include "examples/pretrain_gpt/failures/blame.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

namespace pretrain_gpt {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::milliseconds kBusy{100};  // Between two readings, even where processors are scarce.

bool has_stopped(const std::optional<Beat>& before, const std::optional<Beat>& after) {
  return !after || (before && before->number == after->number);
}

std::string seconds(std::chrono::milliseconds time) {
  return fmt::format("{:.3g} s", std::chrono::duration<double>(time).count());
}

std::string others(const std::vector<int>& ranks) {
  return ranks.size() < 2 ? "" : fmt::format(" (so do ranks {})", fmt::join(ranks.begin() + 1, ranks.end(), ", "));
}

Failure blame_stopped(const Beats& after, const std::vector<int>& stopped, std::chrono::milliseconds patience) {
  const int first = stopped.front();
  const auto& beat = after[static_cast<std::size_t>(first)];
  Failure failure{first, ExitCode::kTimeout, beat ? beat->standing.place : "", ""};
  failure.message = fmt::format(
      "its process does not answer: it is stopped, or its machine is lost; the others got no further for {}{}",
      seconds(patience), others(stopped));
  for (const int rank : stopped) {
    if (const auto& silent = after[static_cast<std::size_t>(rank)]) {
      failure.stopped.push_back(silent->process);
    }
  }
  return failure;
}

bool computes(const std::optional<Beat>& before, const Beat& after) {
  return before && after.computed - before->computed >= kBusy;
}

// Of those that wait for nobody.
std::optional<int> longest_at_work(const Beats& before, const Beats& after) {
  std::optional<int> longest;
  std::pair<bool, std::chrono::milliseconds> most;
  for (std::size_t rank = 0; rank < after.size(); ++rank) {
    const std::pair mine(computes(before[rank], *after[rank]), after[rank]->still);
    if (!after[rank]->standing.waits && (!longest || mine > most)) {
      longest = static_cast<int>(rank);
      most = mine;
    }
  }
  return longest;
}

// The last rank of the chain from `here`, or the first that comes again.
int end_of_chain(const Beats& beats, int here) {
  std::vector<bool> passed(beats.size());
  int rank = here;
  while (!passed[static_cast<std::size_t>(rank)]) {
    passed[static_cast<std::size_t>(rank)] = true;
    const auto peer = beats[static_cast<std::size_t>(rank)]->standing.peer;
    if (!peer || *peer < 0 || *peer >= static_cast<int>(beats.size())) {
      return rank;
    }
    rank = *peer;
  }
  return rank;
}

}  // namespace

std::string to_text(const Beat& beat) {
  return Json({beat.number, beat.standing.place, beat.standing.waits, beat.standing.peer.value_or(-1),
               beat.standing.changes, beat.still.count(), to_text(beat.process), beat.computed.count()})
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Beat beat_from_text(const std::string& text) {
  const Json json = Json::parse(text);
  Beat beat{json.at(0),
            {json.at(1), json.at(2), {}, json.at(4)},
            std::chrono::milliseconds(json.at(5).get<std::int64_t>()),
            identity_from_text(json.at(6)),
            std::chrono::milliseconds(json.at(7).get<std::int64_t>())};
  if (const int peer = json.at(3); peer >= 0) {
    beat.standing.peer = peer;
  }
  return beat;
}

Failure blame(const Beats& before, const Beats& after, int here, std::chrono::milliseconds patience) {
  std::vector<int> stopped;
  for (std::size_t rank = 0; rank < after.size(); ++rank) {
    if (has_stopped(before[rank], after[rank])) {
      stopped.push_back(static_cast<int>(rank));
    }
  }
  if (!stopped.empty()) {
    return blame_stopped(after, stopped, patience);
  }
  if (const auto rank = longest_at_work(before, after)) {
    const Beat& beat = *after[static_cast<std::size_t>(*rank)];
    return {*rank, ExitCode::kTimeout, beat.standing.place,
            fmt::format("it got no further for {}, and the others wait for it", seconds(beat.still))};
  }
  const int rank = end_of_chain(after, here);
  const Standing& standing = after[static_cast<std::size_t>(rank)]->standing;
  const std::string whom = standing.peer ? fmt::format("rank {}", *standing.peer) : "all ranks of a group";
  return {rank, ExitCode::kTimeout, standing.place,
          fmt::format("all ranks wait for each other since {}; this one waits for {}", seconds(patience), whom)};
}

}  // namespace pretrain_gpt
