// plugin/compare/postmortem.h
//
// What the logs of a run's ranks say together: who failed first, what each rank was at, and at which message their ways
// part.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plugin/compare/ring_files.h"

namespace dualpipe {

// A rank that waits, and what its peer's log says about it.
struct WaitingRank {
  int rank = 0;
  RingAction action;
  std::string finding;  // "rank 2 has not posted 2SEND_B3: it is at 2F5"
};

struct Postmortem {
  std::optional<int> failed_rank;    // What most logs name.
  std::vector<int> without_log;      // Ranks of the run that left none.
  std::vector<WaitingRank> waiting;  // By rank.
  // The rank that failed, or, where that waits itself or none is known, the one at which the waiting ends: it left no
  // log, or waits for nobody.
  std::optional<int> parting;
};

// `rings` as read_rings() gives them, at least one.
Postmortem examine(const std::vector<RingFile>& rings);

// For the terminal.
std::string print_postmortem(const std::vector<RingFile>& rings);

}  // namespace dualpipe
