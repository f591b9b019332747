// plugin/compare/comparison_table.h
//
// to_table(): a comparison for a terminal.
#pragma once

#include <string>

#include "plugin/compare/comparison.h"

namespace dualpipe {

// A row per schedule, '-' for what is not known, then failures, notes and mismatches. Every line is ended.
std::string to_table(const Comparison& comparison);

}  // namespace dualpipe
