// plugin/compare/notes.h
//
// comparison_notes(): what a reader has to know to judge a comparison fairly.
#pragma once

#include <string>
#include <vector>

#include "plugin/compare/comparison.h"

namespace dualpipe::compare {

// A sentence each: who holds more parameters, who stands beside whom, what is missing, what the host did not write.
std::vector<std::string> comparison_notes(const Comparison& comparison);

}  // namespace dualpipe::compare
