// plugin/search/reason.h
//
// What choose_schedule() says: why it chose, and what would fit where nothing does.
#pragma once

#include <string>
#include <vector>

#include "plugin/search/candidate.h"

namespace dualpipe::search {

// For AutoChoice::reason, from its other members.
std::string reason_for(const AutoChoice& choice, const AutoRequest& request);

// Throws ScheduleError: the limit, and the least that would fit, per placement.
[[noreturn]] void refuse_limits(const std::vector<Candidate>& candidates, const AutoRequest& request);

}  // namespace dualpipe::search
