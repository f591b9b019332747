// plugin/runtime/agree.h
//
// Before the first message of a pipeline its ranks tell each other what they were configured with, or that they refuse.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plugin/runtime/collectives.h"

namespace dualpipe {

using Digest = std::vector<std::pair<std::string, std::string>>;  // Key, value; the same keys everywhere.

// Collective. Throws ScheduleError on every rank where any rank brings an `error` (its message, with the rank), or
// where a value differs: "[pipeline] ranks disagree about num_microbatches: 8 on rank 0, 16 on rank 2".
void agree(Collectives& ranks, const Digest& digest, const std::optional<std::string>& error);

}  // namespace dualpipe
