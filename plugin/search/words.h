// plugin/search/words.h
//
// From a schedule to the words of its ranks, and back.
#pragma once

#include "plugin/schedule/schedule.h"
#include "plugin/search/lanes.h"

namespace dualpipe::search {

// A schedule of the lanes' placement; its micro-batches are forgotten.
Words to_words(const Lanes& lanes, const Schedule& schedule);
// Each lane's letters in turn are its micro-batches.
Schedule to_schedule(const Lanes& lanes, const Words& words);

}  // namespace dualpipe::search
