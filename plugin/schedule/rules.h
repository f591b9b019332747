// plugin/schedule/rules.h
//
// The rules that every built-in schedule shares, and the words in which a number is refused.
#pragma once

#include <string_view>

#include "plugin/schedule/schedule.h"

namespace dualpipe {

inline constexpr int kMaxStages = 65535;                 // Op::stage has 16 bits.
inline constexpr int kMaxMicrobatchesPerRank = 1 << 24;  // Over the rank's chunks: rows that memory and int can hold.

// P >= 1, M >= 1 and no more stages or micro-batches than the bounds above. `chunks_per_rank` is at least 1.
void require_sizes(std::string_view schedule, const ScheduleSpec& spec, int chunks_per_rank);

// Each throws ScheduleError "[origin] what must be ..., got value", with a value that works.
void require_at_least(std::string_view origin, std::string_view what, int least, int value);
void require_at_most(std::string_view origin, std::string_view what, int most, int value);
void require_even(std::string_view origin, std::string_view what, int value);

}  // namespace dualpipe
